"""Submit, follow and stop the Ray jobs of a cluster."""

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
from recipes.cluster.job_environment import HERE, find_withheld_variables, runtime_environment
from recipes.launch.recipe import Recipe
from recipes.launch.settings import compose_elsewhere
from recipes.launch.variables import find_misspelt_variables
from recipes.preflight import ray_token

POLL_SECONDS = 1.0
AGENT_SECONDS = 120.0
NETWORK_SECONDS = 300.0  # limit on how long the cluster may be unreachable

Answer = TypeVar("Answer")


def connect(address: str) -> Any:
    """Return a client of the cluster's job API.

    Raises:
        UserError: the cluster does not answer, refuses the token, or runs another version of Ray.
    """
    import ray
    from ray.exceptions import AuthenticationError
    from ray.job_submission import JobSubmissionClient

    try:
        client = JobSubmissionClient(address)
        cluster_version = client._do_request("GET", "/api/version").json()["ray_version"]
    except AuthenticationError as error:  # status 401 or 403
        raise UserError("cluster.refused-token", ray_token.describe_missing_token(address)) from error
    except Exception as error:
        first_line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(
            "cluster.no-answer",
            f"RAY_ADDRESS={address}: no answer ({first_line}). Give the address of the dashboard, http://head:8265. "
            "Is Ray running there (`ray start --head --dashboard-host=...`), and is the port reachable from here?",
        ) from error
    if cluster_version != ray.__version__:
        raise UserError(
            "cluster.ray-version",
            f"RAY_ADDRESS={address}: the cluster runs Ray {cluster_version}, but Ray {ray.__version__} is installed "
            "here: install the same version in both places",
        )
    return client


def warn_if_open(client: Any, address: str) -> None:
    """Print a warning if the cluster asks for no token. The doctor reports it by itself.

    Args:
        client: the result of `connect`.
        address: RAY_ADDRESS, for the warning.
    """
    if client._do_request("GET", "/api/authentication_mode").json()["authentication_mode"] == "disabled":
        say(f"warning: RAY_ADDRESS={address}: {ray_token.OPEN}: {ray_token.CLOSE}")


def submit_job(client: Any, **job: Any) -> None:
    """Submit a job; retry for AGENT_SECONDS while a cluster that has just started has no agent yet.

    Raises:
        UserError: the cluster refuses the job.
    """
    logging.getLogger("ray").setLevel(logging.WARNING)  # on INFO it logs a line for every .gitignore
    deadline = time.monotonic() + AGENT_SECONDS
    while True:
        try:
            client.submit_job(**job)
            return
        except Exception as error:
            if "try again later" not in str(error) or time.monotonic() > deadline:
                raise UserError("cluster.refused-job", f"the cluster refuses the job: {str(error).strip()}") from error
            time.sleep(2 * POLL_SECONDS)


def call_with_retries(call: Callable[[], Answer], job: str) -> Answer:
    """Call the cluster; retry for NETWORK_SECONDS while it is unreachable.

    Args:
        call: the request.
        job: the job's id, for errors.

    Raises:
        UserError: the cluster has no such job, or stays unreachable.
    """
    deadline = time.monotonic() + NETWORK_SECONDS
    while True:
        try:
            return call()
        except Exception as error:
            if "status code 404" in str(error):
                where = f"the cluster at {os.environ.get('RAY_ADDRESS')}"
                raise UserError(
                    "cluster.unknown-job", f"{job}: {where} has no such job; `ray job list` lists its jobs"
                ) from error
            if time.monotonic() > deadline:
                raise UserError(
                    "cluster.unreachable",
                    f"no answer from the cluster for {NETWORK_SECONDS / 60:.0f} minutes ({one_line(error)}): {job} may "
                    f"still be running. To follow it again: convrec submit --follow {job}",
                ) from error
            time.sleep(POLL_SECONDS)


def wait_for_job(client: Any, job: str, seconds: float = math.inf) -> Any:
    """Wait until a job has ended.

    Args:
        client: the result of `connect`.
        job: the job's id.
        seconds: the longest wait.

    Returns:
        Ray's info about the job, which has not ended if the time is up: check its status.

    Raises:
        UserError: the cluster has no such job, or stays unreachable.
    """
    deadline = time.monotonic() + seconds
    while True:
        info = call_with_retries(lambda: client.get_job_info(job), job)
        if info.status.is_terminal() or time.monotonic() > deadline:
            return info
        time.sleep(POLL_SECONDS)


DOCTOR_SECONDS = 900.0
STOP_SECONDS = 60.0
STOP_REQUESTED = "asked the job to save a checkpoint and end after the current step"


