"""Several replicas that share one queue of tasks. A task whose replica is killed is asked again, and no other."""

import itertools
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from tqdm import tqdm

from convrec.generation.process import Died, Load, Process

ASKED_AT_MOST = 3  # times that a task is asked when its replica dies each time
Start: TypeAlias = Callable[[Load, Any, Path], Process]  # of (load, settings, log), as Process takes them


@dataclass(frozen=True)
class Room:
    """Where replicas are started: each of `starts` has GPUs or cores of its own, and can be called again and again.

    folder: of this node, removed with the replicas, also where this process is killed.
    """

    starts: Sequence[Start]
    on_gpu: bool
    folder: Path


class Pool:
    """The replicas of a room, each started when there is a task for it. `close` ends them."""

    def __init__(self, room: Room, load: Load, settings: Any, log: str | Path | None = None) -> None:
        """
        Args:
            room: open for as long as this is.
            load: what each replica calls with the settings.
            log: of the first one, the others' have their index in the name; None: it goes with the room.
        """
        self._room, self._load, self._settings = room, load, settings
        self._log = Path(log or room.folder / "vllm.log")
        self._log.parent.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._is_closed = False
        self._replicas: dict[int, Process] = {}  # by its index in the room
        self._own = threading.local()  # a thread's index
        # a thread a replica, which lives as long as the pool: see Process
        self._executor = ThreadPoolExecutor(len(room.starts), "convrec-replica", self._begin, (itertools.count(),))

    def answers(
        self, tasks: Iterable[Any], progress: Callable[[int], object] = lambda number: None
    ) -> Iterator[tuple[int, Any]]:
        """(number of the task, its answer) as they come. Tasks are drawn as they are needed.

        progress: gets the number of what was finished since the last time; a negative one where that was lost with its
        replica. Raises what a replica raises, and RuntimeError for a task that ASKED_AT_MOST replicas did not survive.
        """
        running: dict[Future[Any], int] = {}
        for number, task in enumerate(tasks):
            running[self._executor.submit(self._ask, task, progress)] = number
            if len(running) == 2 * len(self._room.starts):  # for each replica one that it does and one that waits
                yield from _finished(running)
        while running:
            yield from _finished(running)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
        for replica in self._replicas.values():
            replica.end()
        self._executor.shutdown(cancel_futures=True)

    # ---- in a replica's thread

    def _begin(self, numbers: "itertools.count[int]") -> None:
        self._own.index = next(numbers)

    def _ask(self, task: Any, progress: Callable[[int], object]) -> Any:
        told: list[int] = []

        def tell(number: int) -> None:
            told.append(number)
            with self._lock:
                progress(number)

        for times in itertools.count(1):
            try:
                return self._replica().ask(task, tell)
            except Died as died:
                if self._is_closed:
                    raise
                self._replicas.pop(self._own.index).end()
                tell(-sum(told))
                if times == ASKED_AT_MOST:
                    raise RuntimeError(f"{times} replicas one after the other died of one batch: {died}") from None
                tqdm.write(
                    f"a replica died ({died.reason}): another one starts and is asked its batch", file=sys.stderr
                )

    def _replica(self) -> Process:
        index = self._own.index
        with self._lock:
            if self._is_closed:
                raise Died("closed")
            if index not in self._replicas:
                log = self._log if index == 0 else self._log.with_stem(f"{self._log.stem}-{index}")
                self._replicas[index] = self._room.starts[index](self._load, self._settings, log)
            return self._replicas[index]


def _finished(running: dict[Future[Any], int]) -> Iterator[tuple[int, Any]]:
    """Wait for a task, and take what is done out of `running`: answers, and then an error."""
    done, _ = wait(running, return_when=FIRST_COMPLETED)
    for task in sorted(done, key=lambda task: task.exception() is not None):
        yield running.pop(task), task.result()
