"""The runs that a matrix file comes to: a training for each combination of lists among its variables and of seeds."""

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
from recipes.experiments.matrix_file import Matrix, RunSection, checked
from recipes.launch.recipe import RECIPES, Recipe
from recipes.launch.settings import compose_elsewhere
from recipes.launch.variables import VARIABLES, overrides_from_environment
from recipes.planning import work as planned_work

OF_THE_MATRIX = ("evaluation", "plots", "logs")  # what else it writes into OUT
COMMA_SEPARATED = ("LOGGER", "ASK")  # take several values at once: a list is one value, a list of lists is a grid
LONGEST_NAME = 150  # a folder's name has 255 bytes at most, and a job's log is called by it too
_FOLDER = re.compile(r"[A-Za-z0-9][\w.+=-]*", re.ASCII)
_UNSAFE = re.compile(r"[^\w.+-]+")  # in the name of a folder


@dataclass(frozen=True)
class MatrixRun:
    """One training, or a given model.

    start: the run it starts from, None for MODEL_PATH. point: its values of the file's lists. model: evaluated instead.
    """

    name: str
    variant: str  # the name without the seed
    recipe: str
    start: str | None
    variables: Mapping[str, str]
    overrides: Sequence[str] = ()
    group: str = ""  # its name in the file
    point: Mapping[str, str] = field(default_factory=dict)
    model: str | None = None

    @property
    def seed(self) -> str:
        return self.variables["SEED"]

    def environment(self, out: Path) -> dict[str, str]:
        """This process's, with the run's variables, its folder in `out` and the model that it starts from."""
        environment = {**os.environ, **self.variables, "SAVE_PATH": str(out / self.name)}
        return environment | ({"MODEL_PATH": str(out / self.start)} if self.start else {})


def expand_matrix(matrix: Matrix) -> list[MatrixRun]:
    """The trainings in order. Raises UserError that names the entry of `runs` and what is wrong with it.

    `name-LR=1e-6-s3407`; the seed is in the name where there are several. A run starts from the run of its `start` that
    has its seed, where that has several, and its values of the lists that both have.
    """
    runs: list[MatrixRun] = []
    for group, settings in matrix.runs.items():
        try:
            if not isinstance(group, str) or not _FOLDER.fullmatch(group) or group in OF_THE_MATRIX:
                raise UserError(
                    "the name of a run becomes a folder in out: letters, digits and . _ + = - alone, a letter or digit "
                    f"first, and none of {', '.join(OF_THE_MATRIX)}"
                )
            _add_runs(runs, group, checked(RunSection, settings or {}), matrix)
        except UserError as error:
            raise UserError(f"runs.{group}: {error}") from None
    if not runs:
        raise UserError("runs: there is none; name one, and a seed where seeds is given")
    return runs


def _add_runs(runs: list[MatrixRun], group: str, section: RunSection, matrix: Matrix) -> None:
    recipe = RECIPES[section.recipe]
    before = [run for run in runs if not run.model]
    seeds = matrix.seeds if section.seeds is None else section.seeds
    for values, point in combinations(recipe, matrix.variables or {}, section.variables or {}):
        variant = "-".join([group, *(f"{name}={_UNSAFE.sub('_', text).strip('_')}" for name, text in point.items())])
        for seed in seeds:
            variables = values | {"SEED": str(seed)}
            overrides_from_environment(recipe, variables)  # what is wrong is said now
            name = variant if len(seeds) == 1 else f"{variant}-s{seed}"
            if any(run.name == name for run in runs):
                raise UserError(f"{name}: two runs have this name; name one otherwise, or give other values")
            if len(name) > LONGEST_NAME:
                raise UserError(
                    f"{name}: longer than {LONGEST_NAME} letters; name it otherwise, or give shorter values"
                )
            run = MatrixRun(
                name=name,
                variant=variant,
                recipe=recipe.name,
                start=_start(section.start, variables, before) if section.start else None,
                variables=variables,
                overrides=section.overrides or (),
                group=group,
                point=point,
                model=section.model,
            )
            runs.append(run)


def _start(start: str, variables: Mapping[str, str], before: Sequence[MatrixRun]) -> str:
    """The run that this start is for a run with these variables."""
    seed = variables["SEED"]
    for run in before:
        if run.name in (start, f"{start}-s{seed}"):
            return run.name
    candidates = [run for run in before if run.group == start]
    if len({run.seed for run in candidates}) > 1:
        candidates = [run for run in candidates if run.seed == seed]
    same = [run for run in candidates if all(variables.get(name, value) == value for name, value in run.point.items())]
    if len(same) == 1:
        return same[0].name
    if same:
        raise UserError(f"start={start} is {len(same)} runs: name one of {', '.join(run.name for run in same)}")
    known = f"; there are {', '.join(run.name for run in candidates)}" if candidates else ""
    raise UserError(f"start={start}: no run of that name comes before it (seed {seed}{known})")


