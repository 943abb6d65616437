"""A thread of the driver that notices when a process of the run is gone or hangs, and ends the wait for it.

verl waits without limit in several places for a process that may be dead: its queue for rollouts that will never come,
and its weight transfer for a vLLM worker that will never read. Ray knows of the death at once, but tells those who ask.
Of a process that is there and does nothing, a stopped vLLM engine say, nobody knows: that shows in phases of a step
that do not end (convrec.runs.phases).
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

from convrec.base.errors import NoProgress, ProcessLost, is_of_lost_process, one_line
from convrec.runs import guard, memory, supervisor
from convrec.runs.phases import Phases
from convrec.training.watch.nodes import Nodes, hanging_processes

logger = logging.getLogger(__name__)

CHECK_SECONDS = 2.0
UNREACHABLE_SECONDS = 60.0  # Ray's connections break and are made again; a node is given up after about 30 s
DEATH_SECONDS = 3.0  # that Ray may take to know of a death whose first sign was another process's error
SECONDS_TO_STOP = 20.0  # for what the driver does on its way out, which may wait for ended processes as well


class Watch:
    """Asks each actor for an answer without waiting for it: a busy one answers later, and Ray says at once when one has
    ended.

    Args:
        actors: gives name -> handle of those that are there by now.
        phases: of the main thread; None: nothing is said of hangs.
    """

    def __init__(self, actors: Callable[[], Mapping[str, Any]], phases: Phases | None = None) -> None:
        self.actors = actors
        self.phases = phases
        self.nodes = Nodes()
        self.why = ""  # the lost actor is gone
        self.asked: dict[str, Any] = {}
        self.unreachable_since: dict[str, float] = {}
        self.error: ProcessLost | None = None
        self.stopped = threading.Event()

    def lost_actor(self) -> str:
        """The name of one that is gone, or that Ray has not reached for UNREACHABLE_SECONDS, or ""."""
        for name, handle in self.actors().items():
            try:
                if name in self.asked:
                    answered, _ = ray.wait([self.asked[name]], timeout=0)
                    if not answered:
                        continue
                    ray.get(answered[0])
                    self.unreachable_since.pop(name, None)
                self.asked[name] = handle.__ray_ready__.remote()
            except RayError as error:
                is_dead = isinstance(error, OutOfMemoryError) or (
                    isinstance(error, RayActorError) and not isinstance(error, ActorUnavailableError)
                )
                since = self.unreachable_since.setdefault(name, time.monotonic())
                if is_dead or time.monotonic() - since > UNREACHABLE_SECONDS:
                    self.why = _reason(error)
                    return name
                logger.warning("the %s is not reached (%s): asking again", name, type(error).__name__)
                self.asked.pop(name, None)
        return ""

    def problem(self) -> ProcessLost | None:
        """What ends the run, if there is something."""
        if lost_gcs := self.nodes.lost_gcs():
            return ProcessLost(lost_gcs)
        if lost := self.lost_actor():
            return ProcessLost(self.nodes.lost_node() or _gone(lost, self.why))
        if self.phases is None or not (overdue := self.phases.overdue()):
            return None
        where = hanging_processes(self.silent())
        if not self.phases.overdue():
            logger.warning("%s, but it goes on", overdue)
            return None
        return NoProgress(f"{overdue}: {where}")

    def silent(self) -> list[str]:
        """Names of the actors that have not answered; one that works does not, either."""
        return [name for name, answer in self.asked.items() if not ray.wait([answer], timeout=0)[0]]

    def start(self) -> None:
        """Begin to watch; call it in the main thread, which will be interrupted."""
        self.nodes.learn(self.actors())
        if self.phases:
            self.phases.restart()
        signal.signal(signal.SIGUSR2, self._raise)
        threading.Thread(target=self._run, daemon=True, name="liveness").start()

    def _run(self) -> None:
        while not self.stopped.wait(CHECK_SECONDS):
            error = self.problem()
            if error and not self.stopped.is_set():
                self.error = error
                logger.error("%s", error)
                guard.explain(f"failed: {error}; the same command resumes")
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
def watched(watch: Watch) -> Iterator[None]:
    """Watch what runs inside. Ray's error for a process or a node that is lost becomes a ProcessLost that names it."""
    watch.start()
    try:
        yield
    except RayError as error:  # the others notice that a process is gone, and of that only a closed connection
        lost = watch.nodes.lost_node() or _lost_actor(watch)
        if lost or is_of_lost_process(error):
            supervisor.note(lost="yes")
        if lost:
            raise ProcessLost(lost) from error
        raise
    except SystemError as error:  # so C code says that what was raised in the handler of a signal came through it
        if watch.error:
            raise watch.error from error
        raise
    finally:
        watch.stopped.set()


def _lost_actor(watch: Watch) -> str:
    deadline = time.monotonic() + DEATH_SECONDS
    while not (name := watch.lost_actor()) and time.monotonic() < deadline:
        time.sleep(0.2)
    return _gone(name, watch.why) if name else ""


def _reason(error: RayError) -> str:
    """Why the process is gone."""
    by_ray = memory.explain_ray_kill(error)
    if by_ray:
        return by_ray
    return "killed, or out of memory" if is_of_lost_process(error) else one_line(error)


def _gone(actor: str, why: str) -> str:
    return f"the {actor} is gone ({why}); the log may say why"
