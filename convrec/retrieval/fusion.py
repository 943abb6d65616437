"""Lists made into one by weighted reciprocal ranks (Cormack, Clarke, Büttcher, SIGIR 2009)."""

from collections.abc import Sequence
from typing import NamedTuple

DEPTH = 100  # of a list that is fused, a model's excepted


def fuse(lists: Sequence[Sequence[int]], weights: Sequence[float], constant: float) -> list[int]:
    """Items by the sum over lists of weight / (constant + rank), ranks from 1; on a tie as they stand in the first list
    that has one of them. A list of weight 0 is not there."""
    scores: dict[int, float] = {}
    for items, weight in zip(lists, weights, strict=True):
        for rank, item in enumerate(items if weight else (), 1):
            scores[item] = scores.get(item, 0.0) + weight / (constant + rank)
    return sorted(scores, key=lambda item: -scores[item])


class Fusion(NamedTuple):
    """Of a model's list and the retrieval's. weight: of the model's; 1: it alone, 0: the retrieval's alone."""

    weight: float
    constant: float

    def of(self, written: Sequence[int], retrieved: Sequence[int]) -> list[int]:
        return fuse(
            (written, retrieved[:DEPTH] if self.weight else retrieved), (self.weight, 1 - self.weight), self.constant
        )
