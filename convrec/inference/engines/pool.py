"""Replicas that share a queue of tasks. If a replica is killed, only its task is run again."""

import itertools
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from tqdm import tqdm

from convrec.inference.engines.process import Died, Load, Process

MAX_ATTEMPTS = 3  # of a task whose replica dies each time


class Pool:
    """A replica for each environment, started when there is a task for it; `close` ends them."""

    def __init__(self, environments: Sequence[Mapping[str, str]], load: Load, settings: Any, log: Path) -> None:
        """Create the pool; replicas start with their first task.

        Args:
            environments: environment variables of each replica, with its GPUs or cores.
            load: called by each replica with the settings.
            settings: argument of load.
            log: the first replica's log; the other logs have the replica's index in their names.
        """
        self._load = load
        self._settings = settings
        self.environments = environments
        self.log = log
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._is_closed = False
        self._replicas: dict[int, Process] = {}  # by index
        self._own = threading.local()  # a thread's index
        # A replica's thread must live as long as the pool; `Process` says why.
        self._executor = ThreadPoolExecutor(len(environments), "convrec-replica", self._begin, (itertools.count(),))

    def answers(
        self, tasks: Iterable[Any], progress: Callable[[int], object] = lambda number: None
    ) -> Iterator[tuple[int, Any]]:
        """Yield (number of the task, its answer) as answers arrive. Tasks are drawn lazily.

        Args:
            tasks: any picklable values.
            progress: gets the number of units finished since the last call; negative if they were lost with a replica.

        Raises:
            RuntimeError: MAX_ATTEMPTS replicas died of a task. A replica's own errors are raised as they are.
        """
        running: dict[Future[Any], int] = {}
        for number, task in enumerate(tasks):
            running[self._executor.submit(self._ask, task, progress)] = number
            if len(running) == 2 * len(self.environments):  # for each replica, one task running and one waiting
                yield from _iter_finished(running)
        while running:
            yield from _iter_finished(running)

    def close(self) -> None:
        """End all replicas; unfinished tasks fail."""
        with self._lock:
            self._is_closed = True
        for replica in list(self._replicas.values()):
            replica.end()
        self._executor.shutdown(cancel_futures=True)

    # ---- in a replica's thread

    def _begin(self, numbers: "itertools.count[int]") -> None:
        self._own.index = next(numbers)

    def _ask(self, task: Any, progress: Callable[[int], object]) -> Any:
        reports: list[int] = []

        def report(number: int) -> None:
            reports.append(number)
            with self._lock:
                progress(number)

        for attempt in itertools.count(1):
            try:
                return self._get_replica().ask(task, report)
            except Died as died:
                if self._is_closed:
                    raise
                self._replicas.pop(self._own.index).end()
                report(-sum(reports))
                if attempt == MAX_ATTEMPTS:
                    raise RuntimeError(f"{attempt} replicas in a row died on the same batch: {died}") from None
                tqdm.write(f"a replica died ({died.reason}); a new one starts and repeats its batch", file=sys.stderr)

    def _get_replica(self) -> Process:
        index = self._own.index
        with self._lock:
            if self._is_closed:
                raise Died("closed")
            if index not in self._replicas:
                log = self.log if index == 0 else self.log.with_stem(f"{self.log.stem}-{index}")
                self._replicas[index] = Process(self._load, self._settings, log, self.environments[index])
            return self._replicas[index]


def _iter_finished(running: dict[Future[Any], int]) -> Iterator[tuple[int, Any]]:
    """Wait for a task, and remove the finished ones from `running`: first answers, then an error."""
    done, _ = wait(running, return_when=FIRST_COMPLETED)
    for task in sorted(done, key=lambda task: task.exception() is not None):
        yield running.pop(task), task.result()
