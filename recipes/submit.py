"""`ray job submit` of a recipe to a cluster, followed to its end. Run by run_*.sh when RAY_ADDRESS is an http address.

    RAY_ADDRESS=http://head:8265 python -m recipes.submit rank_grpo [--detach] [hydra overrides]
    RAY_ADDRESS=http://head:8265 python -m recipes.submit --follow JOB      its log and exit status; Ctrl-C leaves it
    RAY_ADDRESS=http://head:8265 python -m recipes.submit --stop JOB        ask it to save a checkpoint and end

The code travels (runtime_env.yaml says what), data and models do not: their paths are made absolute here and must exist
on every node. The variables of README.md are handed on, and those of SETTINGS; secrets are not, the cluster's
environment has them. Ctrl-C asks the job to save and end; a second one ends it at once; a third stops waiting for that.
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
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep
from hydra.errors import HydraException

from convrec.errors import UserError, one_line
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
SETTINGS = re.compile(
    r"(NCCL|GLOO|VLLM|VERL|HF_HUB|HF_DATASETS|TORCH|PYTORCH|SWANLAB|WANDB|TQ)_\w+|HF_HOME|HF_ENDPOINT"
    r"|TRANSFORMERS_OFFLINE|MLFLOW_TRACKING_URI|(?i:(https?|all|no)_proxy)"
)
SECRETS = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL", re.IGNORECASE)
PASSWORD_IN_URL = re.compile(r":\S*@")  # http://user:password@proxy:3128
PATH_SETTINGS = re.compile(r"HF_HOME|HF_\w+_CACHE|MLFLOW_TRACKING_URI|\w+_(DIR|FILE|HOME|PATH|ROOT)")
NO_PATH = re.compile(r"\w+://.*|databricks|true|false|\d*", re.IGNORECASE)  # VLLM_..._PATH=1 is a switch
HUB_KEYS = re.compile(r"(.*\.)?(model\.\w+|\w*(model|tokenizer)_path)")
POLL_SECONDS = 1.0
STOP_SECONDS = 60.0
AGENT_SECONDS = 120.0
NETWORK_SECONDS = 300.0  # that a cluster may be unreachable before its job is left alone
DOCTOR_SECONDS = 900.0
ASKED = "asked the job to save a checkpoint and end, at the end of its step"
AFTER_CTRL_C = {"follow": "ask", "ask": "end", "wait": "end"}  # what `follow` does -> what it does next
Answer = TypeVar("Answer")


def job_environment(recipe: str, environment: Mapping[str, str]) -> dict[str, str]:
    """The variables as the job must see them: relative paths, defaults too, would point into the unpacked copy.

    Raises UserError for a path of a user that is not known here.
    """
    defaults = yaml.safe_load((HERE / "conf" / f"{recipe}.yaml").read_text())
    values = {name: value for name, value in environment.items() if name in {variable.name for variable in VARIABLES}}
    for name, value in environment.items():
        if _is_setting(name) and not PASSWORD_IN_URL.search(value):
            is_path = PATH_SETTINGS.fullmatch(name) and not NO_PATH.fullmatch(value)
            values[name] = _absolute(name, value) if is_path else value
    known = {variable.name for variable in VARIABLES if recipe in variable.keys}
    for name, key in PATHS.items():
        section, entry = key.split(".")
        default = defaults.get(section, {}).get(entry)
        if name == "SAVE_PATH":
            model = values.get("MODEL_PATH") or _variable_default("MODEL_PATH")
            default = f"checkpoints/{recipe}/{Path(model).name}"
        if name in known and (values.get(name) or default):
            values[name] = _absolute(name, values.get(name) or default)
    if values.get("MODEL_PATH") and not _is_hub_id(values["MODEL_PATH"]):
        values["MODEL_PATH"] = _absolute("MODEL_PATH", values["MODEL_PATH"])
    return values


def withheld(environment: Mapping[str, str]) -> list[str]:
    """Settings that stay behind because their value holds a password."""
    return [name for name, value in environment.items() if _is_setting(name) and PASSWORD_IN_URL.search(value)]


def _is_setting(name: str) -> bool:
    return bool(SETTINGS.fullmatch(name)) and not SECRETS.search(name)


def _absolute(name: str, text: str) -> str:
    expanded = os.path.expanduser(text)
    if expanded.startswith("~"):
        raise UserError(f"{name}={text}: there is no such user here: give an absolute path")
    return os.path.abspath(expanded)


def _is_hub_id(text: str) -> bool:
    """organisation/name, and nothing here goes by that name."""
    return text.count("/") == 1 and text[0] not in "./~" and not Path(text.split("/")[0]).is_dir()


def _variable_default(name: str) -> str:
    return next(variable.default for variable in VARIABLES if variable.name == name)


def refuse_relative_paths(recipe: str, arguments: list[str]) -> None:
    """Raise UserError for an override that names a file relative to a folder that the job does not have.

    And for one of the run folder: stop files are put where SAVE_PATH says.
    """
    path_keys = {
        key
        for variable in VARIABLES
        if variable.name in (*PATHS, "MODEL_PATH")
        for key in variable.keys.get(recipe, ())
    }
    parser = OverridesParser.create()
    for argument in arguments:
        try:
            override = parser.parse_override(argument)
        except HydraException as error:
            raise UserError(f"{argument}: {str(error).splitlines()[0]}") from error
        for key, value in _leaves(override.key_or_group, override.value()):
            if key == PATHS["SAVE_PATH"]:
                raise UserError(f"{argument}: set SAVE_PATH instead, which the submitter reads too")
            is_path = key in path_keys or key.endswith((".path", "_dir", "_path", "_file", "_files"))
            if not is_path or not isinstance(value, str) or value in ("", "null"):
                continue
            is_absolute = value.startswith(("/", "${")) or "://" in value
            if not is_absolute and not (HUB_KEYS.fullmatch(key) and _is_hub_id(value)):
                raise UserError(f"{argument}: a relative path means nothing on the cluster: give an absolute one")


def _leaves(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of everything an override sets."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _leaves(f"{key}.{name}", inner)
    elif isinstance(value, (list, ChoiceSweep)):
        for inner in value if isinstance(value, list) else value.list:
            yield from _leaves(key, inner)
    else:
        yield key, value


def runtime_environment(recipe: str, environment: Mapping[str, str]) -> dict[str, Any]:
    """runtime_env.yaml with this folder as what is uploaded, and the caller's variables."""
    runtime_env = yaml.safe_load((HERE / "runtime_env.yaml").read_text())
    runtime_env["working_dir"] = str(HERE)
    runtime_env["env_vars"] = {**(runtime_env.get("env_vars") or {}), **job_environment(recipe, environment)}
    return runtime_env


