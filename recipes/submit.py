"""`ray job submit` of a recipe to a cluster, followed to its end: a training where RAY_ADDRESS is an http address.

What travels: recipes/cluster/job_environment.py.
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
    try:
        if options.follow:
            return follow(connect_to_job(options.follow), options.follow)
        if options.stop:
            return stop(connect_to_job(options.stop), options.stop)
    except KeyboardInterrupt:
        return _tell_interrupted()
    name, *overrides = options.words or ("",)
    if name not in RECIPES:
        raise UserError(f"{name or 'RECIPE'}: give one of {', '.join(RECIPES)}, --follow JOB or --stop JOB")
    flags = {"--detach": options.detach, "--dry-run": options.dry_run, "--print-config": options.print_config}
    return submit_recipe(RECIPES[name], [*overrides, *(flag for flag, is_given in flags.items() if is_given)])


@exit_on_user_error
def submit_recipe(recipe: Recipe, arguments: Sequence[str]) -> int:
    """Submit a training with the arguments of its command, and --detach. Exit status."""
    overrides = [argument for argument in arguments if argument != "--detach"]
    try:
        if (status := dry_run.answer(recipe, overrides)) is not None:
            return status
        return submit(recipe, overrides, detach="--detach" in arguments)
    except KeyboardInterrupt:
        return _tell_interrupted()


def _tell_interrupted() -> int:
    say("interrupted; a job that was submitted goes on: ray job list")
    return 130
