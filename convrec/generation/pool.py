"""Several replicas that share one queue of tasks. A task whose replica is killed is asked again, and no other."""

import itertools
import queue
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from tqdm import tqdm

from convrec.generation.process import Died, Load, Replica

ASKED_AT_MOST = 3  # times that a task is asked when its replica dies each time
AUTO = "auto"  # --replicas: as many as there is room for
Start: TypeAlias = Callable[[Load, Any, Path], Replica]  # of (load, settings, log), as Process takes them


@dataclass(frozen=True)
class Room:
    """Where replicas are started: each of `starts` has GPUs or cores of its own, and can be called again and again.

    folder: of this node, removed with the replicas, also where this process is killed; None where they are elsewhere.
    """

    starts: Sequence[Start]
    on_gpu: bool
    folder: Path | None = None


def count_of(replicas: int | str, room: int) -> int:
    """room: how many replicas the GPUs are enough for."""
    return max(1, room) if replicas == AUTO else int(replicas)


class Pool:
    """The replicas of a room, each started when there is a task for it. `close` ends them."""

    def __init__(self, room: Room, load: Load, settings: Any, log: Path | None = None) -> None:
        """
        Args:
            room: open for as long as this is.
            load: what each replica calls with the settings.
            log: of the first one, the others' have their index in the name; None: it goes with the room.
        """
        self.room, self._load, self._settings = room, load, settings
        self._log = log or (room.folder or Path()) / "vllm.log"  # of a room elsewhere nothing is written here
        self._log.parent.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._is_closed = False
        self._replicas: dict[int, Replica] = {}  # by its index in the room
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
        results: queue.SimpleQueue[Any] = queue.SimpleQueue()
        running = 0
        for number, task in enumerate(tasks):
            self._executor.submit(self._do, number, task, results, progress)
            running += 1
            if running == 2 * len(self.room.starts):  # for each replica one that it does and one that waits
                yield _next(results)
                running -= 1
        for _ in range(running):
            yield _next(results)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
        for replica in self._replicas.values():
            replica.end()
        self._executor.shutdown(cancel_futures=True)

    # ---- in a replica's thread

    def _begin(self, numbers: "itertools.count[int]") -> None:
        self._own.index = next(numbers)

    def _do(self, number: int, task: Any, results: "queue.SimpleQueue[Any]", progress: Callable[[int], object]) -> None:
        """Put what `answers` gives, or the error."""
        try:
            results.put((number, self._ask(task, progress)))
        except BaseException as error:
            results.put(error)

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

    def _replica(self) -> Replica:
        index = self._own.index
        with self._lock:
            if self._is_closed:
                raise Died("closed")
            if index not in self._replicas:
                log = self._log if index == 0 else self._log.with_stem(f"{self._log.stem}-{index}")
                self._replicas[index] = self.room.starts[index](self._load, self._settings, log)
            return self._replicas[index]


def _next(results: "queue.SimpleQueue[Any]") -> tuple[int, Any]:
    if isinstance(result := results.get(), BaseException):
        raise result
    return result
