"""Answers `--print-config` and `--dry-run` of every recipe."""

import os
import sys

from convrec.base.errors import UserError
from convrec.settings.run import Run
from convrec.settings.training import TrainingConfig
from recipes.launch.recipe import Recipe
from recipes.launch.settings import as_yaml, compose
from recipes.launch.variables import misspelt_variables

FLAGS = {"--print-config", "--dry-run"}


def answer(recipe: Recipe, arguments: list[str]) -> int | None:
    """Print what the flags among the arguments ask for; the exit status, or None where a run is asked for.

    0, or 2 where the run would be refused. Ray is not started, and nothing is written.
    """
    flags = FLAGS & set(arguments)
    overrides = [argument for argument in arguments if argument not in FLAGS]
    if not flags:
        return None
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
