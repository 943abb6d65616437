"""Whether trackers that upload can be reached with their key, before Ray starts; what cannot goes on offline.

verl opens trackers after minutes of start-up. What an offline tracker keeps is uploaded later: `swanlab sync`,
`wandb sync`.
"""

from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from convrec.checkpoints.hub import answer_within
from convrec.errors import one_line
from convrec.training.trackers.tracking import OFFLINE_MODES, has_login

if TYPE_CHECKING:
    import httpx

SECONDS = 10.0  # for a tracker
ADDRESSES = {  # tracker -> (the variable that names its server, where that is unset)
    "swanlab": ("SWANLAB_API_HOST", "https://api.swanlab.cn"),
    "wandb": ("WANDB_BASE_URL", "https://api.wandb.ai"),
    "clearml": ("CLEARML_API_HOST", "https://api.clear.ml"),
    "mlflow": ("MLFLOW_TRACKING_URI", ""),
}


def go_offline_where_needed(
    trackers: Sequence[str], run_folder: Path, environment: MutableMapping[str, str], seconds: float = SECONDS
) -> list[str]:
    """Set the variables of trackers that do not answer, or refuse their key, to offline. Returns a warning for each.

    Offline trackers are not asked for anything.
    """
    warnings = []
    for tracker in trackers:
        if _uploads(tracker, environment) and (problem := _problem(tracker, environment, seconds)):
            environment.update(_offline(tracker, run_folder))
            warnings.append(f"{tracker} goes on offline: {problem}")
    return warnings


def _offline(tracker: str, run_folder: Path) -> dict[str, str]:
    return {
        "swanlab": {"SWANLAB_MODE": "offline"},
        "wandb": {"WANDB_MODE": "offline"},
        "clearml": {"CLEARML_OFFLINE_MODE": "1"},
        "mlflow": {"MLFLOW_TRACKING_URI": f"sqlite:///{run_folder / 'mlflow.db'}"},
    }[tracker]


def _uploads(tracker: str, environment: Mapping[str, str]) -> bool:
    if tracker in OFFLINE_MODES:
        is_offline = environment.get(f"{tracker.upper()}_MODE") in OFFLINE_MODES[tracker]
        return not is_offline and has_login(tracker, environment)
    if tracker == "mlflow":
        return environment.get("MLFLOW_TRACKING_URI", "").startswith("http")
    return tracker == "clearml" and environment.get("CLEARML_OFFLINE_MODE") != "1"


def _problem(tracker: str, environment: Mapping[str, str], seconds: float) -> str:
    """Why the tracker's server cannot be had, or that it refuses the key; "" when it can. A name and password in the
    address are sent as a header, and never said."""
    import httpx  # openai's

    variable, default = ADDRESSES[tracker]
    address = environment.get(variable) or default
    try:
        url = httpx.URL(address)
    except httpx.InvalidURL:
        url = httpx.URL()
    if url.scheme not in ("http", "https") or not url.host:
        return f"{address.rpartition('@')[2]} is no address; it begins with http:// or https://"
    server = str(url.copy_with(userinfo=b"")).rstrip("/")
    key = environment.get(f"{tracker.upper()}_API_KEY", "")

    def ask() -> str:
        try:
            if tracker == "swanlab":
                headers = {"authorization": key}
                answer = httpx.post(f"{server}/api/login/api_key", headers=headers, timeout=seconds)
            elif tracker == "wandb":
                query = {"query": "query { viewer { id } }"}
                answer = httpx.post(f"{server}/graphql", json=query, auth=("api", key), timeout=seconds)
            else:
                answer = httpx.get(url, timeout=seconds)
        except (httpx.LocalProtocolError, ValueError):  # whose text has the key
            return f"{tracker.upper()}_API_KEY holds what cannot be sent in a header; set the key alone"
        except httpx.HTTPError as error:
            return f"{server} cannot be reached ({one_line(error)})"
        if not key or tracker not in OFFLINE_MODES or _accepts(tracker, answer):
            return ""
        return f"{server} refuses {tracker.upper()}_API_KEY{f' ({answer.status_code})' if answer.is_error else ''}"

    return answer_within(seconds, ask, f"no answer in {seconds:.0f} s")


def _accepts(tracker: str, answer: "httpx.Response") -> bool:
    if answer.is_error or tracker != "wandb":
        return not answer.is_error
    try:  # W&B answers 200 to everybody
        return answer.json()["data"]["viewer"] is not None
    except (ValueError, KeyError, TypeError):
        return False
