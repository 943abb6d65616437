"""Whether trackers that upload can be reached with their key, before Ray starts; what cannot goes on offline.

verl opens trackers after minutes of start-up, and logs in to SwanLab wherever SWANLAB_API_KEY is set, whatever
SWANLAB_MODE says. What an offline tracker keeps is uploaded later: `swanlab sync`, `wandb sync`.
"""

import base64
import http.client
import json
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from pathlib import Path

from convrec.errors import one_line
from convrec.training.trackers.tracking import has_login

SECONDS = 10.0  # for all trackers together
OFFLINE_MODES = {"swanlab": ("offline", "local", "disabled"), "wandb": ("offline", "disabled", "dryrun")}


def go_offline_where_needed(
    trackers: Sequence[str], run_folder: Path, environment: MutableMapping[str, str], seconds: float = SECONDS
) -> list[str]:
    """Set the variables of trackers that do not answer, or refuse their key, to offline. Returns a warning for each.

    Offline trackers are not asked for anything, and SwanLab's key is taken from `environment`: verl would log in.
    """
    problems: dict[str, str] = {}
    threads = []
    for tracker in trackers:
        if (ask := _question(tracker, environment)) is not None:
            problems[tracker] = f"no answer in {seconds:.0f} s"  # until there is one
            threads.append(threading.Thread(target=_find_problem, args=(tracker, ask, seconds, problems), daemon=True))
    for thread in threads:
        thread.start()
    timer = threading.Event()
    left = seconds
    while left > 0 and any(thread.is_alive() for thread in threads):  # a name server may take longer than a timeout
        timer.wait(0.05)
        left -= 0.05
    found = {tracker: problem for tracker, problem in problems.items() if problem}
    for tracker in found:
        environment.update(_offline(tracker, run_folder))
    if environment.get("SWANLAB_MODE") in OFFLINE_MODES["swanlab"]:
        environment.pop("SWANLAB_API_KEY", None)
    return [f"{tracker} goes on offline: {problem}" for tracker, problem in found.items()]


def _offline(tracker: str, run_folder: Path) -> dict[str, str]:
    return {
        "swanlab": {"SWANLAB_MODE": "offline"},
        "wandb": {"WANDB_MODE": "offline"},
        "clearml": {"CLEARML_OFFLINE_MODE": "1"},
        "mlflow": {"MLFLOW_TRACKING_URI": f"sqlite:///{run_folder / 'mlflow.db'}"},
    }[tracker]


def _question(tracker: str, environment: Mapping[str, str]) -> Callable[[float], str] | None:
    """What asks the tracker's server, within so many seconds, and returns what is wrong; None: it uploads nothing."""
    if tracker in OFFLINE_MODES:
        is_offline = environment.get(f"{tracker.upper()}_MODE") in OFFLINE_MODES[tracker]
        if is_offline or not has_login(tracker, environment):
            return None
    if tracker == "swanlab":
        url = environment.get("SWANLAB_API_HOST") or "https://api.swanlab.cn"
        key = environment.get("SWANLAB_API_KEY", "")
        return _asker(url, "/api/login/api_key", b"", {"authorization": key}, "SWANLAB_API_KEY" if key else None)
    if tracker == "wandb":
        url = environment.get("WANDB_BASE_URL") or "https://api.wandb.ai"
        key = environment.get("WANDB_API_KEY", "")
        headers = {"authorization": _basic(f"api:{key}"), "content-type": "application/json"}
        body = b'{"query": "query { viewer { id } }"}'
        return _asker(url, "/graphql", body, headers, "WANDB_API_KEY" if key else None)
    if tracker == "clearml" and environment.get("CLEARML_OFFLINE_MODE") != "1":
        return _asker(environment.get("CLEARML_API_HOST") or "https://api.clear.ml")
    if tracker == "mlflow" and (url := environment.get("MLFLOW_TRACKING_URI", "")).startswith("http"):
        return _asker(url)
    return None


def _asker(
    url: str,
    path: str = "",
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    key: str | None = None,
) -> Callable[[float], str]:
    """What asks this server. A name and password in the address go into a header, as http.client cannot read them,
    and never into what is said."""
    try:
        parts = urllib.parse.urlsplit(url)
    except ValueError:  # a bracket without its other half
        parts = urllib.parse.urlsplit("")
    login, _, host = parts.netloc.rpartition("@")
    if parts.scheme not in ("http", "https") or not host:
        shown = url.rpartition("@")[2]
        return lambda seconds: f"{shown} is no address; it begins with http:// or https://"
    sent = dict(headers or {})
    if login:
        sent.setdefault("authorization", _basic(urllib.parse.unquote(login)))
    request = urllib.request.Request(f"{parts.scheme}://{host}{parts.path}{path}", body, sent)
    return lambda seconds: _answer(request, seconds, key)


def _basic(login: str) -> str:
    return f"Basic {base64.b64encode(login.encode()).decode()}"


def _find_problem(tracker: str, ask: Callable[[float], str], seconds: float, problems: dict[str, str]) -> None:
    problems[tracker] = ask(seconds)


def _answer(request: urllib.request.Request, seconds: float, key: str | None) -> str:
    """What is wrong with the server's answer, "" when nothing is. key: the variable whose value the server checks."""
    server = f"{request.type}://{request.host}"
    try:
        with urllib.request.urlopen(request, timeout=seconds) as response:
            text = response.read(100_000)
    except urllib.error.HTTPError as error:
        return f"{server} refuses {key} ({error.code})" if key else ""  # it is there
    except (OSError, ValueError, http.client.HTTPException) as error:
        return f"{server} cannot be reached ({one_line(error)})"
    if key == "WANDB_API_KEY" and not _viewer(text):
        return f"{server} refuses {key}"
    return ""


def _viewer(text: bytes) -> bool:
    try:
        return json.loads(text)["data"]["viewer"] is not None
    except (ValueError, KeyError, TypeError):
        return False