def combinations(
    recipe: Recipe, common: Mapping[str, Any], own: Mapping[str, Any]
) -> list[tuple[dict[str, str], dict[str, str]]]:
    """(variables, those of them that are from a list) of each run, the last list's values in turn first.

    common: of the whole matrix; a list there that the recipe does not read is left out. own: the run's, which win.
    Raises UserError for a variable that is none, a list that is empty or has a value twice, and a list that a recipe
    does not read.
    """
    known = {variable.name: bool(variable.collect_keys(recipe)) for variable in VARIABLES}
    fixed: dict[str, str] = {}
    lists: dict[str, list[str]] = {}
    for name, value in {**common, **own}.items():
        if name not in known:
            raise UserError(f"{name} is no variable of the recipes")
        if name == "SAVE_PATH":
            raise UserError("SAVE_PATH: a run's folder is its name in out; leave the variable out")
        nested = name in COMMA_SEPARATED
        if not isinstance(value, list) or (nested and not all(isinstance(one, list) for one in value)):
            fixed[name] = _text(value)
        elif known[name]:
            lists[name] = _values(name, value)
        elif name in own:
            raise UserError(f"{name}={value}: {recipe.name} does not read it, so its runs would all be the same")
    points = (dict(zip(lists, values, strict=True)) for values in itertools.product(*lists.values()))
    return [(fixed | point, point) for point in points]


def _values(name: str, value: list[Any]) -> list[str]:
    if name == "SEED":
        raise UserError(f"SEED={value}: several seeds are `seeds: {value}`, beside `variables`")
    texts = [_text(one) for one in value]
    if not texts or len(set(texts)) < len(texts):
        raise UserError(f"{name}={value}: a list has one value or more, each once")
    return texts


def _text(value: Any) -> str:
    """As it would be written in a shell: `console,file` of a list, `relevance: 1, diversity: 0.3` of a mapping."""
    if isinstance(value, list):
        return ",".join(map(str, value))
    if isinstance(value, dict):
        return ", ".join(f"{name}: {inner}" for name, inner in value.items())
    return str(value)


ONE_DEVICE = ["trainer.n_gpus_per_node=1"]  # where nothing says another number


def composed(runs: Sequence[MatrixRun], out: Path, on_cluster: bool = False) -> dict[str, Run[Any]]:
    """The settings of each run by its name; runs that differ in their seed share one, which takes up to a second.

    Raises UserError that names the run for settings that cannot be used, on a cluster there.
    """
    by_variant: dict[str, Run[Any]] = {}
    for run in runs:
        if run.variant in by_variant:
            continue
        try:
            training = compose_elsewhere(RECIPES[run.recipe], run.overrides, ONE_DEVICE, run.environment(out))
            if on_cluster:
                check_for_cluster(RECIPES[run.recipe], training, run.overrides)
        except UserError as error:
            raise UserError(f"{run.name}: {error}") from None
        by_variant[run.variant] = training
    return {run.name: by_variant[run.variant] for run in runs}


def count_steps(training: Run[Any]) -> int | None:
    """Return the steps of a run; None where they follow from epochs, and the data or the batch are not known yet."""
    settings = training.settings
    if settings.train_batch_size is None and not settings.total_steps:
        return None  # SFT's default depends on the devices
    try:
        return planned_work.count_training_steps(training)
    except OSError:
        return None


def is_finished(run: MatrixRun, training: Run[Any], out: Path) -> bool:
    steps = 0 if run.model else count_steps(training)
    return steps is not None and latest_step(out / run.name) >= steps


def described(runs: Sequence[MatrixRun], trainings: Mapping[str, Run[Any]], out: Path) -> str:
    """The line that is printed before the matrix, and after each run."""
    steps = {run.name: 0 if run.model else count_steps(trainings[run.name]) for run in runs}
    known = {name: count for name, count in steps.items() if count is not None}
    done = {name: min(latest_step(out / name), count) for name, count in known.items()}
    finished = sum(done[name] == count for name, count in known.items())
    text = f"{finished} of {len(runs)} runs finished; {sum(done.values()):,} of {sum(known.values()):,} steps"
    if unknown := len(runs) - len(known):
        text += f"; runs whose steps are unknown, as their data are not there yet: {unknown}"
    return text
