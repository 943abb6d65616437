"""The runs of a matrix file: one training run for each combination of its listed values and seeds."""

import itertools
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from convrec.base.errors import UserError
from convrec.runs.folder import latest_step
from convrec.settings.run import Run
from recipes.cluster.job_environment import check_for_cluster
from recipes.experiments.matrix_file import Matrix, RunSection, validate_section
from recipes.launch.recipe import RECIPES, Recipe
from recipes.launch.settings import compose_elsewhere
from recipes.launch.variables import VARIABLES, overrides_from_environment
from recipes.planning import work as planned_work

RESERVED_NAMES = ("evaluation", "plots", "logs")  # other folders that the matrix writes into OUT
COMMA_SEPARATED = ("LOGGER", "ASK")  # variables with several values: a list is one value, a list of lists is a grid
MAX_NAME_LENGTH = 150  # file names have at most 255 bytes, and the name of a job's log contains that of its run
_FOLDER = re.compile(r"[A-Za-z0-9][\w.+=-]*", re.ASCII)
_UNSAFE = re.compile(r"[^\w.+-]+")  # in the name of a folder


@dataclass(frozen=True)
class MatrixRun:
    """A training run, or a given model that is only evaluated.

    Attributes:
        name: its folder in OUT.
        variant: the name without the seed.
        recipe: key of RECIPES.
        start: the run that it starts from; None for MODEL_PATH.
        variables: the recipe's variables.
        overrides: Hydra overrides.
        group: its entry in the file.
        point: its values of the variables that have lists in the file.
        model: a model that is evaluated without training; None for a training run.
    """

    name: str
    variant: str
    recipe: str
    start: str | None
    variables: Mapping[str, str]
    overrides: Sequence[str] = ()
    group: str = ""
    point: Mapping[str, str] = field(default_factory=dict)
    model: str | None = None

    @property
    def seed(self) -> str:
        return self.variables["SEED"]

    def make_environment(self, out: Path) -> dict[str, str]:
        """Return this process's environment with the run's variables, SAVE_PATH and the MODEL_PATH of its start.

        Args:
            out: folder of the matrix.
        """
        environment = {**os.environ, **self.variables, "SAVE_PATH": str(out / self.name)}
        return environment | ({"MODEL_PATH": str(out / self.start)} if self.start else {})


def expand_matrix(matrix: Matrix) -> list[MatrixRun]:
    """Return the runs of a matrix, in the order of the file.

    A run is named like `name-LR=1e-6-s3407`; the seed is part of the name only if there are several. If its `start`
    has several runs, it starts from the one with the same seed and the same values of the lists that both have.

    Raises:
        UserError: an entry of `runs` is wrong; the message names it.
    """
    runs: list[MatrixRun] = []
    for group, settings in matrix.runs.items():
        try:
            if not isinstance(group, str) or not _FOLDER.fullmatch(group) or group in RESERVED_NAMES:
                raise UserError(
                    "matrix.run-name",
                    "the name of a run becomes a folder in out: use letters, digits and . _ + = - only, begin with a "
                    f"letter or digit, and do not use {', '.join(RESERVED_NAMES)}",
                )
            _add_runs(runs, group, validate_section(RunSection, settings or {}), matrix)
        except UserError as error:
            raise UserError(error.code, f"runs.{group}: {error}") from None
    if not runs:
        raise UserError("matrix.no-runs", "runs: the matrix has no runs: add one, and a seed if `seeds` is set")
    return runs


def _add_runs(runs: list[MatrixRun], group: str, section: RunSection, matrix: Matrix) -> None:
    recipe = RECIPES[section.recipe]
    trainings = [run for run in runs if not run.model]
    seeds = matrix.seeds if section.seeds is None else section.seeds
    for values, point in expand_variables(recipe, matrix.variables or {}, section.variables or {}):
        variant = "-".join([group, *(f"{name}={_UNSAFE.sub('_', text).strip('_')}" for name, text in point.items())])
        for seed in seeds:
            variables = values | {"SEED": str(seed)}
            overrides_from_environment(recipe, variables)  # raises for a wrong value
            name = variant if len(seeds) == 1 else f"{variant}-s{seed}"
            if any(run.name == name for run in runs):
                raise UserError("matrix.duplicate-run", f"{name}: two runs have this name: rename one of them")
            if len(name) > MAX_NAME_LENGTH:
                raise UserError(
                    "matrix.long-name",
                    f"{name}: longer than {MAX_NAME_LENGTH} characters: use a shorter name or shorter values",
                )
            run = MatrixRun(
                name=name,
                variant=variant,
                recipe=recipe.name,
                start=_find_start(section.start, variables, trainings) if section.start else None,
                variables=variables,
                overrides=section.overrides or (),
                group=group,
                point=point,
                model=section.model,
            )
            runs.append(run)


def _find_start(start: str, variables: Mapping[str, str], trainings: Sequence[MatrixRun]) -> str:
    """Return the name of the earlier training run from which a run with these variables starts."""
    seed = variables["SEED"]
    for run in trainings:
        if run.name in (start, f"{start}-s{seed}"):
            return run.name
    candidates = [run for run in trainings if run.group == start]
    if len({run.seed for run in candidates}) > 1:
        candidates = [run for run in candidates if run.seed == seed]
    same = [run for run in candidates if all(variables.get(name, value) == value for name, value in run.point.items())]
    if len(same) == 1:
        return same[0].name
    if same:
        names = ", ".join(run.name for run in same)
        raise UserError("matrix.ambiguous-start", f"start={start}: {len(same)} runs match: name one of {names}")
    names = f"; there are {', '.join(run.name for run in candidates)}" if candidates else ""
    raise UserError("matrix.unknown-start", f"start={start}: no earlier run matches (seed {seed}{names})")


