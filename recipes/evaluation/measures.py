"""Measures of lists beyond accuracy, one class per measure.

A row's list is the distinct catalog items of its first N lines, in order. A `ListMeasure` has a value for each list, a
`CatalogMeasure` one for all lists together. Definitions with their sources: docs/how-to/beyond-accuracy.md.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from scipy.sparse import csr_matrix, diags

from convrec.retrieval.retriever import make_multi_hot


@dataclass(frozen=True)
class Context:
    """What the lists of a split are compared with.

    Attributes:
        num_items: number of distinct items in the catalog.
        mentions_M: in how many training rows' ground truth each catalog row is; an item with several catalog rows
            counts for its first. None if unknown.
        rows: number of training rows; the sum of the mentions if these come from the catalog.
        genres: genres of each catalog row; None if unknown.
        mentioned: for each row of the split, the catalog rows of its seen titles.
        wanted: for each row of the split, the catalog rows of its ground truth.
    """

    num_items: int
    mentions_M: np.ndarray | None
    rows: int
    genres: Sequence[frozenset[str]] | None
    mentioned: Sequence[Sequence[int]] = ()
    wanted: Sequence[Sequence[int]] = ()

    @property
    def known_mentions_M(self) -> np.ndarray:
        """mentions_M, for measures that are computed only if mentions are known."""
        assert self.mentions_M is not None
        return self.mentions_M

    @cached_property
    def has_genre_MG(self) -> csr_matrix:
        """1 where the item has the genre; G counts the genres of the catalog."""
        assert self.genres is not None
        names = {name: index for index, name in enumerate(sorted(frozenset().union(*self.genres)))}
        return make_multi_hot([sorted(names[name] for name in genres) for genres in self.genres], len(names), float)


@dataclass(frozen=True)
class ListsInContext:
    """The lists of a split's rows, with their context.

    Attributes:
        lists: for each row, the distinct catalog rows of its list, best first.
        context: what they are compared with.
    """

    lists: Sequence[Sequence[int]]
    context: Context

    @cached_property
    def listed_RM(self) -> csr_matrix:
        """1 where the row's list contains the item."""
        return make_multi_hot(self.lists, len(self.context.known_mentions_M), float)

    @cached_property
    def wanted_RM(self) -> csr_matrix:
        """1 where the row's ground truth contains the item."""
        return make_multi_hot(self.context.wanted, len(self.context.known_mentions_M), float)


class ListMeasure(ABC):
    """A measure of one list."""

    name: ClassVar[str]

    @abstractmethod
    def compute(self, lists: ListsInContext) -> np.ndarray:
        """Return the measure of each list, shape (R,); NaN for a list that is too short."""


class Novelty(ListMeasure):
    """Mean over the items of -log2 of the share of training rows whose ground truth contains the item.

    An item that is in no ground truth counts as if it were in one.
    """

    name = "novelty"

    def compute(self, lists: ListsInContext) -> np.ndarray:
        mentions_M = lists.context.known_mentions_M
        novelty_M = -np.log2(np.maximum(mentions_M, 1) / max(lists.context.rows, 1))
        return _compute_row_means(novelty_M, lists.listed_RM)


class ColdShare(ListMeasure):
    """Share of the items that are in no training row's ground truth."""

    name = "cold_share"

    def compute(self, lists: ListsInContext) -> np.ndarray:
        return _compute_row_means(lists.context.known_mentions_M == 0, lists.listed_RM)


class Popularity(ListMeasure):
    """Mean over the items of the number of training rows whose ground truth contains the item; for PopularityLift."""

    name = "popularity"

    def compute(self, lists: ListsInContext) -> np.ndarray:
        return _compute_row_means(lists.context.known_mentions_M, lists.listed_RM)


class WantedPopularity(ListMeasure):
    """Popularity of the ground truth, independent of the list; for PopularityLift."""

    name = "wanted_popularity"

    def compute(self, lists: ListsInContext) -> np.ndarray:
        return _compute_row_means(lists.context.known_mentions_M, lists.wanted_RM)


