"""How much a matrix is: runs, steps, and hours by what its own runs have taken so far."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import mean

from omegaconf import DictConfig
from pyarrow import ArrowInvalid

from convrec.errors import UserError
from convrec.runs.folder import METRICS, latest_step
from convrec.runs.starts import read_starts
from recipes.experiments.matrix_file import Run
from recipes.launch.recipe import RECIPES
from recipes.launch.settings import compose_files
from recipes.planning import work as planned_work


@dataclass(frozen=True)
class Work:
    """Of one run. steps: of all of it, None while its data are not there. done: of its last checkpoint. seconds: of a
    step so far, None where it has trained none."""

    run: Run
    steps: int | None
    done: int
    seconds: float | None

    @property
    def is_finished(self) -> bool:
        return self.steps is not None and self.done >= self.steps


def composed(runs: Sequence[Run], out: Path) -> dict[str, DictConfig]:
    """The settings of each run by its name; runs that differ in their seed share one, which takes up to a second.

    Raises UserError that names the run for settings that cannot be used.
    """
    of_variant: dict[str, DictConfig] = {}
    for run in runs:
        if run.variant in of_variant:
            continue
        try:
            config = compose_files(RECIPES[run.recipe], run.overrides, environment=run.environment(out))
        except UserError as error:
            raise UserError(f"{run.name}: {error}") from None
        of_variant[run.variant] = config
    return {run.name: of_variant[run.variant] for run in runs}


def work_of(runs: Sequence[Run], configs: Mapping[str, DictConfig], out: Path) -> list[Work]:
    return [
        Work(run, steps_of(configs[run.name]), latest_step(out / run.name), seconds_a_step(out / run.name))
        for run in runs
    ]


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
        steps = len(set(_trained_steps(file.read_text(encoding="utf-8").splitlines())))
        before = [time for time in begun if time <= last]
        if steps and before:
            return (last - max(before)) / steps
    return None


def _trained_steps(lines: Iterable[str]) -> Iterable[int]:
    """Steps of the lines that are not of a validation alone."""
    for line in lines:
        try:
            entry = json.loads(line)
        except json.JSONDecodeError:  # being written
            continue
        if not all(name.startswith("val") for name in entry["data"]):
            yield entry["step"]


def described(works: Sequence[Work]) -> list[str]:
    """The lines that are printed before the matrix, and after each run."""
    finished = sum(work.is_finished for work in works)
    known = [work for work in works if work.steps is not None]
    text = f"{len(works)} {_runs(len(works))}, {finished} of them finished; "
    text += f"{sum(min(work.done, work.steps or 0) for work in known):,} of {sum(w.steps or 0 for w in known):,} steps"
    if len(known) < len(works):
        missing = len(works) - len(known)
        text += f", and those of {missing} {_runs(missing)} whose data are not there yet"
    return [text, _hours([work for work in works if not work.is_finished], works)]


def _hours(left: Sequence[Work], works: Sequence[Work]) -> str:
    """What is left, by the run's own pace, else that of the same variant, else that of the recipe's other runs."""
    if not left:
        return "nothing is left to train"
    hours, unknown = 0.0, 0
    paces: dict[str, list[float]] = {}
    for work in left:
        pace = _pace(work, works)
        if pace is None or work.steps is None:
            unknown += 1
            continue
        hours += pace * (work.steps - work.done) / 3600
        paces.setdefault(work.run.recipe, []).append(pace)
    parts = []
    if paces:
        by = ", ".join(f"{mean(seconds):.1f} s a step of {recipe}" for recipe, seconds in paces.items())
        count = len(left) - unknown
        parts.append(f"about {hours:.1f} hours of training left in {count} {_runs(count)}, added up, at {by} so far")
    if unknown:
        parts.append(f"the hours of {unknown} {_runs(unknown)} are unknown until the first steps are done")
    return "; ".join(parts)


def _pace(work: Work, works: Sequence[Work]) -> float | None:
    """Seconds a step."""
    for same in (
        lambda other: other.run.name == work.run.name,
        lambda other: other.run.variant == work.run.variant,
        lambda other: other.run.recipe == work.run.recipe,
    ):
        if known := [other.seconds for other in works if same(other) and other.seconds is not None]:
            return mean(known)
    return None


def _runs(count: int) -> str:
    return "run" if count == 1 else "runs"
