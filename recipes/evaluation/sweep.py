"""All checkpoints of a run evaluated on one split: how recommendation, not only the loss, changed over training.

OUT/step_000040/ is the evaluation of a step (see recipes.evaluate). OUT/sweep.json has what all were evaluated with.
Interrupted, it goes on where it was: each step reuses its generations.
"""

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from convrec.base.errors import UserError
from convrec.base.files import read_json, write_json
from convrec.base.same_request import as_kept, differences
from convrec.inference.generate import engines_kept
from convrec.report.curves import SWEEP, SWEEP_SETTINGS, write_csv
from convrec.report.page import table_row, text_table
from convrec.runs.folder import LATEST, latest_step, saved_steps, start_model
from recipes.evaluation.options import EvaluationOptions
from recipes.evaluation.scoring import SCORED_WITH, comparable, model_line
from recipes.evaluation.setup import OF_DIALOGUES, Evaluation, prepare_evaluation
from recipes.evaluation.single import answer_and_score
from recipes.evaluation.slices import slice_lines

# settings of an evaluation that change figures: two sweeps that differ in one must not share a folder
SETTINGS = (*SCORED_WITH, "seed", "max_prompt_tokens", "max_tokens", "constrained", "allow")


def sweep_steps(run: Path, start: str | None = None) -> dict[int, str]:
    """step -> model, in order: 0 is the start model, the others RUN/global_step_N.

    Raises UserError when the folder is no run, its newest checkpoint has no model, or the start model is gone.
    """
    if not (run / LATEST).exists():
        raise UserError(f"--sweep {run}: no {LATEST}; give a run folder with a complete checkpoint")
    begin = start or start_model(run)
    if not begin:
        raise UserError(f"{run}: no config.yaml that names the model it started from; give it with --start")
    if not start and os.path.isabs(begin) and not Path(begin).exists():
        raise UserError(
            f"{run}/config.yaml: the run started from {begin}, which is gone; give its new place with --start"
        )
    steps = saved_steps(run)
    if latest_step(run) not in steps:
        raise UserError(f"{run}/global_step_{latest_step(run)}, the newest one, holds no model: it was removed")
    return {0: begin, **{step: str(run / f"global_step_{step}") for step in steps}}


@engines_kept()
def sweep_run(options: EvaluationOptions, start: str | None = None) -> str:
    """Evaluate every step of the run `options.model`, write OUT/sweep.csv and return the table to print (the largest
    k). The start model is asked and scored as the run's are.

    The baselines and a warning that all steps have are said once. Raises UserError when OUT holds another run's sweep
    or one with other settings.
    """
    run = Path(options.model or "").expanduser()
    folder = Path(options.out)
    steps = sweep_steps(run, start)
    first = prepare_evaluation(replace(options, model=steps[0], out=_get_step_folder(folder, 0), run=str(run)))
    settings = _checked_settings(folder, run, first)
    against = options.against or first.options.out
    table: list[dict[str, Any]] = []
    slice_rows: list[dict[str, Any]] = []
    shown: list[dict[str, Any]] = []
    warned: set[str] = set()
    for number, (step, model) in enumerate(steps.items(), 1):
        tqdm.write(f"step {step}, {number} of {len(steps)} checkpoints", file=sys.stderr)
        metrics = answer_and_score(first.for_model(model, _get_step_folder(folder, step), against) if step else first)
        write_json(folder / SWEEP_SETTINGS, settings)  # not before a step has shown that they can be used
        protocol = settings["protocol"]
        largest = [max(settings["ks"])]
        results = dict(metrics["results"][protocol])
        model_result = results.pop("model")
        constrained_result = results.pop("constrained", None)
        table.append({"step": step} | model_line(metrics))
        slice_rows += [{"step": step} | line for line in slice_lines(metrics["slices"])]
        if not shown:
            shown += [table_row(name, baseline, largest) for name, baseline in results.items()]
        shown.append(table_row(f"step {step}", model_result, largest))
        if constrained_result:
            shown.append(table_row(f"step {step}, constrained", constrained_result, largest))
        for warning in metrics["warnings"]:
            if warning not in warned:
                tqdm.write(f"warning: {warning}", file=sys.stderr)
        warned |= {*metrics["warnings"]}
    write_csv(folder / "slices.csv", slice_rows)
    write_csv(folder / SWEEP, table)
    return (
        f"{run} on {options.data}, {model_result['n']} rows, protocol {protocol}\n"
        f"{text_table(shown, line_a_model=True)}\nwritten to {folder} (all k: {SWEEP})"
    )


def _get_step_folder(folder: Path, step: int) -> str:
    return str(folder / f"step_{step:06d}")


def _checked_settings(folder: Path, run: Path, evaluation: Evaluation) -> dict[str, Any]:
    """What OUT/sweep.json shall say. Raises UserError when it says something else."""
    chosen = [*SETTINGS, *(name for name in OF_DIALOGUES if name in evaluation.settings)]
    settings = comparable(evaluation.settings) | {name: evaluation.settings[name] for name in chosen}
    settings["run"] = os.path.relpath(run, folder)  # the two may be moved together
    file = folder / SWEEP_SETTINGS
    if file.exists() and (other := differences(read_json(file), as_kept(settings))):
        raise UserError(
            f"{folder}: it holds a sweep with other settings, {', '.join(other)}; give another --out, or remove "
            f"{SWEEP_SETTINGS} there to overwrite that sweep"
        )
    return settings
