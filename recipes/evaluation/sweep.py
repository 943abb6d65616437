"""All checkpoints of a run evaluated on one split: how recommendation, not only the loss, changed over training.

OUT/step_000040/ is the evaluation of a step (see recipes.evaluate), paired with step 0 where `--against` names no other
one. OUT/sweep.csv has a row a step, OUT/slices.csv a row for each step and part of the split, OUT/sweep.json what all
were evaluated with. With several replicas the checkpoints write their lists side by side, each on a replica of its own;
they are scored in order. Interrupted, it goes on where it was: each step reuses its generations. Step 0, the model the
run started from, and the newest checkpoint are never left out.
"""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tqdm import tqdm

from convrec.errors import UserError
from convrec.files import read_json, write_json
from convrec.generation.answers import models_answers
from convrec.generation.placement import Placement
from convrec.generation.room import Room
from convrec.report.curves import SWEEP, SWEEP_SETTINGS, write_csv
from convrec.report.page import table_row, text_table
from convrec.runs.folder import LATEST, latest_step, saved_steps, start_model
from recipes.evaluation.scoring import SCORED_WITH, constrained_gain, model_line
from recipes.evaluation.setup import set_up
from recipes.evaluation.single import evaluate
from recipes.evaluation.slices import slice_lines

# evaluate's options that change figures: two sweeps that differ in one must not share a folder
SETTINGS = (*SCORED_WITH, "seed", "max_prompt_length", "max_response_length", "constrained", "allow")


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
        raise UserError(
            f"{run}/global_step_{latest_step(run)}: named in {LATEST}, but it holds no model: half written or removed"
        )
    return {0: begin, **{step: str(run / f"global_step_{step}") for step in steps}}


def sweep_run(
    run: Path,
    out: str | Path | None = None,
    start: str | None = None,
    *,
    replicas: int | str = 1,
    tensor_parallel: int = 1,
    address: str | None = None,
    **options: Any,
) -> tuple[str, dict[str, Any]]:
    """Evaluate every step, write OUT/sweep.csv and return the table to print (the largest k) with the metrics of the
    newest step; replicas, tensor_parallel, address and `options` are evaluate's. The start model is asked and scored as
    the run's are.

    The baselines and a warning that all steps have are said once. Raises UserError when OUT holds another run's sweep
    or one with other settings.
    """
    steps = sweep_steps(run, start)
    folder = Path(out) if out else run / "evaluation" / Path(options["data"]).stem
    settings = _checked_settings(folder, run, steps[0], options)
    where: dict[str, Any] = {"replicas": replicas, "tensor_parallel": tensor_parallel, "address": address}
    if replicas != 1:
        with Placement(**where).open() as room:
            if len(room.starts) > 1:
                _answer_side_by_side(steps, folder, run, options, room)
    against = options.pop("against", None)
    metrics_of_step: dict[int, dict[str, Any]] = {}
    of_slices: list[dict[str, Any]] = []
    shown: list[dict[str, Any]] = []
    warned: set[str] = set()
    for place, (step, model) in enumerate(steps.items(), 1):
        tqdm.write(f"step {step}, {place} of {len(steps)} checkpoints", file=sys.stderr)
        metrics = evaluate(model=model, out=_folder_of(folder, step), run=run, against=against, **where, **options)
        against = against or _folder_of(folder, step)  # the start
        of_run = {name: metrics["settings"].get(name) for name, value in settings.items() if value is None}
        write_json(folder / SWEEP_SETTINGS, settings | of_run)  # not before a step has shown that they can be used
        ks, protocol = metrics["settings"]["ks"], metrics["settings"]["protocols"][0]
        largest = [max(ks)]
        results = dict(metrics["results"][protocol])
        of_model, of_constrained = results.pop("model"), results.pop("constrained", None)
        metrics_of_step[step] = model_line(metrics) | _counts(of_model) | constrained_gain(metrics)
        of_slices += [{"step": step} | line for line in slice_lines(metrics["slices"])]
        if not shown:
            shown += [table_row(name, baseline, largest) for name, baseline in results.items()]
        shown.append(table_row(f"step {step}", of_model, largest))
        if of_constrained:
            shown.append(table_row(f"step {step}, constrained", of_constrained, largest))
        for warning in metrics["warnings"]:
            if warning not in warned:
                tqdm.write(f"warning: {warning}", file=sys.stderr)
        warned |= {*metrics["warnings"]}
    write_csv(folder / "slices.csv", of_slices)
    write_csv(folder / SWEEP, [{"step": step, **row} for step, row in metrics_of_step.items()])
    text = (
        f"{run} on {options['data']}, {of_model['n']} rows, protocol {protocol}\n"
        f"{text_table(shown, line_a_model=True)}\nwritten to {folder} (all k: {SWEEP})"
    )
    return text, metrics


def _answer_side_by_side(
    steps: Mapping[int, str], folder: Path, run: Path, options: Mapping[str, Any], room: Room
) -> None:
    """Have all checkpoints write their lists, which the evaluation of each step finds then."""
    options = dict(options)
    progress = options.pop("progress", True)
    (first, model), *others = steps.items()
    setup = set_up(model=model, out=_folder_of(folder, first), run=run, **options)
    setups = [setup, *(setup.of_model(model, _folder_of(folder, step)) for step, model in others)]
    requests = [of_one for of_step in setups for of_one in of_step.asked().values()]
    tqdm.write(f"{len(steps)} checkpoints, on {len(room.starts)} replicas side by side", file=sys.stderr)
    models_answers(requests, room, folder / "vllm.log", progress=progress, **setup.settings)


def _folder_of(folder: Path, step: int) -> Path:
    return folder / f"step_{step:06d}"


def _checked_settings(folder: Path, run: Path, start: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """What OUT/sweep.json shall say, None for what the run says. Raises UserError when it says something else."""
    settings: dict[str, Any] = {name: options.get(name) for name in SETTINGS}
    settings["constrained"] = bool(settings["constrained"])
    settings |= {name: os.path.abspath(options[name]) for name in ("data", "catalog")}
    settings["run"] = os.path.relpath(run, folder)  # the two may be moved together
    settings = json.loads(json.dumps(settings))
    file = folder / SWEEP_SETTINGS
    if file.exists():
        earlier = read_json(file)
        told = {name: option for name, option in options.items() if name not in ("progress", "against")}
        of_run = set_up(model=start, out=_folder_of(folder, 0), run=run, **told).scored_by
        now = {name: of_run.get(name) if value is None else value for name, value in settings.items()}
        if name := next((name for name in now if now[name] != earlier.get(name)), None):
            raise UserError(
                f"{folder}: it holds a sweep with {name} {earlier.get(name)}, this one has {now[name]}; give "
                f"another --out, or remove {SWEEP} and {SWEEP_SETTINGS} there to overwrite that sweep"
            )
    elif (folder / SWEEP).exists():
        raise UserError(
            f"{folder}: it holds a sweep of an earlier version, without {SWEEP_SETTINGS}; give another --out, or "
            f"remove {SWEEP} there to overwrite that sweep"
        )
    return settings


def _counts(summary: dict[str, Any]) -> dict[str, Any]:
    return {
        "in catalog": summary["catalog_hit_ratio"],
        "items per list": summary["items_per_list"],
        "list length errors": summary["list_length_errors"],
        "distinct items": summary["distinct_items"],
        "repeats per list": summary["repeats_per_list"],
        "n": summary["n"],
    }
