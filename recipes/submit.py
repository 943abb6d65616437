"""`ray job submit` of a recipe to a cluster, followed to its end. Run by run_*.sh when RAY_ADDRESS is an http address.

    RAY_ADDRESS=http://head:8265 python -m recipes.submit rank_grpo [--detach] [hydra overrides]
    RAY_ADDRESS=http://head:8265 python -m recipes.submit --follow JOB      its log and exit status; Ctrl-C leaves it
    RAY_ADDRESS=http://head:8265 python -m recipes.submit --stop JOB        ask it to save a checkpoint and end

The code travels (runtime_env.yaml says what), data and models do not: their paths are made absolute here and must exist
on every node. The variables of README.md are handed on, and those of SETTINGS; secrets are not, the cluster's
environment has them. Ctrl-C asks the job to save and end; a second one ends it at once.
"""

import asyncio
import contextlib
import logging
import os
import re
import shlex
import sys
import threading
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from convrec.errors import UserError
from convrec.saving import STOP, SUBMISSION_VARIABLE
from recipes.variables import JUDGES, RECIPES, VARIABLES, overrides_from_environment

HERE = Path(__file__).resolve().parent.parent
# the others are recipes.<recipe>
MODULES = {recipe: ("recipes.judge.train", recipe.removeprefix("judge_")) for recipe in JUDGES}
PATHS = {  # variable -> key in conf/<recipe>.yaml with its default
    "TRAIN_FILE": "data.train_files",
    "VAL_FILE": "data.val_files",
    "CATALOG_FILE": "convrec.catalog_file",
    "SAVE_PATH": "trainer.default_local_dir",
}
# What else of the caller's environment a job needs: how libraries behave there. Never what looks like a secret.
SETTINGS = re.compile(r"(NCCL|GLOO|VLLM|VERL|HF_HUB|HF_DATASETS|TORCH|SWANLAB|WANDB)_\w+|HF_HOME|TRANSFORMERS_OFFLINE")
SECRETS = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL", re.IGNORECASE)
POLL_SECONDS = 1.0
STOP_SECONDS = 60.0
AGENT_SECONDS = 120.0
ASKED = "asked the job to save a checkpoint and end, at the end of its step"


def job_environment(recipe: str, environment: Mapping[str, str]) -> dict[str, str]:
    """The variables as the job must see them: relative paths, defaults too, would point into the unpacked copy."""
    defaults = yaml.safe_load((HERE / "conf" / f"{recipe}.yaml").read_text())
    values = {
        name: value
        for name, value in environment.items()
        if name in {variable.name for variable in VARIABLES} or (SETTINGS.fullmatch(name) and not SECRETS.search(name))
    }
    known = {variable.name for variable in VARIABLES if recipe in variable.keys}
    for name, key in PATHS.items():
        section, entry = key.split(".")
        default = defaults.get(section, {}).get(entry)
        if name == "SAVE_PATH":
            model = values.get("MODEL_PATH") or _variable_default("MODEL_PATH")
            default = f"checkpoints/{recipe}/{Path(model).name}"
        if name in known and (values.get(name) or default):
            values[name] = os.path.abspath(os.path.expanduser(values.get(name) or default))
    model = values.get("MODEL_PATH", "")
    if model and (model.startswith((".", "~", "/")) or Path(model).is_dir()):
        values["MODEL_PATH"] = os.path.abspath(os.path.expanduser(model))
    return values


def _variable_default(name: str) -> str:
    return next(variable.default for variable in VARIABLES if variable.name == name)


def refuse_relative_paths(recipe: str, arguments: list[str]) -> None:
    """Raise UserError for an override that names a file relative to a folder that the job does not have."""
    path_keys = {
        key
        for variable in VARIABLES
        if variable.name in (*PATHS, "MODEL_PATH")
        for key in variable.keys.get(recipe, ())
    }
    for argument in arguments:
        key, _, value = argument.lstrip("+~").partition("=")
        for part in value.strip("[]\"'").split(","):
            text = part.strip().strip("\"'")
            is_path = key in path_keys or key.endswith(("_dir", "_path", "_file", "_files"))
            exists = bool(text) and Path(text).expanduser().exists()
            is_absolute = text.startswith(("/", "${")) or "://" in text
            is_hub_id = key.endswith("model.path") and text.count("/") == 1 and text[0] not in ".~" and not exists
            if is_path and text not in ("", "null") and not is_absolute and not is_hub_id:
                raise UserError(f"{argument}: a relative path means nothing on the cluster: give an absolute one")


