"""Trackers of a run that may be stopped and resumed: the newest tracker run has the whole curve.

A resumed run goes back to its newest checkpoint and repeats the steps after it. RUN/metrics/*.jsonl has the metrics of
all starts, from which the trackers are filled. SwanLab and W&B keep the first value of a step and drop the repeated
one; TensorBoard shows both. So a resumed run opens a new SwanLab or W&B run of the same group, or a new TensorBoard
folder, and writes the steps up to the checkpoint into it before training continues. Console and file need no such step.

If a tracker cannot be opened, or fails later, it is left out with a line in the log, and the run goes on. An error of
the metrics file ends the run, because reports and resumed runs need this file.

verl logs its table of validation samples to trackers only. RUN/samples/*.jsonl has the same samples, one file per
start, one {"step", "input", "output", "score"} per line.
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
OURS = ("console", "file")  # trackers of verl's whose errors end the run
_OPEN: list[Any] = []  # results of `open_trackers` in this process
FOLLOWERS: list[Callable[[int, Mapping[str, Any]], None]] = []  # called with each logged step and its metrics
FINISH_SECONDS = 8.0  # time for trackers to upload the rest at the end of a run
OFFLINE_MODES = {"swanlab": ("offline", "local", "disabled"), "wandb": ("offline", "disabled", "dryrun")}
FILLED = ("swanlab", "wandb", "trackio", "tensorboard")  # trackers that get the steps of earlier starts


def make_tracker_environment(run_folder: Path, name: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return variables for the folders, groups and modes of verl's trackers.

    SwanLab and W&B upload if a key is set or a login was saved. Otherwise `swanlab sync` and `wandb sync` can upload
    their files later.

    Args:
        run_folder: the run's folder, which gets the trackers' files.
        name: the run's name, which groups its starts.
        environment: this process's variables; those that are set here are left out of the result.
    """
    variables = {
        "TENSORBOARD_DIR": str(run_folder / "tensorboard"),
        "SWANLAB_LOG_DIR": str(run_folder / "swanlab"),
        "SWANLAB_MODE": "cloud" if has_login("swanlab", environment) else "offline",
        "SWANLAB_EXPERIMENT_GROUP": name,
        "WANDB_DIR": str(run_folder),
        "WANDB_MODE": "online" if has_login("wandb", environment) else "offline",
        "WANDB_RUN_GROUP": name,
    }
    return {key: value for key, value in variables.items() if key not in environment}


def has_login(tracker: str, environment: Mapping[str, str]) -> bool:
    """Return whether a tracker can upload: a key is set, or was saved by its `login` command.

    Args:
        tracker: "swanlab" or "wandb".
        environment: this process's variables; HOME names the folder of saved logins.
    """
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
    """Open verl's Tracking for a start of the run, and fill its curves up to the checkpoint from which the run resumes.

    This sets the trackers' variables in `os.environ`.

    Args:
        run_folder: the run's folder.
        project_name: name of the project in the trackers.
        experiment_name: name of the run, which groups its starts.
        backends: verl's names of the trackers.
        config: the run's config as plain data; its secrets are masked.

    Returns:
        verl's Tracking, whose `log(data, step)` also calls FOLLOWERS. Trackers that could not be opened are missing.
    """
    from verl.utils.tracking import Tracking

    config = mask_settings(config)
    backends = [backends] if isinstance(backends, str) else list(backends)
    os.environ.update(make_tracker_environment(run_folder, experiment_name, os.environ))
    done = latest_step(run_folder)
    starts = 1 + len(list((run_folder / METRICS).glob("[0-9]*.jsonl")))  # this start's file is created below
    name = experiment_name if starts == 1 else f"{experiment_name}-start{starts}"
    board = Path(os.environ.get("TENSORBOARD_DIR") or run_folder / "tensorboard")
    os.environ["TENSORBOARD_DIR"] = str(board / f"start{starts}")
    tracking = Tracking(project_name, name, [backend for backend in backends if backend in OURS], config)
    for backend in backends:
        if backend not in OURS:
            tracking.logger |= _open_tracker(backend, partial(Tracking, project_name, name, [backend], config))
    _OPEN.append(tracking)
    if "tensorboard" in tracking.logger:
        _flush_each_step(tracking.logger["tensorboard"].tracker)
    backends_to_fill = [name for name in backends if name in FILLED]
    for row in read_metrics(run_folder):
        if row["step"] <= done:
            data = {name: value for name, value in row.items() if name != "step" and value is not None}
            tracking.log(data=data, step=row["step"], backend=backends_to_fill)
    _call_followers(tracking)
    return tracking


