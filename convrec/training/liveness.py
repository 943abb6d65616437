"""A thread of the driver that notices when a process of the run is gone, and ends the wait for it.

verl waits without limit in several places for a process that may be dead: its queue for rollouts that will never come,
and its weight transfer for a vLLM worker that will never read. Ray knows of the death at once, but tells those who ask.
"""

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, RayActorError, RayError

from convrec.runs import guard

logger = logging.getLogger(__name__)

CHECK_SECONDS = 2.0
UNREACHABLE_SECONDS = 60.0  # Ray's connections break and are made again; a node is given up after about 30 s
SECONDS_TO_STOP = 20.0  # for what the driver does on its way out, which may wait for ended processes as well


class ProcessLost(RuntimeError):
    """A process of the run is gone; raised in the driver's main thread, wherever it waits."""


class Watch:
    """Asks each actor for an answer without waiting for it: a busy one answers later, and Ray says at once when one has
    ended.

    Args:
        actors: gives name -> handle of those that are there by now.
    """

    def __init__(self, actors: Callable[[], Mapping[str, Any]]) -> None:
        self.actors = actors
        self.asked: dict[str, Any] = {}
        self.unreachable_since: dict[str, float] = {}
        self.lost = ""
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
                is_dead = isinstance(error, RayActorError) and not isinstance(error, ActorUnavailableError)
                since = self.unreachable_since.setdefault(name, time.monotonic())
                if is_dead or time.monotonic() - since > UNREACHABLE_SECONDS:
                    return name
                logger.warning("the %s is not reached (%s): asking again", name, type(error).__name__)
                self.asked.pop(name, None)
        return ""

    def start(self) -> None:
        """Begin to watch; call it in the main thread, which will be interrupted."""
        signal.signal(signal.SIGUSR2, self._raise)
        threading.Thread(target=self._run, daemon=True, name="liveness").start()

    def stop(self) -> None:
        self.stopped.set()

    def _run(self) -> None:
        while not self.stopped.wait(CHECK_SECONDS):
            lost = self.lost_actor()
            if lost and not self.stopped.is_set():
                self.lost = f"the {lost} is gone (killed, or out of memory); the log may say why"
                logger.error("%s", self.lost)
                guard.explain(f"failed: {self.lost}; the same command resumes")
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR2)
                if not self.stopped.wait(SECONDS_TO_STOP):
                    logger.error("the run does not end by itself within %g s: ending it", SECONDS_TO_STOP)
                    os._exit(1)
                return

    def _raise(self, number: int, frame: FrameType | None) -> None:
        if not self.stopped.is_set():
            raise ProcessLost(self.lost)
