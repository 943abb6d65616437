"""Ray jobs of a cluster: submit, follow, stop."""

import logging
import math
import os
import shlex
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from tqdm import tqdm

from convrec.base.errors import UserError, one_line
from convrec.checkpoints.saving import STOP, SUBMISSION_VARIABLE
from recipes.cluster.job_environment import HERE, runtime_environment, withheld
from recipes.launch.recipe import Recipe
from recipes.launch.settings import compose_elsewhere
from recipes.launch.variables import misspelt_variables
from recipes.preflight import ray_token

POLL_SECONDS = 1.0
AGENT_SECONDS = 120.0
NETWORK_SECONDS = 300.0  # that a cluster may be unreachable before its job is left alone

Answer = TypeVar("Answer")


def connect(address: str) -> Any:
    """A client of the cluster's job API. Raises UserError when it does not answer, refuses us, or has another Ray."""
    import ray
    from ray.exceptions import AuthenticationError
    from ray.job_submission import JobSubmissionClient

    try:
        client = JobSubmissionClient(address)
        cluster_version = client._do_request("GET", "/api/version").json()["ray_version"]
    except AuthenticationError as error:  # status 401 or 403
        raise UserError(ray_token.describe_missing_token(address)) from error
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


def warn_if_open(client: Any, address: str) -> None:
    """Warn where the cluster asks for no token. The doctor says so by itself."""
    if client._do_request("GET", "/api/authentication_mode").json()["authentication_mode"] == "disabled":
        say(f"warning: RAY_ADDRESS={address}: {ray_token.OPEN}: {ray_token.CLOSE}")


def submit_job(client: Any, **job: Any) -> None:
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


def persist(ask: Callable[[], Answer], job: str) -> Answer:
    """What the cluster answers. One that is out of reach is asked again for NETWORK_SECONDS; then UserError."""
    deadline = time.monotonic() + NETWORK_SECONDS
    while True:
        try:
            return ask()
        except Exception as error:
            if "status code 404" in str(error):
                where = f"the cluster at {os.environ.get('RAY_ADDRESS')}"
                raise UserError(f"{job}: {where} knows no such job (any more); `ray job list` names them") from error
            if time.monotonic() > deadline:
                raise UserError(
                    f"no answer from the cluster for {NETWORK_SECONDS / 60:.0f} minutes ({one_line(error)}): {job} "
                    f"goes on without us. To follow it again: convrec submit --follow {job}"
                ) from error
            time.sleep(POLL_SECONDS)


def wait_for(client: Any, job: str, seconds: float = math.inf) -> Any:
    """The job's info when it has ended, or as it is after this time."""
    deadline = time.monotonic() + seconds
    while True:
        info = persist(lambda: client.get_job_info(job), job)
        if info.status.is_terminal() or time.monotonic() > deadline:
            return info
        time.sleep(POLL_SECONDS)


DOCTOR_SECONDS = 900.0
STOP_SECONDS = 60.0
ASKED = "asked the job to save a checkpoint and end, at the end of its step"


def submit(recipe: Recipe, arguments: list[str], detach: bool = False) -> int:
    """Submit, print the job's log as it comes, and return its exit status (1 when it has none)."""
    runtime_env = checked_environment(recipe, arguments)  # a wrong setting stops here, not on the cluster
    address = os.environ["RAY_ADDRESS"]
    client = connect(address)
    warn_if_open(client, address)
    job = f"{recipe.name.replace('_', '-')}-{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:4]}"
    try:
        submit_training(client, recipe, arguments, runtime_env, job)
    except KeyboardInterrupt:
        say(f"interrupted: {job} " + ("is stopped" if _withdraw(client, job) else "was not submitted"))
        return 130
    say(f"submitted {job} to {address}; checkpoints, metrics and log: {runtime_env['env_vars']['SAVE_PATH']}")
    if detach:
        ours = f"cd {shlex.quote(str(HERE))} && RAY_ADDRESS={address} {shlex.quote(sys.executable)} -m recipes submit"
        say(f"follow: {ours} --follow {job}\nstop:   {ours} --stop {job}\nresume: the same command once more")
        return 0
    return follow(client, job, [ask_to_end, stop_now])


def checked_environment(recipe: Recipe, arguments: Sequence[str]) -> dict[str, Any]:
    """The job's `runtime_environment` by the variables here, with warnings about them."""
    for warning in (*misspelt_variables(os.environ), *withheld(os.environ)):
        say(f"warning: {warning}")
    return runtime_environment(recipe, compose_elsewhere(recipe, arguments), os.environ, arguments)


def submit_training(
    client: Any, recipe: Recipe, arguments: Sequence[str], runtime_env: Mapping[str, Any], job: str, **more: str
) -> None:
    """Submit the recipe under this id. more: variables of the job's environment."""
    variables = {**runtime_env["env_vars"], **more, SUBMISSION_VARIABLE: job}
    submit_job(
        client,
        entrypoint=shlex.join(["python", "-m", "recipes", *recipe.command.split(), *arguments]),
        runtime_env={**runtime_env, "env_vars": variables},
        submission_id=job,
        metadata={"recipe": recipe.name, "save_path": variables["SAVE_PATH"]},
    )


