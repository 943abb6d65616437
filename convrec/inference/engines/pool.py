"""Several replicas that share one queue of tasks. A task whose replica is killed is asked again, and no other."""

import itertools
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from tqdm import tqdm

from convrec.inference.engines.process import Died, Load, Process

ASKED_AT_MOST = 3  # times that a task is asked when its replica dies each time


class Pool:
    """A replica for each environment, with GPUs or cores of its own, started when there is a task for it. `close` ends
    them."""

    def __init__(self, environments: Sequence[Mapping[str, str]], load: Load, settings: Any, log: Path) -> None:
        """
        Args:
            load: what each replica calls with the settings.
            log: of the first one; the others' have their index in the name.
        """
        self._load = load
        self._settings = settings
        self.environments = environments
        self.log = log
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._is_closed = False
        self._replicas: dict[int, Process] = {}  # by its index
        self._own = threading.local()  # a thread's index
        # a thread a replica, which lives as long as the pool: see Process
        self._executor = ThreadPoolExecutor(len(environments), "convrec-replica", self._begin, (itertools.count(),))

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
            if len(running) == 2 * len(self.environments):  # for each replica one that it does and one that waits
                yield from _finished(running)
        while running:
            yield from _finished(running)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
        for replica in list(self._replicas.values()):
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
                log = self.log if index == 0 else self.log.with_stem(f"{self.log.stem}-{index}")
                self._replicas[index] = Process(self._load, self._settings, log, self.environments[index])
            return self._replicas[index]


def _finished(running: dict[Future[Any], int]) -> Iterator[tuple[int, Any]]:
    """Wait for a task, and take what is done out of `running`: answers, and then an error."""
    done, _ = wait(running, return_when=FIRST_COMPLETED)
    for task in sorted(done, key=lambda task: task.exception() is not None):
        yield running.pop(task), task.result()
