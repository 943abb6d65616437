"""A thread of the driver that notices when a process of the run has died or hangs, and ends the wait for it.

In several places verl waits without limit for a process that may be dead: its queue for rollouts that will never come,
its weight transfer for a vLLM worker that will never read. Ray knows of a death at once, but reports it only on
request. A process that is alive but does nothing, such as a stopped vLLM engine, is only noticed by a phase of a step
that does not end (convrec.runs.phases).
"""

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, OutOfMemoryError, RayActorError, RayError

from convrec.base.errors import NoProgress, ProcessLost, is_lost_process, one_line
from convrec.runs import guard, memory, supervisor
from convrec.runs.phases import Phases
from convrec.training.watch.nodes import Nodes, describe_hang

logger = logging.getLogger(__name__)

CHECK_SECONDS = 2.0
UNREACHABLE_SECONDS = 60.0  # Ray's connections may break and come back; Ray gives a node up after about 30 s
DEATH_SECONDS = 3.0  # time for Ray to notice a death whose first sign was the error of another process
SECONDS_TO_STOP = 20.0  # time for the driver to end, which may itself wait for dead processes


class Watch:
    """Sends each actor a request without waiting: a busy actor answers later, and Ray reports a dead one at once.

    Args:
        actors: returns name -> handle of the actors that exist.
        phases: phases of the main thread; None turns the search for hangs off.
    """

    def __init__(self, actors: Callable[[], Mapping[str, Any]], phases: Phases | None = None) -> None:
        self.actors = actors
        self.phases = phases
        self.nodes = Nodes()
        self.why = ""  # reason of the lost actor's death
        self.pending: dict[str, Any] = {}
        self.unreachable_since: dict[str, float] = {}
        self.error: ProcessLost | None = None
        self.stopped = threading.Event()

    def find_lost_actor(self) -> str:
        """Return the name of an actor that is dead or unreachable for UNREACHABLE_SECONDS; "" if there is none."""
        for name, handle in self.actors().items():
            try:
                pending = self.pending.get(name)  # read once: the watching thread and the main thread may both look
                if pending is not None:
                    answered, _ = ray.wait([pending], timeout=0)
                    if not answered:
                        continue
                    ray.get(answered[0])
                    self.unreachable_since.pop(name, None)
                self.pending[name] = handle.__ray_ready__.remote()
            except RayError as error:
                is_dead = isinstance(error, OutOfMemoryError) or (
                    isinstance(error, RayActorError) and not isinstance(error, ActorUnavailableError)
                )
                since = self.unreachable_since.setdefault(name, time.monotonic())
                if is_dead or time.monotonic() - since > UNREACHABLE_SECONDS:
                    self.why = _reason(error)
                    return name
                logger.warning("cannot reach the %s (%s): trying again", name, type(error).__name__)
                self.pending.pop(name, None)
        return ""

    def find_problem(self) -> ProcessLost | None:
        """Return the error that ends the run; None if there is no problem."""
        if lost_gcs := self.nodes.find_lost_gcs():
            return ProcessLost(lost_gcs)
        if lost := self.find_lost_actor():
            return ProcessLost(self.nodes.find_lost_node() or _gone(lost, self.why))
        if self.phases is None or not (overdue := self.phases.overdue()):
            return None
        where = describe_hang(self.list_silent())
        if not self.phases.overdue():
            logger.warning("%s, but it has ended now", overdue)
            return None
        return NoProgress(f"{overdue}: {where}")

    def list_silent(self) -> list[str]:
        """Return the names of the actors that have not answered; busy ones are among them."""
        return [name for name, answer in list(self.pending.items()) if not ray.wait([answer], timeout=0)[0]]

    def start(self) -> None:
        """Start to watch; must be called in the main thread, which a problem interrupts."""
        self.nodes.locate_actors(self.actors())
        if self.phases:
            self.phases.restart()
        signal.signal(signal.SIGUSR2, self._raise)
        threading.Thread(target=self._run, daemon=True, name="liveness").start()

    def _run(self) -> None:
        while not self.stopped.wait(CHECK_SECONDS):
            error = self.find_problem()
            if error and not self.stopped.is_set():
                self.error = error
                logger.error("%s", error)
                guard.set_exit_message(f"failed: {error}; the same command resumes")
                supervisor.note(lost="yes")
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR2)
                if not self.stopped.wait(SECONDS_TO_STOP):
                    logger.error("the run does not end by itself within %g s: ending it", SECONDS_TO_STOP)
                    os._exit(supervisor.NO_PROGRESS if isinstance(error, NoProgress) else 1)
                return

    def _raise(self, number: int, frame: FrameType | None) -> None:
        if self.error and not self.stopped.is_set():
            raise self.error


@contextlib.contextmanager
def watch_processes(watch: Watch) -> Iterator[None]:
    """Watch the run's processes during the block.

    Raises:
        ProcessLost: a process or a node is lost; the message names it, in place of the error of who noticed first.
        NoProgress: a phase hangs.
    """
    watch.start()
    try:
        yield
    except (RayError, ProcessLost) as error:  # other processes notice a death only as a closed connection
        if error is watch.error:
            raise
        lost = watch.nodes.find_lost_node() or _wait_for_lost_actor(watch)
        if lost or isinstance(error, ProcessLost) or is_lost_process(error):
            supervisor.note(lost="yes")
        if lost:
            raise ProcessLost(lost) from error
        raise
    except SystemError as error:  # C code raises it if a signal handler has raised an error
        if watch.error:
            raise watch.error from error
        raise
    finally:
        watch.stopped.set()


def _wait_for_lost_actor(watch: Watch) -> str:
    deadline = time.monotonic() + DEATH_SECONDS
    while not (name := watch.find_lost_actor()) and time.monotonic() < deadline:
        time.sleep(0.2)
    return _gone(name, watch.why) if name else ""


def _reason(error: RayError) -> str:
    """Return why the process has died."""
    by_ray = memory.explain_ray_kill(error)
    if by_ray:
        return by_ray
    return "killed, or out of memory" if is_lost_process(error) else one_line(error)


def _gone(actor: str, why: str) -> str:
    return f"the {actor} is gone ({why}); the log may say why"
