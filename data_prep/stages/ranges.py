"""A function of ranges of rows, over the cores of this node or over a Ray cluster; results in the order of the ranges.

BLAS has one thread in each process, and results are put together in one order: what is written or summed from them is
the same to the last bit, whoever computed them. With an address, the folder of the stages is on storage that all nodes
share, under one path.
"""

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any, NamedTuple

from threadpoolctl import threadpool_limits

from convrec.errors import UserError
from convrec.serving.follower import Follower

ROWS_OF_A_RANGE = 2048

Range = tuple[int, int]
Function = Callable[[int, int], Any]  # of a range; pickled, with what it was made of
RangeMap = Callable[[Function, Sequence[Range]], Iterator[Any]]


def ranges_of(total: int, size: int | None = None) -> list[Range]:
    size = size or ROWS_OF_A_RANGE
    return [(start, min(start + size, total)) for start in range(0, total, size)]


class Workers(NamedTuple):
    """size: processes of this node, or tasks at once on the cluster at `address`; None: one for every core there."""

    size: int | None = None
    address: str | None = None

    @contextmanager
    def open(self) -> Iterator[RangeMap]:
        """Raises UserError where the cluster cannot be reached, and, from the map, where a process has ended."""
        count = self.size or len(os.sched_getaffinity(0))
        with _cluster(self.address, self.size) if self.address else _processes(count) as map_ranges:
            yield map_ranges


ALONE = Workers(1)  # this process


# ---- this node


@contextmanager
def _processes(count: int) -> Iterator[RangeMap]:
    """They start with the first map of more than one range, and stay for those that follow."""
    pool = ProcessPoolExecutor(count, get_context("spawn"), _start, (os.getpid(),))

    def map_ranges(function: Function, ranges: Sequence[Range]) -> Iterator[Any]:
        if count == 1 or len(ranges) == 1:
            with threadpool_limits(1):
                for one in ranges:
                    yield function(*one)
            return
        try:
            yield from _in_order(lambda *one: pool.submit(function, *one), ranges, 2 * count)
        except BrokenProcessPool:
            raise UserError(
                f"one of {count} processes has ended, maybe for memory: give fewer --workers, or --address"
            ) from None

    try:
        yield map_ranges
    finally:
        pool.shutdown(cancel_futures=True)


def _start(parent: int) -> None:
    Follower().end_with(parent)
    threadpool_limits(1)


# ---- a cluster


@contextmanager
def _cluster(address: str, count: int | None) -> Iterator[RangeMap]:
    """Tasks of Ray, a core each."""
    import ray

    from convrec.generation.cluster import joined

    def map_ranges(function: Function, ranges: Sequence[Range]) -> Iterator[Any]:
        on_core, stored = ray.remote(_on_core), ray.put(function)
        most = count or 2 * int(ray.cluster_resources()["CPU"])
        yield from _in_order(lambda *one: on_core.remote(stored, *one).future(), ranges, most)

    with joined(address):
        yield map_ranges


def _on_core(function: Function, start: int, stop: int) -> Any:
    with threadpool_limits(1):
        return function(start, stop)


def _in_order(submit: Callable[..., Future[Any]], ranges: Sequence[Range], most: int) -> Iterator[Any]:
    """The results of the ranges, `most` of which are submitted and not yet taken."""
    waiting = deque[Future[Any]]()
    for one in ranges:
        waiting.append(submit(*one))
        if len(waiting) == most:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()