def _call_followers(tracking: Any) -> None:
    """Call the FOLLOWERS for each step that is logged from now on."""
    log = tracking.log

    def log_and_call(data: dict[str, Any], step: int) -> None:
        log(data=data, step=step)
        for follow in FOLLOWERS:
            follow(step, data)

    tracking.log = log_and_call


class Tolerant:
    """A tracker of verl's whose failures are logged. After FAILURES in a row it is no longer called."""

    FAILURES = 10

    def __init__(self, name: str, tracker: Any) -> None:
        self.name = name
        self.tracker = tracker
        self.failures = 0

    def log(self, data: Mapping[str, Any], step: int) -> None:
        """Log a step's metrics; an error of the tracker becomes a line in the log.

        Args:
            data: metric -> value.
            step: the step's number; 0 before the first one.
        """
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


def _open_tracker(name: str, make: Callable[[], Any]) -> dict[str, Tolerant]:
    """Return {name: tracker}; {} if it cannot be opened."""
    if os.environ.get("SWANLAB_MODE") in OFFLINE_MODES["swanlab"]:  # verl would log in if a key is set
        os.environ.pop("SWANLAB_API_KEY", None)
    try:
        tracking = make()
        trackers = {backend: Tolerant(backend, tracker) for backend, tracker in tracking.logger.items()}
        tracking.logger = {}  # verl finishes the trackers of this object when it is deleted
        return trackers
    except Exception:
        logger.warning("cannot open the tracker %s: left out", name, exc_info=True)
        return {}


def finish() -> None:
    """Let the trackers of this process upload the rest, for at most FINISH_SECONDS."""
    threads = [threading.Thread(target=tracking.finish, daemon=True) for tracking in _OPEN]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(FINISH_SECONDS)
    _OPEN.clear()


def open_samples_logger(run_folder: Path, project_name: str, experiment_name: str) -> Any:
    """Return verl's logger of validation samples, which also writes them to RUN/samples.

    The file has the name of this start's metrics file, which VERL_FILE_LOGGER_PATH names.

    Args:
        run_folder: the run's folder.
        project_name: name of the project in the trackers.
        experiment_name: name of the run in the trackers.

    Returns:
        verl's object. `log(loggers, samples, step)` takes samples as (prompt, answer, score).
    """
    from verl.utils.tracking import ValidationGenerationsLogger

    samples_logger = ValidationGenerationsLogger(project_name, experiment_name)
    log = samples_logger.log
    file = run_folder / SAMPLES / Path(os.environ["VERL_FILE_LOGGER_PATH"]).name

    def log_and_write(loggers: Sequence[str], samples: Sequence[tuple[str, str, float]], step: int) -> None:
        rows = [{"step": step, "input": text, "output": answer, "score": score} for text, answer, score in samples]
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a", encoding="utf-8") as out:
            out.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        for name in set(loggers) & {name for tracking in _OPEN for name in tracking.logger}:
            try:
                log([name], samples, step)
            except Exception:
                logger.warning("%s lost the samples of step %s", name, step, exc_info=True)

    samples_logger.log = log_and_write
    return samples_logger


def _flush_each_step(tensorboard: Any) -> None:
    """Flush TensorBoard's file after each step: verl's writer would lose up to two minutes of a killed run."""
    log = tensorboard.log

    def log_and_flush(data: dict[str, Any], step: int) -> None:
        log(data, step)
        tensorboard.writer.flush()

    tensorboard.log = log_and_flush
