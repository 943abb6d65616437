"""`ray job submit` of a recipe to a cluster, followed to its end. Run by run_*.sh when RAY_ADDRESS is an http address.

    RAY_ADDRESS=http://head:8265 python -m recipes.submit rank_grpo [hydra overrides]

The code travels (runtime_env.yaml says what does not), data and models do not: their paths are made absolute here and
must exist on the cluster. The variables of README.md are handed on; secrets are not, the cluster's environment has
them.
"""

import asyncio
import os
import shlex
import sys
from pathlib import Path

import yaml

from convrec.errors import UserError
from recipes.variables import JUDGES, RECIPES, VARIABLES, overrides_from_environment

HERE = Path(__file__).resolve().parent.parent
# the others are recipes.<recipe>
MODULES = {recipe: ("recipes.judge.train", recipe.removeprefix("judge_")) for recipe in JUDGES}
PATHS = ("TRAIN_FILE", "VAL_FILE", "CATALOG_FILE", "SAVE_PATH")


def job_environment() -> dict[str, str]:
    """The recipe's variables as the job must see them: relative paths would point into the unpacked copy."""
    values = {variable.name: os.environ[variable.name] for variable in VARIABLES if variable.name in os.environ}
    for name in PATHS:
        if name in values:
            values[name] = os.path.abspath(os.path.expanduser(values[name]))
    model = values.get("MODEL_PATH", "")
    if model and (model.startswith((".", "~")) or Path(model).is_dir()):
        values["MODEL_PATH"] = os.path.abspath(os.path.expanduser(model))
    return values


def submit(recipe: str, arguments: list[str]) -> int:
    """Submit, print the job's log as it comes, and return 0 when the job succeeded, else 1."""
    from ray.job_submission import JobStatus, JobSubmissionClient

    overrides_from_environment(recipe, os.environ)  # a wrong value stops here, not on the cluster
    runtime_env = yaml.safe_load((HERE / "runtime_env.yaml").read_text())
    runtime_env["working_dir"] = str(HERE)
    runtime_env["env_vars"] = {**(runtime_env.get("env_vars") or {}), **job_environment()}
    client = JobSubmissionClient(os.environ["RAY_ADDRESS"])
    module = MODULES.get(recipe, (f"recipes.{recipe}",))
    entrypoint = shlex.join(["python", "-m", *module, *arguments])
    job = client.submit_job(entrypoint=entrypoint, runtime_env=runtime_env)
    print(f"submitted {job} to {os.environ['RAY_ADDRESS']}; stop it with: ray job stop {job}", file=sys.stderr)

    async def follow() -> None:
        async for lines in client.tail_job_logs(job):
            print(lines, end="")

    asyncio.run(follow())
    info = client.get_job_info(job)
    print(f"{job}: {info.status}", file=sys.stderr)
    return 0 if info.status == JobStatus.SUCCEEDED else 1


def main() -> int:
    if len(sys.argv) < 2 or sys.argv[1] not in RECIPES:
        print(f"usage: python -m recipes.submit {{{','.join(RECIPES)}}} [hydra overrides]", file=sys.stderr)
        return 2
    try:
        return submit(sys.argv[1], sys.argv[2:])
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
