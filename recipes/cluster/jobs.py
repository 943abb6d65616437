"""Ray jobs of a cluster: submit, follow, stop."""

import asyncio
import contextlib
import os
import shlex
import sys
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from omegaconf import DictConfig

from convrec.checkpoints.saving import STOP, SUBMISSION_VARIABLE
from convrec.errors import UserError, one_line
from convrec.lists import user_rewards
from recipes.cluster.client import AGENT_SECONDS, POLL_SECONDS, connect, persist, submit_job, wait_for
from recipes.cluster.job_environment import HERE, refuse_relative_paths, runtime_environment, withheld
from recipes.launch.misspelt import misspelt_variables
from recipes.launch.recipe import Recipe
from recipes.launch.settings import compose_files
from recipes.launch.variables import overrides_from_environment

STOP_SECONDS = 60.0
DOCTOR_SECONDS = 900.0
ASKED = "asked the job to save a checkpoint and end, at the end of its step"
AFTER_CTRL_C = {"follow": "ask", "ask": "end", "wait": "end"}  # what `follow` does -> what it does next


def submit(recipe: Recipe, arguments: list[str], detach: bool = False) -> int:
    """Submit, print the job's log as it comes, and return its exit status (1 when it has none)."""
    reward = _checked_reward(recipe, arguments)  # a wrong setting stops here, not on the cluster
    address = os.environ["RAY_ADDRESS"]
    client = connect(address)
    job = f"{recipe.name.replace('_', '-')}-{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:4]}"
    try:
        save_path = submit_training(client, recipe, arguments, os.environ, job, reward)
    except KeyboardInterrupt:
        say(f"interrupted: {job} " + ("is stopped" if _withdraw(client, job) else "was not submitted"))
        return 130
    say(f"submitted {job} to {address}; checkpoints, metrics and log: {save_path}")
    if detach:
        ours = f"cd {shlex.quote(str(HERE))} && RAY_ADDRESS={address} {shlex.quote(sys.executable)} -m recipes.submit"
        say(f"follow: {ours} --follow {job}\nstop:   {ours} --stop {job}\nresume: the same command once more")
        return 0
    return follow(client, job)


def submit_training(
    client: Any,
    recipe: Recipe,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    job: str,
    reward: str = "",
) -> str:
    """Submit the recipe with these variables under this id. Returns SAVE_PATH as the cluster sees it.

    reward: `reward_of` its settings.
    """
    runtime_env = runtime_environment(recipe, environment, reward, arguments)
    runtime_env["env_vars"][SUBMISSION_VARIABLE] = job
    save_path = runtime_env["env_vars"]["SAVE_PATH"]
    for name in withheld(environment):
        say(f"warning: {name} holds a password and stays here; set it where `ray start` is called, if the job needs it")
    submit_job(
        client,
        entrypoint=shlex.join(["python", "-m", *recipe.command, *arguments]),
        runtime_env=runtime_env,
        submission_id=job,
        metadata={"recipe": recipe.name, "save_path": save_path},
    )
    return save_path


def _checked_reward(recipe: Recipe, arguments: Sequence[str]) -> str:
    """`convrec.reward`, once variables, overrides and a rank reward of the user's own have been checked."""
    overrides_from_environment(recipe, os.environ)  # at once: what follows takes seconds
    refuse_relative_paths(recipe, arguments)
    for warning in misspelt_variables(os.environ):
        say(f"warning: {warning}")
    return reward_of(compose_files(recipe, arguments))


def reward_of(config: DictConfig) -> str:
    """`convrec.reward` of these settings, tried out where it is the user's own; "" of a recipe without one."""
    ours = config.get("convrec", {})
    reward = str(ours.get("reward", ""))
    if user_rewards.is_user_reward(reward):
        user_rewards.check(reward, ours.num_items)
    return reward


def _withdraw(client: Any, job: str) -> bool:
    """Stop the job where it has reached the cluster. Returns whether it has."""
    if not any(info.submission_id == job for info in persist(client.list_jobs, job)):
        return False
    stop_now(client, job)
    return True


def diagnose_there(recipe: Recipe, arguments: list[str], as_json: bool) -> int:
    """Run recipes.doctor as a job of the cluster, print what it prints, and return its exit status.

    Raises UserError when it has not ended after DOCTOR_SECONDS; then, and on Ctrl-C, the job is stopped.
    """
    reward = _checked_reward(recipe, arguments)
    client = connect(os.environ["RAY_ADDRESS"])
    command = ["python", "-m", "recipes.doctor", recipe.name, *(["--json"] if as_json else []), *arguments]
    job = f"doctor-{uuid.uuid4().hex[:8]}"
    runtime_env = runtime_environment(recipe, os.environ, reward)
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
    print("\n".join(wanted or lines))
    return 0 if info.status.name == "SUCCEEDED" else 1


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
    """Ask the job to stop, and say so, or why not. Returns what `follow` does next."""
    try:
        ask_to_stop(client, job)
        said = ASKED
    except UserError as error:
        said = f"the job could not be asked to save and end: {error}"
    say(f"{said}; Ctrl-C again ends it at once")
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