def _withdraw(client: Any, job: str) -> bool:
    """Stop the job where it has reached the cluster. Returns whether it has."""
    if not any(info.submission_id == job for info in persist(client.list_jobs, job)):
        return False
    stop_now(client, job)
    return True


def diagnose_there(recipe: Recipe, arguments: list[str], as_json: bool) -> int:
    """Run the doctor as a job of the cluster, print what it prints, and return its exit status.

    Raises UserError when it has not ended after DOCTOR_SECONDS; then, and on Ctrl-C, the job is stopped.
    """
    runtime_env = checked_environment(recipe, arguments)
    client = connect(os.environ["RAY_ADDRESS"])
    command = ["python", "-m", "recipes", "doctor", recipe.name, *(["--json"] if as_json else []), *arguments]
    job = f"doctor-{uuid.uuid4().hex[:8]}"
    try:
        submit_job(client, entrypoint=shlex.join(command), runtime_env=runtime_env, submission_id=job)
        info = wait_for(client, job, DOCTOR_SECONDS)
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
    print("\n".join(wanted or lines or [str(info.message)]))
    return 0 if info.status.name == "SUCCEEDED" else 1


def follow(client: Any, job: str, on_interrupt: Sequence[Callable[[Any, str], None]] = ()) -> int:
    """Print the job's log as it comes until it has ended. Returns its exit status; 130 when it was interrupted here.

    on_interrupt: what the first Ctrl-C does, the second, ...; the one after them ends the following alone.
    """
    left = list(on_interrupt)
    act = None
    printed = 0
    while True:
        try:  # all that takes time is in here, so that Ctrl-C is an answer to it, whatever it is
            if act:
                act(client, job)
                act = None
            info = persist(lambda: client.get_job_info(job), job)
            has_ended = info.status.is_terminal()
            start = time.monotonic()
            log = _fetch_log(client, job, has_ended)
            print(log[printed:], end="", flush=True)
            printed = max(printed, len(log))
            if has_ended:
                break
            time.sleep(max(POLL_SECONDS, 9 * (time.monotonic() - start)))  # a long log takes a tenth of the time
        except KeyboardInterrupt:
            if not left:
                say(f"{job} goes on, unless it was told to end: ray job status {job}")
                return 130
            act = left.pop(0)
    say(f"{job}: {info.status}")
    if len(left) < len(on_interrupt):
        return 130
    if info.status.name == "SUCCEEDED":
        return 0
    return info.driver_exit_code if (info.driver_exit_code or 0) > 0 else 1


def _fetch_log(client: Any, job: str, has_ended: bool) -> str:
    """The whole log; "" where it cannot be had now, which is waited out, and said, when the job has ended."""
    try:
        return persist(lambda: client.get_job_logs(job), job) if has_ended else client.get_job_logs(job)
    except Exception as error:  # while it runs, its status decides
        if has_ended:
            say(f"the end of the log is missing: {one_line(error)}")
        return ""


def ask_to_end(client: Any, job: str) -> None:
    """For the first Ctrl-C: `ask_to_stop`, and say so, or why not."""
    try:
        ask_to_stop(client, job)
        said = ASKED
    except UserError as error:
        said = f"the job could not be asked to save and end: {error}"
    say(f"{said}; Ctrl-C again ends it at once")


def ask_to_stop(client: Any, job: str) -> None:
    """Make the file RUN/stop.<job> on the cluster, with a job of its own. Raises UserError when it cannot be made."""
    metadata = persist(lambda: client.get_job_info(job), job).metadata or {}
    folder, file = (shlex.quote(path) for path in (metadata["save_path"], f"{metadata['save_path']}/{STOP}.{job}"))
    request = f"stop-{job}-{uuid.uuid4().hex[:4]}"
    # a run that is still starting has no folder yet
    submit_job(client, entrypoint=f"mkdir -p {folder} && touch {file}", submission_id=request)
    info = wait_for(client, request, AGENT_SECONDS)
    if info.status.name != "SUCCEEDED":
        raise UserError(f"{file} could not be made ({info.message or info.status}): make it on the cluster")


def stop_now(client: Any, job: str) -> None:
    persist(lambda: client.stop_job(job), job)
    if not wait_for(client, job, STOP_SECONDS).status.is_terminal():
        raise UserError(f"{job} does not stop: ray job stop {job}, or look at the dashboard")


def stop(client: Any, job: str) -> int:
    """For `--stop`: as the first Ctrl-C of who follows it. Exit status."""
    status = persist(lambda: client.get_job_info(job), job).status
    if status.is_terminal():
        say(f"{job} has ended: {status}")
    else:
        ask_to_stop(client, job)
        say(f"{ASKED}; at once: ray job stop {job}")
    return 0


def connect_to_job(job: str) -> Any:
    """A client of the cluster that has this job of ours. Raises UserError when there is none."""
    address = os.environ.get("RAY_ADDRESS", "")
    if not address.startswith("http"):
        raise UserError("RAY_ADDRESS is not set: give the address of the cluster's dashboard, http://head:8265")
    client = connect(address)
    if "save_path" not in (persist(lambda: client.get_job_info(job), job).metadata or {}):
        raise UserError(f"{job} is no training of ours, which alone can be followed and stopped here")
    return client


def say(text: str) -> None:
    """A line on the terminal, above a bar where one is drawn."""
    tqdm.write(text, file=sys.stderr)
