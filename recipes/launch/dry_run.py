"""Answers `--help`, `--print-config` and `--dry-run` of every recipe."""

import os
import re
import sys
from typing import Any

from omegaconf import OmegaConf

from convrec.errors import UserError
from convrec.fields import Row
from convrec.kinds import shown, wanted
from convrec.runs.folder import setting
from convrec.settings.rank_grpo import ALGORITHM_GROUP
from convrec.settings.run import Run
from convrec.settings.training import TrainingConfig
from recipes.launch.recipe import Recipe
from recipes.launch.settings import as_yaml, compose, compose_files
from recipes.launch.variables import VARIABLES, misspelt_variables

FLAGS = {"--help", "-h", "--print-config", "--dry-run"}


def answer(recipe: Recipe, arguments: list[str]) -> int | None:
    """Print what the flags among the arguments ask for; the exit status, or None where a run is asked for.

    0, or 2 where the run would be refused. Ray is not started, and nothing is written.
    """
    flags, overrides = FLAGS & set(arguments), [argument for argument in arguments if argument not in FLAGS]
    if not flags:
        return None
    if flags & {"--help", "-h"}:
        print(help_text(recipe))
        return 0
    for text in misspelt_variables(os.environ):
        print(f"warning: {text}", file=sys.stderr)
    try:
        run = compose(recipe.name, overrides)
        if "--print-config" in flags:
            print(as_yaml(run.verl_config), end="")
        if "--dry-run" in flags:
            print("\n".join(_described(recipe, run, recipe.check(run))))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def defaults_of(recipe: Recipe) -> dict[str, str]:
    """Variable -> what it is where nobody sets it, in words; of those that the recipe reads."""
    config: Any = OmegaConf.to_container(compose_files(recipe, [], environment={}), resolve=False)
    defaults = {}
    for key, row in recipe.rows.items():
        if row.setting.variable:
            value = setting(config, "run.algorithm" if key == ALGORITHM_GROUP else key)
            defaults[row.setting.variable] = _in_words(recipe, row, value)
    return defaults


def _in_words(recipe: Recipe, row: Row, value: Any) -> str:
    if row.setting.default or value is None:
        return row.setting.default or row.setting.null
    if reference := re.fullmatch(r"\$\{([\w.]+)\}", str(value)):
        return recipe.rows[reference[1]].setting.variable
    return ", ".join(value) if isinstance(value, list) else shown(value)


def help_text(recipe: Recipe) -> str:
    """How the recipe is started, its environment variables with their defaults, and its flags."""
    defaults = defaults_of(recipe)
    rows = [
        (variable.name, defaults[variable.name], f"{variable.help} [{wanted(variable.kind)}]")
        for variable in VARIABLES
        if variable.name in defaults
    ]
    width, middle = (max(len(row[column]) for row in rows) for column in (0, 1))
    table = [f"  {name:{width}}  {default:{middle}}  {text}" for name, default, text in rows]
    return "\n".join(
        [
            f"usage: [VARIABLE=value ...] bash {recipe.script} [--dry-run] [--print-config] [hydra overrides]",
            "",
            "  --dry-run       check everything and say what would run: steps, checkpoints, memory, hours",
            "  --print-config  the whole config, before interpolation",
            "",
            "Variables, their defaults, what they are, and [what they take]:",
            *table,
            "",
            "With RAY_ADDRESS=http://head:8265 the run is submitted to that cluster and followed.",
        ]
    )


def _described(recipe: Recipe, run: Run[TrainingConfig], warnings: list[str]) -> list[str]:
    """The run in lines of text. Raises UserError for what the doctor calls a failure."""
    from recipes.planning.plan import summary
    from recipes.preflight import finding, findings

    where = f"{run.settings.num_nodes} x {run.gpus_per_node} {run.device}"
    lines = [f"{recipe.describe_method(run)} of {run.settings.model} on {where} into {run.folder}"]
    lines += [f"passes in {run.precision}"] if run.precision else []
    lines += summary(run)
    examined = findings.examine(run, on_cluster=False)
    lines += [f"{found.check}: {found.what}" for found in examined if found.check in ("disk", "memory", "model")]
    warnings += finding.stop_on_failure(examined)
    return [*lines, *(f"warning: {warning}" for warning in warnings), "nothing was started (--dry-run)"]