def runtime_environment(recipe: str, environment: Mapping[str, str]) -> dict[str, Any]:
    """runtime_env.yaml with this folder as what is uploaded, and the caller's variables."""
    runtime_env = yaml.safe_load((HERE / "runtime_env.yaml").read_text())
    runtime_env["working_dir"] = str(HERE)
    runtime_env["env_vars"] = {**(runtime_env.get("env_vars") or {}), **job_environment(recipe, environment)}
    return runtime_env


def connect(address: str) -> Any:
    """A client of the cluster's job API. Raises UserError when it does not answer, refuses us, or has another Ray."""
    import ray
    from ray.job_submission import JobSubmissionClient

    try:
        client = JobSubmissionClient(address)
        cluster_version = client._do_request("GET", "/api/version").json()["ray_version"]
    except Exception as error:
        text = str(error).strip()
        if "token" in text.lower() or "401" in text or "403" in text:
            raise UserError(
                f"RAY_ADDRESS={address}: the cluster asks for a token (Ray turns that on by itself). Set "
                "RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH to a copy of the head node's ~/.ray/auth_token"
            ) from error
        first_line = (text.splitlines() or [type(error).__name__])[0]
        raise UserError(
            f"RAY_ADDRESS={address}: no answer ({first_line}). It is the address of the dashboard, http://head:8265: "
            "is Ray running there (`ray start --head --dashboard-host=...`), and the port reachable from here?"
        ) from error
    if cluster_version != ray.__version__:
        raise UserError(
            f"RAY_ADDRESS={address}: the cluster runs Ray {cluster_version}, here is Ray {ray.__version__}: install "
            "the same version in both places"
        )
    return client


def submit(recipe: str, arguments: list[str], detach: bool = False) -> int:
    """Submit, print the job's log as it comes, and return its exit status (1 when it has none)."""
    overrides_from_environment(recipe, os.environ)  # a wrong value stops here, not on the cluster
    refuse_relative_paths(recipe, arguments)
    address = os.environ["RAY_ADDRESS"]
    client = connect(address)
    runtime_env = runtime_environment(recipe, os.environ)
    job = f"{recipe.replace('_', '-')}-{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:4]}"
    runtime_env["env_vars"][SUBMISSION_VARIABLE] = job
    save_path = next(
        (a.partition("=")[2] for a in arguments if a.startswith("trainer.default_local_dir=")),
        runtime_env["env_vars"]["SAVE_PATH"],
    )
    entrypoint = shlex.join(["python", "-m", *MODULES.get(recipe, (f"recipes.{recipe}",)), *arguments])
    metadata = {"recipe": recipe, "save_path": save_path}
    _submit_job(client, entrypoint=entrypoint, runtime_env=runtime_env, submission_id=job, metadata=metadata)
    say(f"submitted {job} to {address}; checkpoints, metrics and log: {save_path}")
    if detach:
        ours = f"cd {shlex.quote(str(HERE))} && RAY_ADDRESS={address} {shlex.quote(sys.executable)} -m recipes.submit"
        say(f"follow: {ours} --follow {job}\nstop:   {ours} --stop {job}\nresume: the same command once more")
        return 0
    return follow(client, job)


def _submit_job(client: Any, **job: Any) -> None:
    """Submit; a cluster that has just started has no agent to take the job yet, and says to try again later."""
    logging.getLogger("ray").setLevel(logging.WARNING)  # a line for every .gitignore it meets
    deadline = time.monotonic() + AGENT_SECONDS
    while True:
        try:
            client.submit_job(**job)
            return
        except Exception as error:
            if "try again later" not in str(error) or time.monotonic() > deadline:
                raise UserError(f"the cluster refuses the job: {str(error).strip()}") from error
            time.sleep(2 * POLL_SECONDS)


def diagnose_there(recipe: str, arguments: list[str], as_json: bool) -> int:
    """Run recipes.doctor as a job of the cluster, print what it prints, and return its exit status."""
    refuse_relative_paths(recipe, arguments)
    client = connect(os.environ["RAY_ADDRESS"])
    command = ["python", "-m", "recipes.doctor", recipe, *(["--json"] if as_json else []), *arguments]
    job = f"doctor-{uuid.uuid4().hex[:8]}"
    runtime_env = runtime_environment(recipe, os.environ)
    _submit_job(client, entrypoint=shlex.join(command), runtime_env=runtime_env, submission_id=job)
    while not (info := client.get_job_info(job)).status.is_terminal():
        time.sleep(POLL_SECONDS)
    lines = client.get_job_logs(job).splitlines()
    wanted = [line for line in lines if line.startswith('{"ok"')] if as_json else lines
    print("\n".join(wanted or lines))
    return 0 if info.status.name == "SUCCEEDED" else 1


