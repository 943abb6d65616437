"""The terminal of a run: a few lines and a progress bar; all other output goes to a log file."""

import atexit
import contextlib
import os
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO, cast

from tqdm import tqdm

from convrec.base.progress import Progress
from convrec.runs.folder import latest_step
from convrec.settings.secrets import MaskedStream, mask_text
from convrec.training.trackers import tracking

TRUNCATED_SHARE = 0.9  # a run warns if at least this share of its first responses has no stop token


class Console:
    """Writes to the terminal on which the process was started, even after stdout and stderr were redirected."""

    def __init__(self) -> None:
        self.stream: TextIO = os.fdopen(os.dup(2), "w", buffering=1)
        self.secrets: Collection[str] = ()  # secrets among the run's settings, once they are read

    def say(self, text: str) -> None:
        """Print a line, with secrets masked."""
        tqdm.write(self.mask(text), file=self.stream)

    def mask(self, text: str) -> str:
        """Return the text with the run's secrets masked."""
        return mask_text(text, self.secrets)


@contextlib.contextmanager
def redirect_output(log_file: Path, secrets: Collection[str] = ()) -> Iterator[None]:
    """Append stdout and stderr of this process and its children (verl, Ray, vLLM) to a file.

    After the block they are the terminal again, until the interpreter exits: output of exit handlers, such as
    nanobind's report of leaks, goes to the file too.

    Args:
        log_file: created if it does not exist.
        secrets: texts to mask in the output of this process: verl prints the settings, Ray the output of its workers.
    """
    log_file.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    saved = os.dup(1), os.dup(2)
    with open(log_file, "ab", buffering=0) as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        try:
            with _masked_output(secrets) if secrets else contextlib.nullcontext():
                yield
        finally:
            for bar in list(getattr(tqdm, "_instances", ())):
                bar.close()  # an interrupted bar of verl would be drawn once more, on the terminal
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError):  # the disk may be full
                    stream.flush()
            for target, descriptor in zip((1, 2), saved, strict=True):
                os.dup2(descriptor, target)
                os.close(descriptor)
            atexit.register(os.dup2, os.dup(log.fileno()), 2)


@contextlib.contextmanager
def _masked_output(secrets: Collection[str]) -> Iterator[None]:
    masked_stdout = cast(TextIO, MaskedStream(sys.stdout, secrets))
    masked_stderr = cast(TextIO, MaskedStream(sys.stderr, secrets))
    with contextlib.redirect_stdout(masked_stdout), contextlib.redirect_stderr(masked_stderr):
        yield


@contextlib.contextmanager
def progress(
    console: Console, run_folder: Path, total: int | None, describe: str, show: Mapping[str, str]
) -> Iterator[None]:
    """Show the progress of a run, read from the metrics that it logs in this process, as a bar or as lines.

    Args:
        console: the terminal.
        run_folder: the run's folder; a resumed run begins at its latest step.
        total: steps of the run; None if the number of epochs decides.
        describe: title of the bar.
        show: metric -> short name of the metrics shown next to the bar.
    """
    bar = Progress(
        total=total,
        desc=describe,
        file=console.stream,
        unit="step",
        dynamic_ncols=True,
        mininterval=0.5,
        initial=latest_step(run_folder),
        note=lambda: "" if latest else "starting",
    )
    latest: dict[str, float] = {}

    def follow(step: int, metrics: Mapping[str, Any]) -> None:
        if not latest:  # the rate leaves out the start and the first step, which warms up
            bar.initial = step
            bar.start_t = time.time()
            if warning := describe_truncation(metrics):
                console.say(f"warning: {warning}")
        latest.update({short: metrics[name] for name, short in show.items() if name in metrics})
        if step != bar.n:
            bar.set_postfix_str(" ".join(f"{name} {value:.4g}" for name, value in latest.items()), refresh=False)
            with contextlib.suppress(OSError):  # the terminal may be gone
                bar.update(step - bar.n)

    tracking.FOLLOWERS.append(follow)
    try:
        yield
    except KeyboardInterrupt:
        bar.leave = False  # the line about the interrupt replaces the bar
        raise
    finally:
        tracking.FOLLOWERS.remove(follow)
        bar.close()


def describe_truncation(metrics: Mapping[str, Any]) -> str:
    """Return a warning if nearly all responses of a step have no stop token, else ""."""
    share = metrics.get("rank_grpo/truncated", 0.0)
    if share < TRUNCATED_SHARE:
        return ""
    return (
        f"{share:.0%} of the responses in this step were cut at MAX_RESPONSE_LENGTH: the model does not stop by "
        "itself. Train it with SFT first, or raise MAX_RESPONSE_LENGTH."
    )