def connect(address: str) -> Any:
    """A client of the cluster's job API. Raises UserError when it does not answer, refuses us, or has another Ray."""
    import ray
    from ray.exceptions import AuthenticationError
    from ray.job_submission import JobSubmissionClient

    try:
        client = JobSubmissionClient(address)
        cluster_version = client._do_request("GET", "/api/version").json()["ray_version"]
    except AuthenticationError as error:  # status 401 or 403
        raise UserError(
            f"RAY_ADDRESS={address}: the cluster asks for a token (Ray turns that on by itself). Set "
            "RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH to a copy of the head node's ~/.ray/auth_token"
        ) from error
    except Exception as error:
        first_line = (str(error).strip().splitlines() or [type(error).__name__])[0]
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
    save_path = runtime_env["env_vars"]["SAVE_PATH"]
    for name in withheld(os.environ):
        say(f"warning: {name} holds a password and stays here; set it where `ray start` is called, if the job needs it")
    entrypoint = shlex.join(["python", "-m", *MODULES.get(recipe, (f"recipes.{recipe}",)), *arguments])
    metadata = {"recipe": recipe, "save_path": save_path}
    try:
        _submit_job(client, entrypoint=entrypoint, runtime_env=runtime_env, submission_id=job, metadata=metadata)
    except KeyboardInterrupt:
        say(f"interrupted: {job} " + ("is stopped" if _withdraw(client, job) else "was not submitted"))
        return 130
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


def _withdraw(client: Any, job: str) -> bool:
    """Stop the job where it has reached the cluster. Returns whether it has."""
    if not any(info.submission_id == job for info in persist(client.list_jobs, job)):
        return False
    stop_now(client, job)
    return True


def persist(ask: Callable[[], Answer], job: str) -> Answer:
    """What the cluster answers. One that is out of reach is asked again for NETWORK_SECONDS; then UserError."""
    deadline = time.monotonic() + NETWORK_SECONDS
    while True:
        try:
            return ask()
        except Exception as error:
            if "status code 404" in str(error):
                raise UserError(f"{job}: the cluster does not know it (any more)") from error
            if time.monotonic() > deadline:
                raise UserError(
                    f"no answer from the cluster for {NETWORK_SECONDS / 60:.0f} minutes ({one_line(error)}): {job} "
                    f"goes on without us. To follow it again: python -m recipes.submit --follow {job}"
                ) from error
            time.sleep(POLL_SECONDS)


def diagnose_there(recipe: str, arguments: list[str], as_json: bool) -> int:
    """Run recipes.doctor as a job of the cluster, print what it prints, and return its exit status.

    Raises UserError when it has not ended after DOCTOR_SECONDS; then, and on Ctrl-C, the job is stopped.
    """
    refuse_relative_paths(recipe, arguments)
    client = connect(os.environ["RAY_ADDRESS"])
    command = ["python", "-m", "recipes.doctor", recipe, *(["--json"] if as_json else []), *arguments]
    job = f"doctor-{uuid.uuid4().hex[:8]}"
    runtime_env = runtime_environment(recipe, os.environ)
    try:
        _submit_job(client, entrypoint=shlex.join(command), runtime_env=runtime_env, submission_id=job)
        info = _wait_for(client, job, DOCTOR_SECONDS)
    except KeyboardInterrupt:
        _withdraw(client, job)
        return 130
    if not info.status.is_terminal():
        stop_now(client, job)
        raise UserError(
            f"the doctor has not ended in {DOCTOR_SECONDS / 60:.0f} minutes ({info.message}): its job is stopped. Is "
            "the head node busy, or cannot it make the environment?"
        )
    lines = persist(lambda: client.get_job_logs(job), job).splitlines()
    wanted = [line for line in lines if line.startswith('{"ok"')] if as_json else lines
    print("\n".join(wanted or lines))
    return 0 if info.status.name == "SUCCEEDED" else 1


