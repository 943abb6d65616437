"""A function of ranges of rows, over the cores of this machine; results in the order of the ranges.

BLAS has one thread in each process, and results are put together in one order: what is written or summed from them is
the same to the last bit, however many processes computed them.
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

ROWS_OF_A_RANGE = 2048

Range = tuple[int, int]
Function = Callable[[int, int], Any]  # of a range; pickled, with what it was made of
RangeMap = Callable[[Function, Sequence[Range]], Iterator[Any]]


def make_ranges(total: int, size: int | None = None) -> list[Range]:
    size = size or ROWS_OF_A_RANGE
    return [(start, min(start + size, total)) for start in range(0, total, size)]


@contextmanager
def processes(count: int) -> Iterator[RangeMap]:
    """A map over `count` processes (1: this one). They start with the first map of more than one range, and stay for
    those that follow. The map raises UserError where one of them has ended."""
    pool = ProcessPoolExecutor(count, get_context("spawn"), _start, (os.getpid(),))

    def map_ranges(function: Function, ranges: Sequence[Range]) -> Iterator[Any]:
        if count == 1 or len(ranges) == 1:
            with threadpool_limits(1):
                for one in ranges:
                    yield function(*one)
            return
        waiting = deque[Future[Any]]()
        try:
            for one in ranges:
                waiting.append(pool.submit(function, *one))
                if len(waiting) == 2 * count:  # one that is computed and one that waits
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool:
            raise UserError(f"one of {count} processes has ended, maybe for memory: give fewer --workers") from None

    try:
        yield map_ranges
    finally:
        pool.shutdown(cancel_futures=True)


def _start(parent: int) -> None:
    Follower().end_with(parent)
    threadpool_limits(1)
