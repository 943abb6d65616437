"""Rows of SFT made in a thread, while the device trains on the rows before them.

A row costs a chat template and two or three calls of the tokenizer, more than a millisecond. Neither sampler nor loader
know of it: their order and the state that a checkpoint holds stay as they are.
"""

from collections.abc import Iterable, Iterator
from concurrent.futures import Executor, Future
from itertools import islice
from typing import Any

from torch.utils.data import Dataset


class PrefetchedRows(Dataset):
    """A dataset whose rows an executor makes, ahead of the loader where it knows what will be read.

    Args:
        dataset: whose rows these are.
        executor: with one thread: a tokenizer is not made for several.
        num_ahead: rows that are made, or waiting to be made, and not read yet; at most.
    """

    def __init__(self, dataset: Any, executor: Executor, num_ahead: int) -> None:
        self.dataset = dataset
        self.executor = executor
        self.num_ahead = num_ahead
        self.order: Iterator[int] = iter(())
        self.pending: dict[int, Future[Any]] = {}

    def __len__(self) -> int:
        return len(self.dataset)

    def expect(self, order: Iterable[int]) -> None:
        """Begin with the rows that will be read next, in their order. A row may be there once."""
        for future in self.pending.values():
            future.cancel()
        self.pending.clear()
        self.order = iter(order)
        self._submit_next()

    def __getitem__(self, row: int) -> Any:
        future = self.pending.pop(row, None) or self._submit(row)
        self._submit_next()
        return future.result()

    def _submit_next(self) -> None:
        for row in islice(self.order, self.num_ahead - len(self.pending)):
            self.pending[row] = self._submit(row)

    def _submit(self, row: int) -> Future[Any]:
        return self.executor.submit(self.dataset.__getitem__, row)