def submit(recipe: Recipe, arguments: list[str], detach: bool = False) -> int:
    """Submit a training run to the cluster at RAY_ADDRESS, and print its log as it grows.

    Args:
        recipe: the recipe.
        arguments: overrides of its command line.
        detach: return as soon as the job is submitted.

    Returns:
        The job's exit status, 1 if it has none; 0 after `detach`; 130 after a Ctrl-C here.

    Raises:
        UserError: a setting is wrong, or the cluster does not answer or refuses the job.
    """
    runtime_env = prepare_runtime_environment(recipe, arguments)  # finds wrong settings before the job is submitted
    address = os.environ["RAY_ADDRESS"]
    client = connect(address)
    warn_if_open(client, address)
    job = f"{recipe.name.replace('_', '-')}-{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:4]}"
    try:
        submit_training(client, recipe, arguments, runtime_env, job)
    except KeyboardInterrupt:
        say(f"interrupted: {job} was {'stopped' if _withdraw(client, job) else 'not submitted'}")
        return 130
    say(f"submitted {job} to {address}; checkpoints, metrics and log: {runtime_env['env_vars']['SAVE_PATH']}")
    if detach:
        python = shlex.quote(sys.executable)
        command = f"cd {shlex.quote(str(HERE))} && RAY_ADDRESS={address} {python} -m recipes submit"
        say(f"follow: {command} --follow {job}\nstop:   {command} --stop {job}\nresume: the same command again")
        return 0
    return follow(client, job, [report_stop_request, stop_now])


def prepare_runtime_environment(recipe: Recipe, arguments: Sequence[str]) -> dict[str, Any]:
    """Make the `runtime_environment` of a job from this process's variables, and print warnings about them.

    Args:
        recipe: the recipe.
        arguments: overrides of its command line.

    Raises:
        UserError: a variable, an override or a setting is wrong.
    """
    for warning in (*find_misspelt_variables(os.environ), *find_withheld_variables(os.environ)):
        say(f"warning: {warning}")
    return runtime_environment(recipe, compose_elsewhere(recipe, arguments), os.environ, arguments)


def submit_training(
    client: Any, recipe: Recipe, arguments: Sequence[str], runtime_env: Mapping[str, Any], job: str, **extra: str
) -> None:
    """Submit a training run.

    Args:
        client: the result of `connect`.
        recipe: the recipe.
        arguments: overrides of its command line.
        runtime_env: Ray's runtime environment of the job.
        job: the job's id.
        **extra: further environment variables of the job.
    """
    variables = {**runtime_env["env_vars"], **extra, SUBMISSION_VARIABLE: job}
    submit_job(
        client,
        entrypoint=shlex.join(["python", "-m", "recipes", *recipe.command.split(), *arguments]),
        runtime_env={**runtime_env, "env_vars": variables},
        submission_id=job,
        metadata={"recipe": recipe.name, "save_path": variables["SAVE_PATH"]},
    )


def _withdraw(client: Any, job: str) -> bool:
    """Stop the job if it has reached the cluster; return whether it has."""
    if not any(info.submission_id == job for info in call_with_retries(client.list_jobs, job)):
        return False
    stop_now(client, job)
    return True


def diagnose_there(recipe: Recipe, arguments: list[str], as_json: bool) -> int:
    """Run the doctor as a job of the cluster, print its output, and return its exit status.

    The job is stopped on Ctrl-C and after DOCTOR_SECONDS.

    Raises:
        UserError: the job has not ended after DOCTOR_SECONDS.
    """
    runtime_env = prepare_runtime_environment(recipe, arguments)
    client = connect(os.environ["RAY_ADDRESS"])
    command = ["python", "-m", "recipes", "doctor", recipe.name, *(["--json"] if as_json else []), *arguments]
    job = f"doctor-{uuid.uuid4().hex[:8]}"
    try:
        submit_job(client, entrypoint=shlex.join(command), runtime_env=runtime_env, submission_id=job)
        info = wait_for_job(client, job, DOCTOR_SECONDS)
    except KeyboardInterrupt:
        _withdraw(client, job)
        return 130
    if not info.status.is_terminal():
        stop_now(client, job)
        raise UserError(
            "cluster.doctor-timeout",
            f"the doctor has not ended after {DOCTOR_SECONDS / 60:.0f} minutes ({info.message}): its job was stopped. "
            "Is the head node busy, or does it fail to set up the environment?",
        )
    lines = call_with_retries(lambda: client.get_job_logs(job), job).splitlines()
    output = [line for line in lines if line.startswith('{"ok"')] if as_json else lines
    print("\n".join(output or lines or [str(info.message)]))
    return 0 if info.status.name == "SUCCEEDED" else 1


