"""Trackers of a run that is stopped and resumed: one curve a run, without losing the steps that are repeated.

A resumed run goes back to its newest checkpoint and repeats the steps after it. RUN/metrics/*.jsonl keeps all starts
and is what everything here is filled from. SwanLab and W&B keep the first value of a step and drop the repeated one,
TensorBoard shows both, so a resumed run gets a new SwanLab or W&B run of the same group, or folder of TensorBoard, into
which the steps up to the checkpoint are written before training goes on: the newest one has the whole curve. Console
and file need nothing.

A tracker that cannot be opened, or fails later, is left out with a line in the log; the run goes on. Not so the file of
the metrics: what reports and resumed runs read is part of the run.

verl gives its table of validation samples to trackers alone; RUN/samples/*.jsonl, a file a start as of the metrics, has
the same ones: {"step", "input", "output", "score"} a line.
"""

import json
import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from convrec.runs.folder import METRICS, latest_step, read_metrics
from convrec.settings.secrets import mask_settings

logger = logging.getLogger(__name__)

SAMPLES = "samples"
OURS = ("console", "file")  # of verl's trackers: an error of theirs is the run's
_OPEN: list[Any] = []  # what `open_trackers` has opened in this process
FOLLOWERS: list[Callable[[int, Mapping[str, Any]], None]] = []  # called with each step that is logged, and its metrics
FINISH_SECONDS = 8.0  # that trackers get at the end of a run to upload what is left
OFFLINE_MODES = {"swanlab": ("offline", "local", "disabled"), "wandb": ("offline", "disabled", "dryrun")}
FILLED = ("swanlab", "wandb", "trackio", "tensorboard")  # with the steps of earlier starts


def tracker_environment(run_folder: Path, name: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Where verl's trackers write and under which group: variables that are not set in `environment`.

    SwanLab and W&B upload where a key is set or a login was saved, else they keep what `swanlab sync` and `wandb sync`
    upload later.
    """
    wanted = {
        "TENSORBOARD_DIR": str(run_folder / "tensorboard"),
        "SWANLAB_LOG_DIR": str(run_folder / "swanlab"),
        "SWANLAB_MODE": "cloud" if has_login("swanlab", environment) else "offline",
        "SWANLAB_EXPERIMENT_GROUP": name,
        "WANDB_DIR": str(run_folder),
        "WANDB_MODE": "online" if has_login("wandb", environment) else "offline",
        "WANDB_RUN_GROUP": name,
    }
    return {key: value for key, value in wanted.items() if key not in environment}


def has_login(tracker: str, environment: Mapping[str, str]) -> bool:
    """Whether "swanlab" or "wandb" can upload: a key is set, or `swanlab login`, `wandb login` saved one."""
    home = Path(environment.get("HOME") or "~").expanduser()
    file, host = {"swanlab": (home / ".swanlab" / ".netrc", ""), "wandb": (home / ".netrc", "wandb")}[tracker]
    if environment.get(f"{tracker.upper()}_API_KEY"):
        return True
    try:
        return file.is_file() and host in file.read_text(errors="replace")
    except OSError:  # somebody else's HOME
        return False


def open_trackers(
    run_folder: Path,
    project_name: str,
    experiment_name: str,
    backends: str | Sequence[str],
    config: Any,
) -> Any:
    """Open verl's Tracking for a start of the run, its curves filled up to the checkpoint that training goes on from.

    Args:
        run_folder: of the run.
        project_name: in the trackers.
        experiment_name: of the run, the group of its starts.
        backends: verl's names of the trackers.
        config: what the trackers show of the run, as plain data; its secrets are masked.
    """
    from verl.utils.tracking import Tracking

    config = mask_settings(config)
    backends = [backends] if isinstance(backends, str) else list(backends)
    os.environ.update(tracker_environment(run_folder, experiment_name, os.environ))
    done = latest_step(run_folder)
    starts = 1 + len(list((run_folder / METRICS).glob("[0-9]*.jsonl")))  # this one's file is made below
    name = experiment_name if starts == 1 else f"{experiment_name}-start{starts}"
    board = Path(os.environ.get("TENSORBOARD_DIR") or run_folder / "tensorboard")
    os.environ["TENSORBOARD_DIR"] = str(board / f"start{starts}")
    tracking = Tracking(project_name, name, [backend for backend in backends if backend in OURS], config)
    for backend in backends:
        if backend not in OURS:
            tracking.logger |= _opened(backend, partial(Tracking, project_name, name, [backend], config))
    _OPEN.append(tracking)
    if "tensorboard" in tracking.logger:
        _write_at_once(tracking.logger["tensorboard"].tracker)
    filled = [name for name in backends if name in FILLED]
    for row in read_metrics(run_folder):
        if row["step"] <= done:
            data = {name: value for name, value in row.items() if name != "step" and value is not None}
            tracking.log(data=data, step=row["step"], backend=filled)
    _tell_followers(tracking)
    return tracking


def _tell_followers(tracking: Any) -> None:
    """Have the FOLLOWERS called with what is logged from now on."""
    log = tracking.log

    def log_and_tell(data: dict[str, Any], step: int) -> None:
        log(data=data, step=step)
        for follow in FOLLOWERS:
            follow(step, data)

    tracking.log = log_and_tell


class Tolerant:
    """A tracker of verl's whose failures are lines in the log. After FAILURES in a row it is no longer called."""

    FAILURES = 10

    def __init__(self, name: str, tracker: Any) -> None:
        self.name = name
        self.tracker = tracker
        self.failures = 0

    def log(self, data: Mapping[str, Any], step: int) -> None:
        if self.failures >= self.FAILURES:
            return
        try:
            self.tracker.log(data=data, step=step)
            self.failures = 0
        except Exception:
            self.failures += 1
            then = "; it is left out from now on" if self.failures == self.FAILURES else ""
            logger.warning("%s lost the metrics of step %s%s", self.name, step, then, exc_info=True)

    def finish(self, *args: Any, **kwargs: Any) -> None:
        try:
            self.tracker.finish(*args, **kwargs)
        except Exception:
            logger.warning("%s did not finish", self.name, exc_info=True)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tracker, name)


