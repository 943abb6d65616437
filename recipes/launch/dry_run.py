"""The flags `--print-config` and `--dry-run` of every recipe."""

import os
import sys

from convrec.base.errors import UserError
from convrec.settings.run import Run
from convrec.settings.training import TrainingConfig
from recipes.launch.recipe import Recipe
from recipes.launch.settings import compose, to_yaml
from recipes.launch.variables import find_misspelt_variables

FLAGS = {"--print-config", "--dry-run"}


def answer(recipe: Recipe, arguments: list[str]) -> int | None:
    """Print the config or the plan of a run if the arguments contain such a flag; start and write nothing.

    Returns:
        The exit status: 0, or 2 if the run would be refused; None if the arguments have no flag.
    """
    flags = FLAGS & set(arguments)
    overrides = [argument for argument in arguments if argument not in FLAGS]
    if not flags:
        return None
    for text in find_misspelt_variables(os.environ):
        print(f"warning: {text}", file=sys.stderr)
    try:
        run = compose(recipe.name, overrides)
        if "--print-config" in flags:
            print(to_yaml(run.verl_config), end="")
        if "--dry-run" in flags:
            print("\n".join(_describe_run(recipe, run, recipe.check(run))))
    except UserError as error:
        print(error.as_line(), file=sys.stderr)
        return 2
    return 0


def _describe_run(recipe: Recipe, run: Run[TrainingConfig], warnings: list[str]) -> list[str]:
    """Return the plan of a run as lines; raise UserError for failures that the doctor would report."""
    from recipes.planning.plan import summarize_plan
    from recipes.preflight import finding, findings

    where = f"{run.settings.num_nodes} x {run.gpus_per_node} {run.device}"
    lines = [f"{recipe.describe_method(run)} of {run.settings.model} on {where} into {run.folder}"]
    lines += [f"passes in {run.precision}"] if run.precision else []
    lines += summarize_plan(run)
    examined = findings.examine(run, on_cluster=False)
    lines += [f"{result.check}: {result.what}" for result in examined if result.check in ("disk", "memory", "model")]
    warnings += finding.stop_on_failure(examined)
    return [*lines, *(f"warning: {warning}" for warning in warnings), "nothing was started (--dry-run)"]
