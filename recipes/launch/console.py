"""What the user sees of a run: our lines and a progress bar on the terminal, everything else in a log file."""

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

MOST_LISTS = 0.9  # share of the responses without a stop token at which a run says so


class Console:
    """Writes to the terminal the process was started on, whatever stdout and stderr point to since."""

    def __init__(self) -> None:
        self.stream: TextIO = os.fdopen(os.dup(2), "w", buffering=1)
        self.secrets: Collection[str] = ()  # of the run's settings, once they are read

    def say(self, text: str) -> None:
        tqdm.write(self.mask(text), file=self.stream)

    def mask(self, text: str) -> str:
        """Return the text without the run's secrets."""
        return mask_text(text, self.secrets)


@contextlib.contextmanager
def output_to(log_file: Path, secrets: Collection[str] = ()) -> Iterator[None]:
    """Append stdout and stderr of this process and its children, verl, Ray and vLLM, to the file.

    Afterwards the terminal is back until the interpreter ends: what libraries print then (nanobind, of leaks) is for
    the file too.

    Args:
        log_file: is made where it is missing.
        secrets: are masked in what this process prints: verl prints the settings, Ray what workers have printed.
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
            for bar in list(getattr(tqdm, "_instances", ())):  # verl's: an interrupted one would draw itself once more,
                bar.close()  # on the terminal
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
    """Progress by what the run logs in this process: a bar, or lines.

    total: steps of the run, None where epochs decide. show: metric name -> short name beside the bar.
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
        if not latest:  # the rate is that of steps, without the start and the first step, which warms up
            bar.initial = step
            bar.start_t = time.time()
            if warning := cut_lists_warning(metrics):
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
        bar.leave = False  # the line that says so is all there is to see
        raise
    finally:
        tracking.FOLLOWERS.remove(follow)
        bar.close()


def cut_lists_warning(metrics: Mapping[str, Any]) -> str:
    """Return what to say where nearly all responses of a step have no stop token; "" where most have one."""
    share = metrics.get("rank_grpo/truncated", 0.0)
    if share < MOST_LISTS:
        return ""
    return (
        f"{share:.0%} of this step's responses were cut at MAX_RESPONSE_LENGTH: the model does not stop by itself. "
        "Train it by SFT first, or raise MAX_RESPONSE_LENGTH"
    )
