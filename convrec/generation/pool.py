"""Several replicas that share one queue of jobs. A task whose replica is killed is asked again, and no other."""

import contextlib
import queue
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from tqdm import tqdm

from convrec.generation.place import Place
from convrec.generation.placement import Places
from convrec.generation.process import Died, Replica

ASKED_AT_MOST = 3  # times that a task is asked when its replica dies each time


class Job(NamedTuple):
    """Tasks for one replica, which has loaded `settings`."""

    settings: Any
    tasks: Sequence[Any]


class Pool:
    """A replica for each place, started when there is a job for it. Make one with `open_pool`."""

    def __init__(self, places: Sequence[Place], target: str, log: Path, progress: Callable[[int], None]) -> None:
        """As `open_pool`."""
        self.places, self._target, self._log, self._progress = places, target, log, progress
        self._free: queue.SimpleQueue[tuple[int, Place]] = queue.SimpleQueue()
        for number_and_place in enumerate(places):
            self._free.put(number_and_place)
        self._lock = threading.Lock()
        self._is_closed = False
        self._replicas: dict[int, tuple[Any, Replica]] = {}  # by the number of the place, with what it has loaded
        self._own = threading.local()  # a thread's number and place
        # a thread a replica, which lives as long as the pool: see Process
        self._executor = ThreadPoolExecutor(len(places), "convrec-replica")

    def answers(self, jobs: Iterable[Job]) -> Iterator[tuple[int, int, Any]]:
        """(number of the job, number of the task in it, its answer) as they come. Jobs are drawn as they are needed.

        A replica that has loaded other settings than a job's is ended for it, and another one started. Raises what a
        replica raises, and RuntimeError for a task that ASKED_AT_MOST replicas did not survive.
        """
        results: queue.SimpleQueue[Any] = queue.SimpleQueue()
        running = 0
        for number, job in enumerate(jobs):
            self._executor.submit(self._do, number, job, results)
            running += 1
            if running == 2 * len(self.places):  # for each replica one that it does and one that waits
                yield from _until_one_is_done(results)
                running -= 1
        for _ in range(running):
            yield from _until_one_is_done(results)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
        for _, replica in self._replicas.values():
            replica.end()
        self._executor.shutdown(cancel_futures=True)

    # ---- in a replica's thread

    def _do(self, number: int, job: Job, results: "queue.SimpleQueue[Any]") -> None:
        """Put what `answers` gives, then None; or the error."""
        try:
            if not hasattr(self._own, "place"):
                self._own.number, self._own.place = self._free.get()
            for part, task in enumerate(job.tasks):
                results.put((number, part, self._ask(job.settings, task)))
            results.put(None)
        except BaseException as error:
            results.put(error)

    def _ask(self, settings: Any, task: Any) -> Any:
        for times in range(1, ASKED_AT_MOST + 1):
            told: list[int] = []
            try:
                return self._replica(settings).ask(task, lambda number, told=told: self._tell(number, told))  # type: ignore[misc]
            except Died as died:
                if self._is_closed:
                    raise
                self._replicas.pop(self._own.number)[1].end()
                self._tell(-sum(told), told)
                if times == ASKED_AT_MOST:
                    raise RuntimeError(f"{times} replicas one after the other died of one batch: {died}") from None
                tqdm.write(
                    f"a replica died ({died.reason}): another one starts and is asked its batch", file=sys.stderr
                )
        raise AssertionError

    def _tell(self, number: int, told: list[int]) -> None:
        told.append(number)
        with self._lock:
            self._progress(number)

    def _replica(self, settings: Any) -> Replica:
        number, place = self._own.number, self._own.place
        with self._lock:
            if self._is_closed:
                raise Died("closed")
            loaded, replica = self._replicas.get(number, (None, None))
            if replica is None or loaded != settings:
                if replica is not None:
                    replica.end()
                log = self._log if number == 0 else self._log.with_stem(f"{self._log.stem}-{number}")
                replica = place.start(self._target, settings, log)
                self._replicas[number] = settings, replica
            return replica


def _until_one_is_done(results: "queue.SimpleQueue[Any]") -> Iterator[tuple[int, int, Any]]:
    while (result := results.get()) is not None:
        if isinstance(result, BaseException):
            raise result
        yield result


@contextlib.contextmanager
def open_pool(
    places: Places,
    target: str,
    log: Path | None = None,
    progress: Callable[[int], None] = lambda number: None,
) -> Iterator[Pool]:
    """Replicas on these places. On leaving, however that happens, they are ended.

    target: "module:function", of which each replica calls function(settings of its job). log: of the first one, the
    others' have their number in the name; None: temporary ones. progress: gets the number of what was finished since
    the last time; a negative one where that was lost with its replica.
    """
    with (
        places.open() as opened,
        tempfile.TemporaryDirectory(prefix="convrec-generate-", dir=opened[0].temporary) as folder,
    ):
        file = log or Path(folder, "vllm.log")
        file.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.closing(Pool(opened, target, file, progress)) as pool:
            yield pool
