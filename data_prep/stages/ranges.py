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

import numpy as np
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
        with _cluster(self.address, self.size) if self.address else _processes(self.size or cores()) as map_ranges:
            yield map_ranges


ALONE = Workers(1)  # this process


def cores() -> int:
    return len(os.sched_getaffinity(0))


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
        waiting = deque[Future[Any]]()
        try:
            for one in ranges:
                waiting.append(pool.submit(function, *one))
                if len(waiting) == 2 * count:  # one that is computed and one that waits
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
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
    """Tasks of Ray Data, a core each."""
    import ray

    from convrec.generation.cluster import joined

    def map_ranges(function: Function, ranges: Sequence[Range]) -> Iterator[Any]:
        rows = [{"start": start, "stop": stop} for start, stop in ranges]
        results = ray.data.from_items(rows, override_num_blocks=len(rows)).map_batches(
            _on_batch, fn_args=(function,), batch_size=1, compute=ray.data.TaskPoolStrategy(size=count)
        )
        for row in results.iter_rows():
            yield row["result"].value

    with joined(address):
        context = ray.data.DataContext.get_current()
        context.execution_options.preserve_order = True
        context.enable_progress_bars = False
        yield map_ranges


class _Result:
    """What Ray Data knows nothing of: it would make lists of tuples."""

    def __init__(self, value: Any) -> None:
        self.value = value


def _on_batch(batch: dict[str, Any], function: Function) -> dict[str, Any]:
    with threadpool_limits(1):
        (start,), (stop,) = batch["start"], batch["stop"]
        results = np.empty(1, object)
        results[0] = _Result(function(int(start), int(stop)))
    return {"result": results}