def follow(client: Any, job: str, stops: bool = True) -> int:
    """Print the job's log until it has ended. Returns its exit status; 130 when it was interrupted from here.

    stops: Ctrl-C stops the job; else it ends the following alone.
    """
    log = threading.Thread(target=lambda: asyncio.run(_print_log(client, job)), daemon=True)
    log.start()
    interrupts = 0
    while True:
        try:
            info = client.get_job_info(job)
            if info.status.is_terminal():
                break
            time.sleep(POLL_SECONDS)
        except KeyboardInterrupt:
            if not stops:
                say(f"{job} goes on")
                return 130
            interrupts += 1
            if interrupts == 1 and ask_to_stop(client, job):
                say(f"{ASKED}; Ctrl-C again ends it at once")
            else:
                stop_now(client, job)
    log.join(timeout=10)
    say(f"{job}: {info.status}")
    if interrupts:
        return 130
    if info.status.name == "SUCCEEDED":
        return 0
    return info.driver_exit_code if (info.driver_exit_code or 0) > 0 else 1


async def _print_log(client: Any, job: str) -> None:
    """As it comes. A connection that breaks is made again; what has been printed is skipped."""
    printed = 0
    while True:
        seen = 0
        with contextlib.suppress(Exception):  # the loop below decides: the job's status is asked for apart from this
            async for text in client.tail_job_logs(job):
                seen += len(text)
                if seen > printed:
                    print(text[max(0, len(text) - (seen - printed)) :], end="", flush=True)
                    printed = seen
        if client.get_job_info(job).status.is_terminal():
            rest = client.get_job_logs(job)[printed:]
            print(rest, end="", flush=True)
            return
        await asyncio.sleep(POLL_SECONDS)


def ask_to_stop(client: Any, job: str) -> bool:
    """Make the file RUN/stop.<job> on the cluster, with a job of its own. Returns whether the recipe looks for it."""
    metadata = client.get_job_info(job).metadata or {}
    if metadata.get("recipe") == "sft":
        return False  # verl's SFT trainer has no such seam: its last checkpoint counts
    file = f"{metadata['save_path']}/{STOP}.{job}"
    _submit_job(client, entrypoint=f"touch {shlex.quote(file)}", submission_id=f"stop-{job}-{uuid.uuid4().hex[:4]}")
    return True


def stop_now(client: Any, job: str) -> None:
    client.stop_job(job)
    deadline = time.monotonic() + STOP_SECONDS
    while not client.get_job_info(job).status.is_terminal():
        if time.monotonic() > deadline:
            raise UserError(f"{job} does not stop: ray job stop {job}, or look at the dashboard")
        time.sleep(POLL_SECONDS)


def stop(client: Any, job: str) -> int:
    """For `--stop`: as the first Ctrl-C of who follows it. Exit status."""
    status = client.get_job_info(job).status
    if status.is_terminal():
        say(f"{job} has ended: {status}")
    elif ask_to_stop(client, job):
        say(f"{ASKED}; at once: ray job stop {job}")
    else:
        stop_now(client, job)
        say(f"{job} is stopped; its last checkpoint counts")
    return 0


def client_of(job: str) -> Any:
    """A client of the cluster that has this job of ours. Raises UserError when there is none."""
    address = os.environ.get("RAY_ADDRESS", "")
    if not address.startswith("http"):
        raise UserError("RAY_ADDRESS is not set: give the address of the cluster's dashboard, http://head:8265")
    client = connect(address)
    try:
        metadata = client.get_job_info(job).metadata or {}
    except RuntimeError as error:
        raise UserError(f"{job}: no such job on {address}; `ray job list` names them") from error
    if "save_path" not in metadata:
        raise UserError(f"{job} is no training of ours, which alone can be followed and stopped here")
    return client


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    arguments = sys.argv[1:]
    try:
        if len(arguments) == 2 and arguments[0] == "--follow":
            return follow(client_of(arguments[1]), arguments[1], stops=False)
        if len(arguments) == 2 and arguments[0] == "--stop":
            return stop(client_of(arguments[1]), arguments[1])
        if not arguments or arguments[0] not in RECIPES:
            recipe = f"{{{','.join(RECIPES)}}} [--detach] [hydra overrides]"
            say(f"usage: python -m recipes.submit {recipe} | --follow JOB | --stop JOB")
            return 2
        overrides = [argument for argument in arguments[1:] if argument != "--detach"]
        return submit(arguments[0], overrides, detach="--detach" in arguments)
    except UserError as error:
        say(f"error: {error}")
        return 2


if __name__ == "__main__":
    sys.exit(main())
