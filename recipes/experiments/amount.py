"""How much a matrix is: runs, steps, and hours by what its own runs have taken so far."""

import contextlib
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from statistics import mean

from omegaconf import DictConfig
from pyarrow import ArrowInvalid

from convrec.errors import UserError
from convrec.runs.folder import METRICS, latest_step
from convrec.runs.starts import read_starts
from recipes.experiments.matrix_runs import MatrixRun
from recipes.launch.recipe import RECIPES
from recipes.launch.settings import compose_files
from recipes.planning import work as planned_work

ONE_DEVICE = ["trainer.n_gpus_per_node=1"]  # where nothing says another number


def composed(runs: Sequence[MatrixRun], out: Path) -> dict[str, DictConfig]:
    """The settings of each run by its name; runs that differ in their seed share one, which takes up to a second.

    Raises UserError that names the run for settings that cannot be used.
    """
    by_variant: dict[str, DictConfig] = {}
    for run in runs:
        if run.variant in by_variant:
            continue
        try:
            config = compose_files(RECIPES[run.recipe], run.overrides, ONE_DEVICE, run.environment(out))
        except UserError as error:
            raise UserError(f"{run.name}: {error}") from None
        by_variant[run.variant] = config
    return {run.name: by_variant[run.variant] for run in runs}


def steps_of(config: DictConfig) -> int | None:
    """Of the whole run; None where it is said in epochs and the data or the batch are not known yet."""
    if config.trainer.total_training_steps:
        return int(config.trainer.total_training_steps)
    if config.data.train_batch_size is None:
        return None  # SFT's default depends on the devices
    try:
        return planned_work.steps_of(config, planned_work.rows_of(config))
    except (OSError, ArrowInvalid):
        return None


def seconds_a_step(run_folder: Path) -> float | None:
    """Of the last start that has trained: from its beginning to its last line of metrics, over the steps in between.

    So what a start takes until its first step, validations and checkpoints are in it. By the clock, as SFT's metrics
    have no times. None where no step has been trained.
    """
    begun = [datetime.fromisoformat(start["time"]).timestamp() for start in read_starts(run_folder)]
    for file in sorted((run_folder / METRICS).glob("[0-9]*.jsonl"), reverse=True):
        last = file.stat().st_mtime
        before = [time for time in begun if time <= last]
        steps = set()
        for line in file.read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(json.JSONDecodeError):  # being written
                entry = json.loads(line)
                if not all(name.startswith("val") for name in entry["data"]):
                    steps.add(entry["step"])
        if steps and before:
            return (last - max(before)) / len(steps)
    return None


def is_finished(run: MatrixRun, config: DictConfig, out: Path) -> bool:
    steps = steps_of(config)
    return steps is not None and latest_step(out / run.name) >= steps


def described(runs: Sequence[MatrixRun], configs: Mapping[str, DictConfig], out: Path) -> list[str]:
    """The lines that are printed before the matrix, and after each run."""
    steps = {run.name: steps_of(configs[run.name]) for run in runs}
    known = {name: count for name, count in steps.items() if count is not None}
    done = {name: min(latest_step(out / name), count) for name, count in known.items()}
    finished = sum(done[name] == count for name, count in known.items())
    text = f"{finished} of {len(runs)} runs finished; {sum(done.values()):,} of {sum(known.values()):,} steps"
    if unknown := len(runs) - len(known):
        text += f"; runs whose steps are unknown, as their data are not there yet: {unknown}"
    left = {name: count - done[name] for name, count in known.items()}
    return [text, _hours(runs, left, unknown, out)]


def _hours(runs: Sequence[MatrixRun], left: Mapping[str, int], unknown: int, out: Path) -> str:
    """Of these steps, by the run's own pace, else that of the same variant, else that of the recipe's other runs."""
    seconds = {run.name: seconds_a_step(out / run.name) for run in runs}
    hours = []
    for run in runs:
        if not left.get(run.name):
            continue
        for same in ("name", "variant", "recipe"):
            alike = [seconds[other.name] for other in runs if getattr(other, same) == getattr(run, same)]
            if known := [pace for pace in alike if pace is not None]:
                hours.append(left[run.name] * mean(known) / 3600)
                break
        else:
            unknown += 1
    parts = [] if hours or unknown else ["nothing is left to train"]
    if hours:
        parts.append(f"about {sum(hours):.1f} hours of training left, added up")
    if unknown:
        parts.append(f"runs whose hours are unknown until the first steps are done: {unknown}")
    return "; ".join(parts)