def _wait_for(client: Any, job: str, seconds: float) -> Any:
    """The job's info when it has ended, or as it is after this time."""
    deadline = time.monotonic() + seconds
    while True:
        info = persist(lambda: client.get_job_info(job), job)
        if info.status.is_terminal() or time.monotonic() > deadline:
            return info
        time.sleep(POLL_SECONDS)


def follow(client: Any, job: str, stops: bool = True) -> int:
    """Print the job's log until it has ended. Returns its exit status; 130 when it was interrupted from here.

    stops: Ctrl-C stops the job; else it ends the following alone.
    """
    ended = threading.Event()
    log = threading.Thread(target=lambda: asyncio.run(_print_log(client, job, ended)), daemon=True)
    log.start()
    doing = "follow"
    while True:
        try:  # all that takes time is in here, so that Ctrl-C is an answer to it, whatever it is
            if doing == "ask":
                doing = _ask(client, job)
            if doing == "end":
                stop_now(client, job)
            info = persist(lambda: client.get_job_info(job), job)
            if info.status.is_terminal():
                break
            time.sleep(POLL_SECONDS)
        except KeyboardInterrupt:
            if not stops:
                say(f"{job} goes on")
                return 130
            if doing == "end":
                say(f"{job} was told to end, and whether it has is not known: ray job status {job}")
                return 130
            doing = AFTER_CTRL_C[doing]
    ended.set()
    log.join(timeout=10)
    say(f"{job}: {info.status}")
    if doing != "follow":
        return 130
    if info.status.name == "SUCCEEDED":
        return 0
    return info.driver_exit_code if (info.driver_exit_code or 0) > 0 else 1


def _ask(client: Any, job: str) -> str:
    """Ask the job to stop, and say so. Returns what `follow` does next."""
    try:
        if not ask_to_stop(client, job):
            return "end"
    except UserError as error:
        say(f"the job could not be asked to save and end: {error}; Ctrl-C again ends it at once")
        return "wait"
    say(f"{ASKED}; Ctrl-C again ends it at once")
    return "wait"


async def _print_log(client: Any, job: str, ended: threading.Event) -> None:
    """As it comes. A connection that breaks is made again; what has been printed is skipped."""
    printed = 0
    while True:
        seen = 0
        with contextlib.suppress(Exception):  # who follows asks for the job's status, and decides
            async for text in client.tail_job_logs(job):
                seen += len(text)
                if seen > printed:
                    print(text[max(0, len(text) - (seen - printed)) :], end="", flush=True)
                    printed = seen
        if ended.is_set():
            break
        await asyncio.sleep(POLL_SECONDS)
    try:
        print(persist(lambda: client.get_job_logs(job), job)[printed:], end="", flush=True)
    except UserError as error:
        say(f"the end of the log is missing: {error}")


def ask_to_stop(client: Any, job: str) -> bool:
    """Make the file RUN/stop.<job> on the cluster, with a job of its own. Returns whether the recipe looks for it.

    Raises UserError when it cannot be made.
    """
    metadata = persist(lambda: client.get_job_info(job), job).metadata or {}
    if metadata.get("recipe") == "sft":
        return False  # verl's SFT trainer has no such seam: its last checkpoint counts
    folder, file = (shlex.quote(path) for path in (metadata["save_path"], f"{metadata['save_path']}/{STOP}.{job}"))
    request = f"stop-{job}-{uuid.uuid4().hex[:4]}"
    # a run that is still starting has no folder yet
    _submit_job(client, entrypoint=f"mkdir -p {folder} && touch {file}", submission_id=request)
    info = _wait_for(client, request, AGENT_SECONDS)
    if info.status.name != "SUCCEEDED":
        raise UserError(f"{file} could not be made ({info.message or info.status}): make it on the cluster")
    return True


def stop_now(client: Any, job: str) -> None:
    persist(lambda: client.stop_job(job), job)
    if not _wait_for(client, job, STOP_SECONDS).status.is_terminal():
        raise UserError(f"{job} does not stop: ray job stop {job}, or look at the dashboard")


def stop(client: Any, job: str) -> int:
    """For `--stop`: as the first Ctrl-C of who follows it. Exit status."""
    status = persist(lambda: client.get_job_info(job), job).status
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
    except Exception as error:
        if "status code 404" in str(error):
            raise UserError(f"{job}: no such job on {address}; `ray job list` names them") from error
        raise UserError(f"RAY_ADDRESS={address}: no answer about {job} ({one_line(error)})") from error
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
    except KeyboardInterrupt:
        say("interrupted; a job that was submitted goes on: ray job list")
        return 130


if __name__ == "__main__":
    sys.exit(main())
