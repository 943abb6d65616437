"""How much a matrix is, in runs and steps, and how much of it is done."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from omegaconf import DictConfig
from pyarrow import ArrowInvalid

from convrec.errors import UserError
from convrec.runs.folder import latest_step
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


def is_finished(run: MatrixRun, config: DictConfig, out: Path) -> bool:
    steps = steps_of(config)
    return steps is not None and latest_step(out / run.name) >= steps


def described(runs: Sequence[MatrixRun], configs: Mapping[str, DictConfig], out: Path) -> str:
    """The line that is printed before the matrix, and after each run."""
    steps = {run.name: steps_of(configs[run.name]) for run in runs}
    known = {name: count for name, count in steps.items() if count is not None}
    done = {name: min(latest_step(out / name), count) for name, count in known.items()}
    finished = sum(done[name] == count for name, count in known.items())
    text = f"{finished} of {len(runs)} runs finished; {sum(done.values()):,} of {sum(known.values()):,} steps"
    if unknown := len(runs) - len(known):
        text += f"; runs whose steps are unknown, as their data are not there yet: {unknown}"
    return text