def expand_variables(
    recipe: Recipe, common: Mapping[str, Any], own: Mapping[str, Any]
) -> list[tuple[dict[str, str], dict[str, str]]]:
    """Return the variables of each run of an entry, one run for each combination of listed values.

    Args:
        recipe: the entry's recipe.
        common: variables of the whole matrix; lists that the recipe does not read are ignored.
        own: variables of the entry, which override the common ones.

    Returns:
        (all variables, those with a value from a list) of each run; the last list varies fastest.

    Raises:
        UserError: a variable is unknown, a list is empty or repeats a value, or the recipe does not read a list.
    """
    is_read = {variable.name: bool(variable.collect_keys(recipe)) for variable in VARIABLES}
    fixed: dict[str, str] = {}
    lists: dict[str, list[str]] = {}
    for name, value in {**common, **own}.items():
        if name not in is_read:
            raise UserError("matrix.unknown-variable", f"{name}: the recipes have no such variable")
        if name == "SAVE_PATH":
            raise UserError("matrix.save-path", f"SAVE_PATH={value}: each run has a folder in out: remove the variable")
        nested = name in COMMA_SEPARATED
        if not isinstance(value, list) or (nested and not all(isinstance(element, list) for element in value)):
            fixed[name] = _to_text(value)
        elif is_read[name]:
            lists[name] = _read_list(name, value)
        elif name in own:
            raise UserError(
                "matrix.unused-list",
                f"{name}={value}: {recipe.name} does not read it, so all its runs would be the same",
            )
    points = (dict(zip(lists, values, strict=True)) for values in itertools.product(*lists.values()))
    return [(fixed | point, point) for point in points]


def _read_list(name: str, value: list[Any]) -> list[str]:
    if name == "SEED":
        raise UserError("matrix.seed-variable", f"SEED={value}: write `seeds: {value}` next to `variables` instead")
    texts = [_to_text(element) for element in value]
    if not texts or len(set(texts)) < len(texts):
        raise UserError("matrix.invalid-list", f"{name}={value}: give at least one value, and each value once")
    return texts


def _to_text(value: Any) -> str:
    """Write a value as in a shell: `console,file` for a list, `relevance: 1, diversity: 0.1` for a mapping."""
    if isinstance(value, list):
        return ",".join(map(str, value))
    if isinstance(value, dict):
        return ", ".join(f"{name}: {inner}" for name, inner in value.items())
    return str(value)


ONE_DEVICE = ["trainer.n_gpus_per_node=1"]  # the default


def composed(runs: Sequence[MatrixRun], out: Path, on_cluster: bool = False) -> dict[str, Run[Any]]:
    """Compose the settings of each run; runs that differ only in their seed share them, as this takes up to a second.

    Args:
        runs: the runs of a matrix.
        out: the matrix's folder.
        on_cluster: the runs become jobs, so also check that they can be submitted.

    Returns:
        Name of a run -> its settings.

    Raises:
        UserError: settings are wrong; the message names the run.
    """
    by_variant: dict[str, Run[Any]] = {}
    for run in runs:
        if run.variant in by_variant:
            continue
        try:
            training = compose_elsewhere(RECIPES[run.recipe], run.overrides, ONE_DEVICE, run.make_environment(out))
            if on_cluster:
                check_for_cluster(RECIPES[run.recipe], training, run.overrides)
        except UserError as error:
            raise UserError(error.code, f"{run.name}: {error}") from None
        by_variant[run.variant] = training
    return {run.name: by_variant[run.variant] for run in runs}


def count_steps(training: Run[Any]) -> int | None:
    """Count the steps of a run.

    Args:
        training: the run as `compose_elsewhere` returns it.

    Returns:
        The number; None if it depends on epochs and the data or the batch size are still unknown.

    Raises:
        UserError: a training file is not parquet.
    """
    settings = training.settings
    if settings.train_batch_size is None and not settings.total_steps:
        return None  # SFT's default depends on the devices
    try:
        return planned_work.count_training_steps(training)
    except OSError:
        return None


def is_finished(run: MatrixRun, training: Run[Any], out: Path) -> bool:
    """Return whether a run has a checkpoint of its last step; a given model is always finished.

    Args:
        run: the run.
        training: its settings.
        out: folder of the matrix.
    """
    steps = 0 if run.model else count_steps(training)
    return steps is not None and latest_step(out / run.name) >= steps


def described(runs: Sequence[MatrixRun], trainings: Mapping[str, Run[Any]], out: Path) -> str:
    """Describe the progress of a matrix in one line: finished runs and steps.

    Args:
        runs: the runs.
        trainings: name of a run -> its settings; given models have none.
        out: folder of the matrix.
    """
    all_steps = {run.name: 0 if run.model else count_steps(trainings[run.name]) for run in runs}
    steps = {name: count for name, count in all_steps.items() if count is not None}
    steps_done = {name: min(latest_step(out / name), count) for name, count in steps.items()}
    num_finished = sum(steps_done[name] == count for name, count in steps.items())
    text = f"{num_finished} of {len(runs)} runs finished; {sum(steps_done.values()):,} of {sum(steps.values()):,} steps"
    if num_unknown := len(runs) - len(steps):
        text += f"; {num_unknown} with an unknown number of steps, because their data do not exist yet"
    return text
