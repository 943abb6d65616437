"""Runs phases in processes of their own, each with a time limit: what hangs or dies is a failed phase with its name."""

import contextlib
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, Literal

from convrec.errors import one_line
from recipes.selftest.checks import Machine

SPAWN = multiprocessing.get_context("spawn")
START_SECONDS = 60  # of a process, for imports; added to the limit of its first phase
TAIL_LINES = 25


@dataclass(frozen=True)
class Phase:
    """function: returns figures, or raises. seconds: it has failed when it takes longer.

    process: phases of the same name run in one process, until one fails: it imports and loads once. gpus: it is skipped
    where there are fewer; on_cpu: not where there are none. model_type: of the machine's models.
    """

    name: str
    what: str
    function: Callable[[Machine], dict[str, Any]]
    seconds: int
    process: str
    gpus: int = 0
    on_cpu: bool = False
    model_type: str = "qwen2"


@dataclass(frozen=True)
class Outcome:
    """What became of a phase. log: the last lines of one that failed."""

    phase: str
    status: Literal["pass", "fail", "skipped"]
    reason: str = ""
    seconds: float = 0.0
    figures: dict[str, Any] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)


def run(phases: Sequence[Phase], machine: Machine, seconds: float) -> Generator[Outcome]:
    """Run the phases in their order; each outcome as soon as it is there.

    seconds: of all together; a phase that may take longer than what is left is skipped.
    """
    deadline = time.monotonic() + seconds
    for _, group in groupby(phases, lambda phase: phase.process):
        waiting = list[Phase]()
        for phase in group:
            if machine.gpus < phase.gpus and (machine.gpus or not phase.on_cpu):
                count, are = "a GPU" if phase.gpus == 1 else f"{phase.gpus} GPUs", "is" if machine.gpus == 1 else "are"
                yield Outcome(phase.name, "skipped", f"needs {count}, there {are} {machine.gpus}")
            else:
                waiting.append(phase)
        while waiting and _has_time(waiting[0], deadline):
            for outcome in _run_process(waiting, machine, deadline):
                yield outcome
                waiting = waiting[1:]
        for phase in waiting:
            left = max(0.0, deadline - time.monotonic())
            why = f"may take {phase.seconds} s, {left:.0f} of {seconds:.0f} s are left; --only {phase.name} runs it"
            yield Outcome(phase.name, "skipped", why)


def _has_time(phase: Phase, deadline: float) -> bool:
    return time.monotonic() + phase.seconds <= deadline


def _run_process(phases: Sequence[Phase], machine: Machine, deadline: float) -> Iterator[Outcome]:
    """Outcomes of one process for these phases, until they are done, time is over, or one of them ended it."""
    log = machine.folder / f"{phases[0].name}.log"
    log.touch()
    reader, writer = SPAWN.Pipe(duplex=False)
    process = SPAWN.Process(target=_child, args=(phases, machine, log, writer))
    process.start()
    assert process.pid
    writer.close()
    try:
        for number, phase in enumerate(phases):
            if number and not _has_time(phase, deadline):
                return
            outcome = _wait(phase, process, reader, phase.seconds + (0 if number else START_SECONDS))
            if outcome.status != "fail":
                yield outcome
                continue
            yield replace(outcome, log=log.read_text(errors="replace").splitlines()[-TAIL_LINES:])
            return  # the process hangs, is gone, or has a CUDA error that stays: no more in it
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()  # before it had a session of its own
        process.join()


def _child(phases: Sequence[Phase], machine: Machine, log: Path, writer: Connection) -> None:
    """The process: sends an outcome after each phase."""
    os.setsid()  # what it starts ends with it
    file = os.open(log, os.O_WRONLY)
    os.dup2(file, 1)
    os.dup2(file, 2)
    for phase in phases:
        start = time.perf_counter()
        try:
            figures = phase.function(replace(machine, model_type=phase.model_type))
            outcome = Outcome(phase.name, "pass", seconds=time.perf_counter() - start, figures=figures)
        except Exception as error:
            traceback.print_exc()
            outcome = Outcome(phase.name, "fail", one_line(error))
        writer.send(outcome)
    os._exit(0)  # vLLM's and torch's threads would hold up the interpreter's shutdown


def _wait(phase: Phase, process: SpawnProcess, reader: Connection, limit: float) -> Outcome:
    """For the phase's end, its process's, or the limit."""
    start = time.monotonic()
    outcome = Outcome(phase.name, "fail", f"no end after {limit:.0f} s")
    if wait([reader, process.sentinel], limit):
        try:
            outcome = reader.recv()
        except EOFError:
            process.join()
            status = process.exitcode or 0
            cause = signal.Signals(-status).name if status < 0 else f"exit status {status}"
            outcome = Outcome(phase.name, "fail", f"its process ended ({cause})")
    return replace(outcome, seconds=outcome.seconds or time.monotonic() - start)
