"""A matrix file: what it says, and the runs that it comes to.

benchmarks/studies/redial_matrix.yaml is an annotated one.
"""

import inspect
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from convrec.errors import UserError
from convrec.kinds import NonNegativeInteger, PositiveInteger, Text, did_you_mean, fits, one_of, shown, wanted
from convrec.lists.metrics import PROTOCOLS
from recipes.evaluation.baselines import BASELINES
from recipes.evaluation.setup import set_up
from recipes.evaluation.single import evaluate
from recipes.experiments import grid
from recipes.launch.recipe import RECIPES
from recipes.launch.variables import overrides_from_environment

KINDS = [recipe.name for recipe in RECIPES.values() if recipe.answers == "lists"]
SECTIONS = ("out", "prepare", "variables", "seeds", "runs", "evaluate")
OF_A_RUN = ("recipe", "start", "seeds", "variables", "overrides")
LIKE = {  # what sections can look like
    "runs": "{sft: {recipe: sft}}",
    "evaluate": "{data: test.parquet, catalog: catalog.parquet}",
    "variables": "{LR: 1e-6}",
    "a run": "{recipe: sft, seeds: [3407]}",
}
LISTS = {  # of `evaluate`
    "baselines": one_of(BASELINES),
    "protocols": one_of(PROTOCOLS),
    "slices": Text,
    "ks": PositiveInteger,
}
NEEDED = {"data": "the split to score", "catalog": "the catalog of its items"}  # of `evaluate`
OF_EACH_RUN = {"model", "out", "against"}  # what `evaluate` is given for each run
OF_THE_MATRIX = ("evaluation", "plots", "logs")  # what else it writes into OUT
_FOLDER = re.compile(r"[A-Za-z0-9][\w.+=-]*", re.ASCII)
LONGEST_NAME = 150  # a folder's name has 255 bytes at most, and a job's log is called by it too


@dataclass(frozen=True)
class Run:
    """One training.

    start: the run it starts from, None for MODEL_PATH of its variables. point: its values of the lists in the file.
    """

    name: str
    variant: str  # the name without the seed
    recipe: str
    start: str | None
    variables: Mapping[str, str]
    overrides: Sequence[str] = ()
    group: str = ""  # its name in the file
    point: Mapping[str, str] = field(default_factory=dict)

    @property
    def seed(self) -> str:
        return self.variables["SEED"]

    def environment(self, out: Path) -> dict[str, str]:
        """This process's, with the run's variables, its folder in `out` and the model that it starts from."""
        environment = {**os.environ, **self.variables, "SAVE_PATH": str(out / self.name)}
        return environment | ({"MODEL_PATH": str(out / self.start)} if self.start else {})


def read_matrix(path: Path) -> dict[str, Any]:
    """The file with environment variables filled in. Raises UserError naming what is unset, unknown or missing."""
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    try:
        text = os.path.expandvars(path.read_text(encoding="utf-8"))
        matrix = yaml.safe_load(text)
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"{path}: not readable as YAML ({error}); indent with spaces, close what is opened") from None
    if unset := re.search(r"\$\{?([A-Za-z_]\w*)", "\n".join(line.split("#")[0] for line in text.splitlines())):
        raise UserError(f"{path}: the environment variable {unset[1]} is not set")
    if not isinstance(matrix, dict) or not {"out", "runs", "evaluate"} <= set(matrix):
        raise UserError(f"{path}: it needs out, runs and evaluate")
    try:
        _check_names(matrix, SECTIONS, "section of a matrix")
        if not isinstance(matrix["out"], str) or not matrix["out"]:
            raise UserError(f"out: expected the name of a folder; it is {shown(matrix['out'])}")
        _check_prepare(matrix.get("prepare") or [])
        for section in ("runs", "evaluate"):
            _check_mapping(section, matrix[section])
        _check_mapping("variables", matrix.get("variables") or {})
        if "seeds" in matrix:
            _check_list("seeds", matrix["seeds"], NonNegativeInteger)
        _check_evaluate(matrix["evaluate"])
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    return matrix


def _check_prepare(steps: Any) -> None:
    for step in steps if isinstance(steps, list) else [steps]:
        if not fits(dict[str, Text], step) or set(step) != {"creates", "run"}:
            raise UserError(f"prepare: expected {{creates: FILE, run: COMMAND}} for each step; one is {shown(step)}")


