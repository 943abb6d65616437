"""Encode the rows of SFT in a thread, while the device trains on earlier rows.

A row needs a chat template and two or three calls of the tokenizer, more than a millisecond. Sampler and loader are not
aware of it: their order and their state in a checkpoint do not change.
"""

from collections.abc import Iterable, Iterator
from concurrent.futures import Executor, Future
from itertools import islice
from typing import Any

from torch.utils.data import Dataset


class PrefetchedRows(Dataset):
    """A dataset whose rows are encoded by an executor, ahead of the loader if the order of the rows is known.

    Args:
        dataset: the dataset that encodes the rows.
        executor: has one thread, because tokenizers are not thread-safe.
        num_ahead: maximum number of rows that are encoded, or wait to be, and have not been read.
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
        """Start to encode the rows that will be read next, in their order; each row may occur once."""
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