def _opened(name: str, make: Callable[[], Any]) -> dict[str, Tolerant]:
    """{name: tracker}; {} when it cannot be opened."""
    if os.environ.get("SWANLAB_MODE") in OFFLINE_MODES["swanlab"]:  # verl logs in where a key is set
        os.environ.pop("SWANLAB_API_KEY", None)
    try:
        tracking = make()
        trackers = {backend: Tolerant(backend, tracker) for backend, tracker in tracking.logger.items()}
        tracking.logger = {}  # verl finishes its trackers when the object that opened them goes
        return trackers
    except Exception:
        logger.warning("%s cannot be opened: left out", name, exc_info=True)
        return {}


def finish() -> None:
    """Let the trackers of this process upload what they have, for FINISH_SECONDS at most."""
    threads = [threading.Thread(target=tracking.finish, daemon=True) for tracking in _OPEN]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(FINISH_SECONDS)
    _OPEN.clear()


def keep_samples(run_folder: Path, project_name: str, experiment_name: str) -> Any:
    """verl's logger of validation samples, which also writes them to the run's folder."""
    from verl.utils.tracking import ValidationGenerationsLogger

    samples_logger = ValidationGenerationsLogger(project_name, experiment_name)
    log = samples_logger.log
    file = run_folder / SAMPLES / Path(os.environ["VERL_FILE_LOGGER_PATH"]).name

    def log_and_keep(loggers: Sequence[str], samples: Sequence[tuple[str, str, float]], step: int) -> None:
        rows = [{"step": step, "input": text, "output": answer, "score": score} for text, answer, score in samples]
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a", encoding="utf-8") as out:
            out.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        for name in set(loggers) & {name for tracking in _OPEN for name in tracking.logger}:
            try:
                log([name], samples, step)
            except Exception:
                logger.warning("%s lost the samples of step %s", name, step, exc_info=True)

    samples_logger.log = log_and_keep
    return samples_logger


def _write_at_once(tensorboard: Any) -> None:
    """verl's writer keeps up to two minutes in memory, which a killed run would lose for good."""
    log = tensorboard.log

    def log_and_flush(data: dict[str, Any], step: int) -> None:
        log(data, step)
        tensorboard.writer.flush()

    tensorboard.log = log_and_flush
