"""`ray job submit` of a recipe to a cluster, followed to its end: a training where RAY_ADDRESS is an http address.

    RAY_ADDRESS=http://head:8265 convrec submit rank_grpo [--detach] [hydra overrides]
    RAY_ADDRESS=http://head:8265 convrec submit --follow JOB      its log and exit status; Ctrl-C leaves it
    RAY_ADDRESS=http://head:8265 convrec submit --stop JOB        ask it to save a checkpoint and end

What travels: recipes/cluster/job_environment.py. Ctrl-C asks the job to save and end; a second one ends it at once; a
third stops waiting for that.
"""

from convrec.errors import says_user_errors
from recipes.cluster.jobs import client_of, follow, say, stop, submit
from recipes.launch import dry_run
from recipes.launch.recipe import RECIPES


@says_user_errors
def main(arguments: list[str]) -> int:
    if arguments[:1] in (["--help"], ["-h"]):
        print(__doc__)
        return 0
    try:
        if len(arguments) == 2 and arguments[0] == "--follow":
            return follow(client_of(arguments[1]), arguments[1])
        if len(arguments) == 2 and arguments[0] == "--stop":
            return stop(client_of(arguments[1]), arguments[1])
        if not arguments or arguments[0] not in RECIPES:
            training = f"{{{','.join(RECIPES)}}} [--detach] [hydra overrides]"
            say(f"usage: convrec submit {training} | --follow JOB | --stop JOB")
            return 2
        overrides = [argument for argument in arguments[1:] if argument != "--detach"]
        if (status := dry_run.answer(RECIPES[arguments[0]], overrides)) is not None:
            return status
        return submit(RECIPES[arguments[0]], overrides, detach="--detach" in arguments)
    except KeyboardInterrupt:
        say("interrupted; a job that was submitted goes on: ray job list")
        return 130
