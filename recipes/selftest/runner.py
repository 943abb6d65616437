"""Runs phases in processes of their own, each with a time limit: what hangs or dies is a failed phase with its name."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

import psutil

from convrec.files import read_json
from recipes.selftest.phases import Phase

POLL_SECONDS = 0.2
SAMPLE_SECONDS = 1.0  # between two looks at memory
START_SECONDS = 60  # of a process, for imports; added to the limit of its first phase
TAIL_LINES = 25


@dataclass
class Outcome:
    """What became of a phase. seconds: the first of a process also loads libraries. *_bytes: the most in use, of the
    phase's processes (proportional set sizes) and of the GPU with the most, as nvidia-smi says; 0 where not measured.
    """

    phase: str
    status: Literal["pass", "fail", "skipped"]
    reason: str = ""
    seconds: float = 0.0
    host_bytes: int = 0
    device_bytes: int = 0
    figures: dict[str, Any] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)


def run(
    phases: Sequence[Phase],
    folder: Path,
    gpus: int,
    environment: Mapping[str, str],
    seconds: float,
    report: Callable[[Outcome], None],
) -> list[Outcome]:
    """Run the phases in their order, in `folder`.

    Args:
        seconds: of all together; a phase that would begin later is skipped.
        report: gets every outcome as soon as it is there.
    """
    deadline = time.monotonic() + seconds
    outcomes = []

    def keep(outcome: Outcome) -> None:
        outcomes.append(outcome)
        report(outcome)

    for _, group in groupby(phases, lambda phase: phase.process):
        waiting = list(group)
        while waiting:
            if too_few := [phase for phase in waiting if phase.gpus > gpus]:
                for phase in too_few:
                    count = "a GPU" if phase.gpus == 1 else f"{phase.gpus} GPUs"
                    keep(Outcome(phase.name, "skipped", f"needs {count}, there {'is' if gpus == 1 else 'are'} {gpus}"))
                waiting = [phase for phase in waiting if phase.gpus <= gpus]
            elif time.monotonic() > deadline:
                for phase in waiting:
                    keep(
                        Outcome(phase.name, "skipped", f"no time left of {seconds:.0f} s; --only {phase.name} runs it")
                    )
                break
            else:
                done = _run_process(waiting, folder, gpus, environment, deadline, keep)
                waiting = waiting[done:]
    return outcomes


def _run_process(
    phases: Sequence[Phase],
    folder: Path,
    gpus: int,
    environment: Mapping[str, str],
    deadline: float,
    keep: Callable[[Outcome], None],
) -> int:
    """One process for these phases, until they are done or one of them ended it; how many have an outcome."""
    log_file = folder / f"{phases[0].name}.log"
    command = [sys.executable, "-m", "recipes.selftest.child", str(folder), str(gpus)]
    command += [f"{phase.name}={phase.function}" for phase in phases]
    with log_file.open("w") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=dict(environment), start_new_session=True
        )
    try:
        for done, phase in enumerate(phases):
            if done and time.monotonic() > deadline:
                return done
            result = folder / "results" / f"{phase.name}.json"
            with MemoryPeak(process.pid, gpus > 0) as peak:
                start = time.monotonic()
                outcome = _wait(phase, process, result, phase.seconds + (0 if done else START_SECONDS))
            outcome.seconds = outcome.seconds or time.monotonic() - start
            outcome.host_bytes, outcome.device_bytes = peak.host_bytes, peak.device_bytes
            if outcome.status == "fail":
                outcome.log = log_file.read_text(errors="replace").splitlines()[-TAIL_LINES:]
            keep(outcome)
            if outcome.status == "fail":  # the process hangs, is gone, or has a CUDA error that stays: no more in it
                return done + 1
    finally:
        _end(process)
    return len(phases)


def _wait(phase: Phase, process: subprocess.Popen, result: Path, limit: float) -> Outcome:
    deadline = time.monotonic() + limit
    while True:
        status = process.poll()
        if result.exists():
            return Outcome(phase.name, **read_json(result))
        if status is not None:
            cause = signal.Signals(-status).name if status < 0 else f"exit status {status}"
            return Outcome(phase.name, "fail", f"its process ended ({cause})")
        if time.monotonic() > deadline:
            return Outcome(phase.name, "fail", f"no end after {limit:.0f} s")
        time.sleep(POLL_SECONDS)


def _family(pid: int) -> list[psutil.Process]:
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    return []


def _end(process: subprocess.Popen) -> None:
    """End the process with all it has started; gone processes are no error."""
    family = _family(process.pid)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # its own session: what lost its parent is in there too
    for member in family:
        with contextlib.suppress(psutil.Error):
            member.kill()
    process.wait()


class MemoryPeak:
    """The most memory that a process and its children use while this is open, and the most of a GPU."""

    def __init__(self, pid: int, has_gpu: bool) -> None:
        self.pid, self.has_gpu = pid, has_gpu and shutil.which("nvidia-smi") is not None
        self.host_bytes = self.device_bytes = 0
        self.closed = threading.Event()
        self.thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> "MemoryPeak":
        self.thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.closed.set()
        self.thread.join()

    def _sample(self) -> None:
        closed = False
        while not closed:
            closed = self.closed.wait(SAMPLE_SECONDS)  # and once more then: a short phase has no other sample
            self.host_bytes = max(self.host_bytes, sum(_proportional_bytes(_family(self.pid))))
            if self.has_gpu:
                self.device_bytes = max(self.device_bytes, *device_bytes())


def _proportional_bytes(processes: Sequence[psutil.Process]) -> Iterator[int]:
    for process in processes:
        with contextlib.suppress(psutil.Error):
            yield process.memory_full_info().pss


def device_bytes() -> list[int]:
    """In use on each GPU, by all processes."""
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    return [int(line) * 2**20 for line in done.stdout.split() if line.isdigit()] or [0]
