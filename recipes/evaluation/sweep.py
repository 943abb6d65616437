"""Evaluation of all checkpoints of a run on one split: how recommendation, not only the loss, changed in training.

OUT/step_000040/ is the evaluation of a step (see recipes.evaluate); OUT/sweep.json has the settings of all. After an
interruption, each step reuses its generations. The run may be training: steps that it removes meanwhile are left out.
"""

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from convrec.base.errors import UserError
from convrec.base.files import read_json, write_json
from convrec.base.same_request import differences, json_roundtrip
from convrec.inference.generate import reuse_engines
from convrec.report.curves import SWEEP, SWEEP_SETTINGS, write_csv
from convrec.report.page import format_table, make_table_row
from convrec.runs.folder import LATEST, latest_step, saved_steps, start_model
from recipes.evaluation.options import EvaluationOptions
from recipes.evaluation.scoring import SCORED_WITH, get_comparable_settings, make_model_line
from recipes.evaluation.setup import DIALOGUE_OPTIONS, Evaluation, prepare_evaluation
from recipes.evaluation.single import answer_and_score
from recipes.evaluation.slices import make_slice_lines

# Settings of an evaluation that change figures: sweeps that differ in one must not share a folder.
SETTINGS = (*SCORED_WITH, "seed", "max_prompt_tokens", "max_tokens", "constrained", "allow")


def find_sweep_models(run: Path, start: str | None = None) -> dict[int, str]:
    """Find the models of a sweep.

    Args:
        run: folder of the run.
        start: the initial model; None: as the run's config.yaml names it.

    Returns:
        Step -> model, in ascending order: 0 is the initial model, the others are RUN/global_step_N.

    Raises:
        UserError: The folder has no complete checkpoint, its newest one has no model, or the initial model is missing.
    """
    if not (run / LATEST).exists():
        raise UserError(
            "evaluation.no-checkpoint", f"--sweep {run}: no {LATEST}. Name a run folder with a complete checkpoint."
        )
    begin = start or start_model(run)
    if not begin:
        raise UserError(
            "evaluation.unknown-initial-model", f"{run}: no config.yaml names the initial model. Name it with --start."
        )
    if not start and os.path.isabs(begin) and not Path(begin).exists():
        raise UserError(
            "evaluation.missing-initial-model",
            f"{run}/config.yaml: the initial model {begin} is gone. Name its new place with --start.",
        )
    steps = saved_steps(run)
    if latest_step(run) not in steps:
        raise UserError(
            "evaluation.removed-model",
            f"{run}/global_step_{latest_step(run)}: the newest checkpoint has no model any more. Resume the run to "
            "save another.",
        )
    return {0: begin, **{step: str(run / f"global_step_{step}") for step in steps}}


@reuse_engines()
def sweep_run(options: EvaluationOptions, start: str | None = None) -> str:
    """Evaluate every step of the run `options.model` and write OUT/sweep.csv, after an error with the steps before it.

    The initial model is evaluated with the run's settings. Baselines are listed once, and each warning is printed once.

    Args:
        options: of each evaluation; `model` is the run folder.
        start: the initial model; None: as the run's config.yaml names it.

    Returns:
        The table to print, at the largest k.

    Raises:
        UserError: A model or file cannot be used, or OUT holds another sweep.
    """
    run = Path(options.model or "").expanduser()
    folder = Path(options.out)
    steps = find_sweep_models(run, start)
    first = prepare_evaluation(replace(options, model=steps[0], out=_get_step_folder(folder, 0), run=str(run)))
    settings = _check_settings(folder, run, first)
    against = options.against or first.options.out
    tables = _Tables(settings["protocol"], [max(settings["ks"])])
    try:
        for number, (step, model) in enumerate(steps.items(), 1):
            tqdm.write(f"step {step}, {number} of {len(steps)} checkpoints", file=sys.stderr)
            try:
                evaluation = first.prepare_model(model, _get_step_folder(folder, step), against) if step else first
                metrics = answer_and_score(evaluation)
            except Exception:
                if step == 0 or step in saved_steps(run):
                    raise
                tqdm.write(f"{model}: the run has removed this checkpoint, so the sweep leaves it out", file=sys.stderr)
                continue
            write_json(folder / SWEEP_SETTINGS, settings)  # only now: a step that failed must not leave settings behind
            tables.add(step, metrics)
    finally:
        tables.write(folder)
    return (
        f"{run} on {options.data}, {tables.num_rows} rows, protocol {settings['protocol']}\n"
        f"{format_table(tables.shown, line_a_model=True)}\nwritten to {folder} (all k: {SWEEP})"
    )


class _Tables:
    """The tables of a sweep, which grow with each step.

    Attributes:
        shown: rows of the table to print.
        num_rows: rows of the split.
    """

    def __init__(self, protocol: str, largest: list[int]) -> None:
        """Start empty tables.

        Args:
            protocol: whose results are shown.
            largest: the only k that is shown.
        """
        self._protocol = protocol
        self._largest = largest
        self._steps: list[dict[str, Any]] = []
        self._slices: list[dict[str, Any]] = []
        self._warned: set[str] = set()
        self.shown: list[dict[str, Any]] = []
        self.num_rows = 0

    def add(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Add a step's evaluation; the first one brings the baselines. Each warning is printed once."""
        results = dict(metrics["results"][self._protocol])
        model_result = results.pop("model")
        constrained_result = results.pop("constrained", None)
        self.num_rows = model_result["n"]
        self._steps.append({"step": step} | make_model_line(metrics))
        self._slices += [{"step": step} | line for line in make_slice_lines(metrics["slices"])]
        if not self.shown:
            self.shown += [make_table_row(name, baseline, self._largest) for name, baseline in results.items()]
        self.shown.append(make_table_row(f"step {step}", model_result, self._largest))
        if constrained_result:
            self.shown.append(make_table_row(f"step {step}, constrained", constrained_result, self._largest))
        for warning in metrics["warnings"]:
            if warning not in self._warned:
                tqdm.write(f"warning: {warning}", file=sys.stderr)
        self._warned |= {*metrics["warnings"]}

    def write(self, folder: Path) -> None:
        """Write sweep.csv and slices.csv; without a step, those of an earlier sweep stay."""
        if self._steps:
            write_csv(folder / "slices.csv", self._slices)
            write_csv(folder / SWEEP, self._steps)


def _get_step_folder(folder: Path, step: int) -> str:
    return str(folder / f"step_{step:06d}")


def _check_settings(folder: Path, run: Path, evaluation: Evaluation) -> dict[str, Any]:
    """Return the content of OUT/sweep.json. Raises UserError if the file holds other settings."""
    chosen = [*SETTINGS, *(name for name in DIALOGUE_OPTIONS if name in evaluation.settings)]
    settings = get_comparable_settings(evaluation.settings) | {name: evaluation.settings[name] for name in chosen}
    settings["run"] = os.path.relpath(run, folder)  # the two may be moved together
    file = folder / SWEEP_SETTINGS
    if file.exists() and (other := differences(read_json(file), json_roundtrip(settings))):
        raise UserError(
            "evaluation.other-sweep",
            f"--out {folder}: holds a sweep with other settings ({', '.join(other)}). Name another folder, or remove "
            f"its {SWEEP_SETTINGS} to overwrite that sweep.",
        )
    return settings
