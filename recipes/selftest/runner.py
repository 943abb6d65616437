"""Run phases in separate processes with time limits, so that one that hangs or dies counts as failed."""

import time
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from threading import Timer
from typing import Any, Literal

from convrec.base.errors import one_line
from convrec.inference.engines.process import Died, Process
from recipes.selftest.checks import Machine

START_SECONDS = 60  # of a process, for imports; added to the limit of its first phase
TAIL_LINES = 25


@dataclass(frozen=True)
class Phase:
    """A check.

    Attributes:
        name: for `--only` and reports.
        what: description.
        function: returns figures, or raises.
        seconds: time limit.
        process: consecutive phases with the same name share a process, to import and load once, until one fails.
        gpus: the phase is skipped with fewer GPUs,
        on_cpu: but runs if there are none at all.
        model_type: of the machine's models.
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
    """The outcome of a phase.

    Attributes:
        phase: its name.
        status: "skipped" if it was not run.
        reason: of a failure or a skip; "" if it passed.
        seconds: that it took.
        figures: that it measured.
        log: the last lines of a failed phase.
    """

    phase: str
    status: Literal["pass", "fail", "skipped"]
    reason: str = ""
    seconds: float = 0.0
    figures: dict[str, Any] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)


def run(phases: Sequence[Phase], machine: Machine, seconds: float) -> Generator[Outcome]:
    """Run phases in order, and yield each outcome as soon as it is known.

    Args:
        phases: to run.
        machine: to check.
        seconds: for all together; a phase whose limit exceeds the rest is skipped.
    """
    deadline = time.monotonic() + seconds
    for _, group in groupby(phases, lambda phase: phase.process):
        waiting = list[Phase]()
        for phase in group:
            if machine.gpus < phase.gpus and (machine.gpus or not phase.on_cpu):
                count = "a GPU" if phase.gpus == 1 else f"{phase.gpus} GPUs"
                yield Outcome(phase.name, "skipped", f"needs {count}, this machine has {machine.gpus}")
            else:
                waiting.append(phase)
        while waiting and _has_time(waiting[0], deadline):
            for outcome in _run_process(waiting, machine, deadline):
                yield outcome
                waiting = waiting[1:]
        for phase in waiting:
            left = max(0.0, deadline - time.monotonic())
            reason = f"may take {phase.seconds} s, {left:.0f} of {seconds:.0f} s are left; --only {phase.name} runs it"
            yield Outcome(phase.name, "skipped", reason)


def _has_time(phase: Phase, deadline: float) -> bool:
    return time.monotonic() + phase.seconds <= deadline


def _run_process(phases: Sequence[Phase], machine: Machine, deadline: float) -> Iterator[Outcome]:
    """Run phases in one process until they are done, the time is over, or one of them fails."""
    log = machine.folder / f"{phases[0].name}.log"
    process = Process(load, machine, log, {})
    try:
        for number, phase in enumerate(phases):
            if number and not _has_time(phase, deadline):
                return
            outcome = _call_phase(process, phase, phase.seconds + (0 if number else START_SECONDS))
            if outcome.status != "fail":
                yield outcome
                continue
            yield replace(outcome, log=log.read_text(errors="replace").splitlines()[-TAIL_LINES:])
            return  # the process hangs, is gone, or has a lasting CUDA error
    finally:
        process.end()


def load(machine: Machine) -> Callable[[Phase, object], Outcome]:
    """Return the function that runs a phase in the process that calls this."""
    return partial(_run_phase, machine)


def _run_phase(machine: Machine, phase: Phase, _: object) -> Outcome:
    start = time.perf_counter()
    try:
        figures = phase.function(replace(machine, model_type=phase.model_type))
    except Exception as error:
        traceback.print_exc()
        return Outcome(phase.name, "fail", one_line(error))
    return Outcome(phase.name, "pass", seconds=time.perf_counter() - start, figures=figures)


def _call_phase(process: Process, phase: Phase, limit: float) -> Outcome:
    """Run a phase in a process, until it ends, the process ends, or the limit is reached."""
    start = time.monotonic()
    at_limit = Timer(limit, process.end)
    at_limit.start()
    try:
        outcome = process.ask(phase, lambda number: None)
    except Died as died:
        is_late = time.monotonic() - start >= limit
        reason = f"no end after {limit:.0f} s" if is_late else f"its process ended ({died.reason})"
        outcome = Outcome(phase.name, "fail", reason)
    finally:
        at_limit.cancel()
    return replace(outcome, seconds=outcome.seconds or time.monotonic() - start)
