"""Map a function over ranges of rows with several processes; results come in the order of the ranges.

BLAS uses one thread in each process, and results are combined in a fixed order: files and sums made from them are
identical to the last bit, however many processes are used.
"""

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any

from threadpoolctl import threadpool_limits

from convrec.base.errors import UserError
from convrec.inference.engines.follower import Follower

RANGE_ROWS = 2048

Range = tuple[int, int]
Function = Callable[[int, int], Any]  # start and stop of a range -> a result; it is pickled
RangeMap = Callable[[Function, Sequence[Range]], Iterator[Any]]


def make_ranges(total: int, size: int | None = None) -> list[Range]:
    """Divide rows into ranges.

    Args:
        total: number of rows.
        size: rows of a range; None means RANGE_ROWS. The last range may be shorter.

    Returns:
        (start, stop) of each; [] without rows.
    """
    size = size or RANGE_ROWS
    return [(start, min(start + size, total)) for start in range(0, total, size)]


@contextmanager
def open_process_pool(count: int) -> Iterator[RangeMap]:
    """Open a pool of `count` processes (1: use this process).

    The processes start with the first map over more than one range and are reused by later maps.

    Yields:
        A function that maps over ranges. It raises UserError if a process has died.
    """
    pool = ProcessPoolExecutor(count, get_context("spawn"), _start_worker, (os.getpid(),))

    def map_ranges(function: Function, ranges: Sequence[Range]) -> Iterator[Any]:
        if count == 1 or len(ranges) == 1:
            with threadpool_limits(1):
                for start, stop in ranges:
                    yield function(start, stop)
            return
        waiting = deque[Future[Any]]()
        try:
            for start, stop in ranges:
                waiting.append(pool.submit(function, start, stop))
                if len(waiting) == 2 * count:  # per process one that runs and one that waits
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool:
            raise UserError(
                "demonstrations.lost-process",
                f"--workers {count}: a process has died, perhaps for lack of memory; give fewer --workers",
            ) from None

    try:
        yield map_ranges
    finally:
        pool.shutdown(cancel_futures=True)


def _start_worker(parent: int) -> None:
    Follower().end_with(parent)
    threadpool_limits(1)