def _check_evaluate(given: Mapping[str, Any]) -> None:
    known = {name for function in (evaluate, set_up) for name in inspect.signature(function).parameters} - {"options"}
    _check_names(given, sorted(known - OF_EACH_RUN), "setting of an evaluation", "evaluate.")
    for name, what in NEEDED.items():
        if not isinstance(given.get(name), str):
            raise UserError(f"evaluate.{name}: missing; give {what}, a parquet file")
    for name in LISTS.keys() & given.keys():
        _check_list(f"evaluate.{name}", given[name], LISTS[name])


def _check_names(given: Mapping[str, Any], known: Sequence[str], what: str, prefix: str = "") -> None:
    for name in given:
        if name not in known:
            raise UserError(f"{prefix}{name} is no {what}; {did_you_mean(str(name), known)}")


def _check_mapping(section: str, value: Any) -> None:
    if not isinstance(value, dict):
        raise UserError(f"{section}: expected names with their values, such as {LIKE[section]}")


def _check_list(section: str, value: Any, kind: Any) -> None:
    if not isinstance(value, list) or not all(fits(kind, one) for one in value):
        raise UserError(f"{section}: expected a list in [], each of it {wanted(kind)}; it is {shown(value)}")


def runs_of(matrix: Mapping[str, Any]) -> list[Run]:
    """The trainings in order. One with lists among its variables, or several seeds, becomes a run for each combination.

    `name-LR=1e-6-s3407`; the seed is in the name where there are several. A run starts from the run of its `start` that
    has its seed, where that has several, and its values of the lists that both have.
    """
    runs: list[Run] = []
    for group, given in matrix["runs"].items():
        try:
            runs += _runs_of_group(group, given or {}, matrix, runs)
        except UserError as error:
            raise UserError(f"runs.{group}: {error}") from None
    if not runs:
        raise UserError("runs: there is none; name one, and a seed where seeds is given")
    return runs


def _runs_of_group(group: str, given: Mapping[str, Any], matrix: Mapping[str, Any], before: Sequence[Run]) -> list[Run]:
    if not isinstance(group, str) or not _FOLDER.fullmatch(group) or group in OF_THE_MATRIX:
        raise UserError(
            "the name of a run becomes a folder in out: letters, digits and . _ + = - alone, a letter or digit first, "
            f"and none of {', '.join(OF_THE_MATRIX)}"
        )
    _check_mapping("a run", given)
    _check_names(given, OF_A_RUN, "setting of a run")
    _check_mapping("variables", given.get("variables") or {})
    recipe, start = given.get("recipe", "rank_grpo"), given.get("start")
    if recipe not in KINDS:
        raise UserError(f"recipe={recipe}: one of {', '.join(KINDS)}")
    seeds = given.get("seeds", matrix.get("seeds", [3407]))
    _check_list("seeds", seeds, NonNegativeInteger)
    overrides = given.get("overrides") or []
    _check_list("overrides", overrides, Text)
    made: list[Run] = []
    taken = {run.name for run in before}
    for values, point in grid.combinations(
        RECIPES[recipe], matrix.get("variables") or {}, given.get("variables") or {}
    ):
        if "SAVE_PATH" in values:
            raise UserError("SAVE_PATH: a run's folder is its name in out; leave the variable out")
        variant = f"{group}-{grid.label(point)}" if point else group
        for seed in seeds:
            variables = values | {"SEED": str(seed)}
            overrides_from_environment(RECIPES[recipe], variables)  # what is wrong is said now
            name = variant if len(seeds) == 1 else f"{variant}-s{seed}"
            if name in taken or len(name) > LONGEST_NAME:
                wrong = "two runs have this name" if name in taken else f"longer than {LONGEST_NAME} letters"
                raise UserError(f"{name}: {wrong}; name it otherwise, or give shorter or other values")
            taken.add(name)
            of_start = _start(start, variables, before) if start else None
            made.append(Run(name, variant, recipe, of_start, variables, overrides, group, point))
    return made


def _start(start: str, variables: Mapping[str, str], before: Sequence[Run]) -> str:
    """The run that this start is for a run with these variables."""
    seed = variables["SEED"]
    names = {run.name for run in before}
    for exact in (start, f"{start}-s{seed}"):
        if exact in names:
            return exact
    of_start = [run for run in before if run.group == start]
    if len({run.seed for run in of_start}) > 1:
        of_start = [run for run in of_start if run.seed == seed]
    same = [run for run in of_start if all(variables.get(name, value) == value for name, value in run.point.items())]
    if len(same) == 1:
        return same[0].name
    if same:
        raise UserError(f"start={start} is {len(same)} runs: name one of {', '.join(run.name for run in same)}")
    there = f"; there are {', '.join(run.name for run in of_start)}" if of_start else ""
    raise UserError(f"start={start}: no run of that name comes before it (seed {seed}{there})")
