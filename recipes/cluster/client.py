"""The cluster's job API: connect, submit, ask again while it is out of reach, wait."""

import logging
import math
import os
import time
from collections.abc import Callable
from typing import Any, TypeVar

from convrec.errors import UserError, one_line

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
        raise UserError(
            f"RAY_ADDRESS={address}: the cluster asks for a token. Copy the head node's ~/.ray/auth_token and set "
            "RAY_AUTH_MODE=token (and RAY_AUTH_TOKEN_PATH, where the copy lies elsewhere)"
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