class Diversity(ListMeasure):
    """Mean over the pairs of items with genres of 1 - (genres in common / genres of either)."""

    name = "diversity"

    def compute(self, lists: ListsInContext) -> np.ndarray:
        has_genre_MG = lists.context.has_genre_MG
        return np.array([self._value(has_genre_MG[items].toarray()) for items in lists.lists])

    def _value(self, has_genre_KG: np.ndarray) -> float:
        has_genre_KG = has_genre_KG[has_genre_KG.any(axis=1)]
        count_K = has_genre_KG.sum(axis=1)
        common_KK = has_genre_KG @ has_genre_KG.T
        either_KK = count_K[:, None] + count_K - common_KK
        pairs = len(count_K) * (len(count_K) - 1)
        return ((either_KK - common_KK) / either_KK).sum() / pairs if pairs else math.nan


@dataclass(frozen=True)
class Calibration(ListMeasure):
    """KL(p || q') in nats: how far a list's genres are from those of the titles mentioned in the conversation.

    q' = (1 - smoothing) q + smoothing p, where p and q are the genre shares of the mentioned titles and of the list; a
    title's weight is divided among its genres. 0: the list has the conversation's proportions.
    """

    name = "calibration"

    smoothing: float = 0.01  # as in its source: keeps the divergence finite where the list lacks a genre

    def compute(self, lists: ListsInContext) -> np.ndarray:
        has_genre_MG = lists.context.has_genre_MG
        p_RG = _compute_genre_shares(lists.context.mentioned, has_genre_MG)
        q_RG = _compute_genre_shares(lists.lists, has_genre_MG)
        rows, genres = p_RG.nonzero()
        if not len(rows):
            return np.full(len(lists.lists), np.nan)
        p = np.asarray(p_RG[rows, genres]).ravel()
        q = np.asarray(q_RG[rows, genres]).ravel()
        terms = p * np.log(p / ((1 - self.smoothing) * q + self.smoothing * p))
        is_known_R = (p_RG.getnnz(axis=1) > 0) & (q_RG.getnnz(axis=1) > 0)
        return np.where(is_known_R, np.bincount(rows, terms, len(lists.lists)), np.nan)


class CatalogMeasure(ABC):
    """A measure of how often each item of the catalog is recommended."""

    name: ClassVar[str]

    @abstractmethod
    def compute(self, counts_M: np.ndarray) -> float:
        """Return the measure of a model's lists.

        Args:
            counts_M: in how many lists each distinct item of the catalog is.
        """


class Coverage(CatalogMeasure):
    """Share of the catalog's items that are in at least one list."""

    name = "coverage"

    def compute(self, counts_M: np.ndarray) -> float:
        return np.count_nonzero(counts_M) / len(counts_M)


class Gini(CatalogMeasure):
    """Gini coefficient: 0 if all items are recommended equally often, 1 - 1/M if only one of M is; NaN if none is.

    sum over i of (2 i - M - 1) c_i / (M sum of c), counts in ascending order, i from 1.
    """

    name = "gini"

    def compute(self, counts_M: np.ndarray) -> float:
        total = counts_M.sum()
        size = len(counts_M)
        ranks = 2 * np.arange(1, size + 1) - size - 1
        return float((ranks * np.sort(counts_M)).sum() / (size * total)) if total else math.nan


class PopularityLift:
    """Mean popularity of the lists divided by that of the ground truths, minus 1; NaN if the divisor is 0."""

    name = "popularity_lift"

    def compute(self, listed: float, wanted: float) -> float:
        """Return listed / wanted - 1; NaN if `wanted` is 0.

        Args:
            listed: sum of Popularity over some rows.
            wanted: sum of WantedPopularity over the same rows.
        """
        return listed / wanted - 1 if wanted else math.nan


def _compute_row_means(values_M: np.ndarray, listed_RM: csr_matrix) -> np.ndarray:
    """Return the mean of the items' values for each list, shape (R,); NaN for an empty list."""
    lengths_R = listed_RM.getnnz(axis=1)
    return np.divide(listed_RM @ values_M, lengths_R, out=np.full(len(lengths_R), np.nan), where=lengths_R > 0)


def _compute_genre_shares(lists: Sequence[Sequence[int]], has_genre_MG: csr_matrix) -> csr_matrix:
    """Return the genre shares of each list, shape (R, G); zeros where no item has a genre."""
    has_item_RM = make_multi_hot(lists, has_genre_MG.shape[0], float).sorted_indices()
    counts_M = has_genre_MG.getnnz(axis=1)
    known_R = has_item_RM @ (counts_M > 0)  # items with genres
    return diags(1 / np.maximum(known_R, 1)) @ has_item_RM @ diags(1 / np.maximum(counts_M, 1)) @ has_genre_MG
