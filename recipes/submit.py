"""Submit a recipe as a Ray job and follow it to its end; training commands do this if RAY_ADDRESS is an http address.

Uploaded files and variables: recipes/cluster/job_environment.py.
"""

from collections.abc import Sequence

from convrec.base.errors import UserError, exit_on_user_error
from convrec.base.options import command
from recipes.cluster.jobs import connect_to_job, follow, say, stop, submit
from recipes.launch import dry_run
from recipes.launch.recipe import RECIPES, Recipe
from recipes.options.cluster import SubmitOptions


@command(SubmitOptions)
def main(options: SubmitOptions) -> int:
    """Submit, follow or stop a job; return the exit status."""
    try:
        if options.follow:
            return follow(connect_to_job(options.follow), options.follow)
        if options.stop:
            return stop(connect_to_job(options.stop), options.stop)
    except KeyboardInterrupt:
        return _report_interruption()
    name, *overrides = options.words or ("",)
    if name not in RECIPES:
        raise UserError(
            "submit.unknown-recipe",
            f"{name or 'RECIPE'}: not a recipe. Name one of {', '.join(RECIPES)}, --follow JOB or --stop JOB.",
        )
    flags = {"--detach": options.detach, "--dry-run": options.dry_run, "--print-config": options.print_config}
    return submit_recipe(RECIPES[name], [*overrides, *(flag for flag, is_given in flags.items() if is_given)])


@exit_on_user_error
def submit_recipe(recipe: Recipe, arguments: Sequence[str]) -> int:
    """Submit a training run.

    Args:
        recipe: the recipe.
        arguments: overrides of its command line, with --detach and the flags of `dry_run`.

    Returns:
        The exit status: the job's, 130 after a Ctrl-C, 2 for wrong settings.
    """
    overrides = [argument for argument in arguments if argument != "--detach"]
    try:
        if (status := dry_run.answer(recipe, overrides)) is not None:
            return status
        return submit(recipe, overrides, detach="--detach" in arguments)
    except KeyboardInterrupt:
        return _report_interruption()


def _report_interruption() -> int:
    say("interrupted; a submitted job continues: ray job list")
    return 130