def follow(client: Any, job: str, on_interrupt: Sequence[Callable[[Any, str], None]] = ()) -> int:
    """Print a job's log as it grows until the job has ended.

    Args:
        client: the result of `connect`.
        job: the job's id.
        on_interrupt: actions of the first Ctrl-C, the second, and so on; the one after them stops following.

    Returns:
        The job's exit status; 130 after a Ctrl-C here.
    """
    actions = list(on_interrupt)
    action = None
    num_printed = 0
    while True:
        try:  # everything slow is inside, so that a Ctrl-C always leads to the next action
            if action:
                action(client, job)
                action = None
            info = call_with_retries(lambda: client.get_job_info(job), job)
            has_ended = info.status.is_terminal()
            start = time.monotonic()
            log = _fetch_log(client, job, has_ended)
            print(log[num_printed:], end="", flush=True)
            num_printed = max(num_printed, len(log))
            if has_ended:
                break
            time.sleep(max(POLL_SECONDS, 9 * (time.monotonic() - start)))  # a long log: 10 % of the time
        except KeyboardInterrupt:
            if not actions:
                say(f"stopped following {job}. To see whether it still runs: ray job status {job}")
                return 130
            action = actions.pop(0)
    say(f"{job}: {info.status}")
    if len(actions) < len(on_interrupt):
        return 130
    if info.status.name == "SUCCEEDED":
        return 0
    return info.driver_exit_code if (info.driver_exit_code or 0) > 0 else 1


def _fetch_log(client: Any, job: str, has_ended: bool) -> str:
    """Return the whole log so far; "" if the request fails. After the job's end, retry and report a failure."""
    try:
        return call_with_retries(lambda: client.get_job_logs(job), job) if has_ended else client.get_job_logs(job)
    except Exception as error:  # while the job runs, its status shows whether the cluster is lost
        if has_ended:
            say(f"the end of the log is missing: {one_line(error)}")
        return ""


def report_stop_request(client: Any, job: str) -> None:
    """Call `request_stop` and print its result, also if it failed; the action of the first Ctrl-C.

    Args:
        client: the result of `connect`.
        job: the job's id.
    """
    try:
        request_stop(client, job)
        result = STOP_REQUESTED
    except UserError as error:
        result = f"could not ask the job to save and end: {error}"
    say(f"{result}; Ctrl-C again ends it at once")


def request_stop(client: Any, job: str) -> None:
    """Create the file RUN/stop.<job> on the cluster, by another job: the run then saves and ends.

    Raises:
        UserError: the file cannot be created.
    """
    metadata = call_with_retries(lambda: client.get_job_info(job), job).metadata or {}
    folder = shlex.quote(metadata["save_path"])
    file = shlex.quote(f"{metadata['save_path']}/{STOP}.{job}")
    request = f"stop-{job}-{uuid.uuid4().hex[:4]}"
    # mkdir, because a run that is still starting has no folder yet
    submit_job(client, entrypoint=f"mkdir -p {folder} && touch {file}", submission_id=request)
    info = wait_for_job(client, request, AGENT_SECONDS)
    if info.status.name != "SUCCEEDED":
        raise UserError(
            "cluster.stop-file",
            f"{file}: cannot create this file ({info.message or info.status}): create it on the cluster",
        )


def stop_now(client: Any, job: str) -> None:
    """Stop a job without a checkpoint.

    Raises:
        UserError: it has not ended after STOP_SECONDS.
    """
    call_with_retries(lambda: client.stop_job(job), job)
    if not wait_for_job(client, job, STOP_SECONDS).status.is_terminal():
        raise UserError(
            "cluster.job-not-stopped", f"{job} does not stop: try ray job stop {job}, or look at the dashboard"
        )


def stop(client: Any, job: str) -> int:
    """Ask a job to save a checkpoint and end, for `--stop`. A job that has ended stays as it is.

    Args:
        client: the result of `connect`.
        job: the job's id.

    Returns:
        The exit status, 0.

    Raises:
        UserError: the cluster has no such job, stays unreachable, or refuses the request.
    """
    status = call_with_retries(lambda: client.get_job_info(job), job).status
    if status.is_terminal():
        say(f"{job} has ended: {status}")
    else:
        request_stop(client, job)
        say(f"{STOP_REQUESTED}; to end it at once: ray job stop {job}")
    return 0


def connect_to_job(job: str) -> Any:
    """Return a client of the cluster of RAY_ADDRESS, which has this job.

    Raises:
        UserError: RAY_ADDRESS is not set, or the job is not a training run that convrec submitted.
    """
    address = os.environ.get("RAY_ADDRESS", "")
    if not address.startswith("http"):
        raise UserError(
            "cluster.no-address",
            f"RAY_ADDRESS={address}: give the address of the cluster's dashboard, http://head:8265",
        )
    client = connect(address)
    if "save_path" not in (call_with_retries(lambda: client.get_job_info(job), job).metadata or {}):
        raise UserError(
            "cluster.foreign-job",
            f"{job} is not a training run of convrec; only these can be followed and stopped here",
        )
    return client


def say(text: str) -> None:
    """Print a line on the terminal, above a progress bar if there is one."""
    tqdm.write(text, file=sys.stderr)
