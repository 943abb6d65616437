"""Measures of lists besides being right, a class each.

A row's list is the distinct catalog items of its first N lines, in order. `ListMeasure` has a value for each list,
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
    """What the lists of a split are measured against.

    Attributes:
        num_items: different items of the catalog.
        mentions_M: of each catalog row, of one item's rows the first, how many training rows want it; None where
            nothing says so.
        rows: how many training rows there are (with mentions from the catalog alone: the sum of the mentions).
        genres: of each catalog row; None where nothing says so.
        mentioned: of each row of the split the catalog rows of the titles already seen.
        wanted: of each row of the split the catalog rows of its ground truth.
    """

    num_items: int
    mentions_M: np.ndarray | None
    rows: int
    genres: Sequence[frozenset[str]] | None
    mentioned: Sequence[Sequence[int]] = ()
    wanted: Sequence[Sequence[int]] = ()

    @property
    def known_mentions_M(self) -> np.ndarray:
        """mentions_M, for what is measured only where they are known."""
        assert self.mentions_M is not None
        return self.mentions_M

    @cached_property
    def has_genre_MG(self) -> csr_matrix:
        """1 where the item has the genre; G: all genres of the catalog."""
        assert self.genres is not None
        names = {name: index for index, name in enumerate(sorted(frozenset().union(*self.genres)))}
        return make_multi_hot([sorted(names[name] for name in genres) for genres in self.genres], len(names), float)


@dataclass(frozen=True)
class ListsInContext:
    """The lists of a split's rows, as rows of the catalog, and what they are measured against."""

    lists: Sequence[Sequence[int]]
    context: Context

    @cached_property
    def listed_RM(self) -> csr_matrix:
        """1 where the row's list has the item."""
        return make_multi_hot(self.lists, len(self.context.known_mentions_M), float)

    @cached_property
    def wanted_RM(self) -> csr_matrix:
        """1 where the row's ground truth has the item."""
        return make_multi_hot(self.context.wanted, len(self.context.known_mentions_M), float)


class ListMeasure(ABC):
    """A measure of one list."""

    name: ClassVar[str]

    @abstractmethod
    def values(self, lists: ListsInContext) -> np.ndarray:
        """(R,) the measure of each list; NaN of a list that is too short for it."""


class Novelty(ListMeasure):
    """Mean over the items of -log2 of the share of training rows that want the item.

    An item that none wants counts as wanted once.
    """

    name = "novelty"

    def values(self, lists: ListsInContext) -> np.ndarray:
        mentions_M = lists.context.known_mentions_M
        novelty_M = -np.log2(np.maximum(mentions_M, 1) / max(lists.context.rows, 1))
        return _row_means(novelty_M, lists.listed_RM)


class ColdShare(ListMeasure):
    """Share of the items that no training row wants."""

    name = "cold_share"

    def values(self, lists: ListsInContext) -> np.ndarray:
        return _row_means(lists.context.known_mentions_M == 0, lists.listed_RM)


class Popularity(ListMeasure):
    """Mean over the items of how many training rows want the item. Part of PopularityLift."""

    name = "popularity"

    def values(self, lists: ListsInContext) -> np.ndarray:
        return _row_means(lists.context.known_mentions_M, lists.listed_RM)


class WantedPopularity(ListMeasure):
    """Popularity of the ground truth, whatever was listed. Part of PopularityLift."""

    name = "wanted_popularity"

    def values(self, lists: ListsInContext) -> np.ndarray:
        return _row_means(lists.context.known_mentions_M, lists.wanted_RM)


class Diversity(ListMeasure):
    """Mean over the pairs of items with genres of 1 - (genres in common / genres of either)."""

    name = "diversity"

    def values(self, lists: ListsInContext) -> np.ndarray:
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
    """KL(p || q') in nats: how far a list's genres are from those of the titles that the conversation mentions.

    q' = (1 - smoothing) q + smoothing p; p, q: genres of the titles mentioned and of the list, each title's weight
    shared by its genres. 0: the list has them in the conversation's proportions.
    """

    name = "calibration"

    smoothing: float = 0.01  # as in its source: the list's share of a genre that it lacks

    def values(self, lists: ListsInContext) -> np.ndarray:
        has_genre_MG = lists.context.has_genre_MG
        p_RG = _genre_shares(lists.context.mentioned, has_genre_MG)
        q_RG = _genre_shares(lists.lists, has_genre_MG)
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
    def value(self, counts_M: np.ndarray) -> float:
        """counts_M: in how many lists each of the catalog's different items is."""


class Coverage(CatalogMeasure):
    """Share of the catalog's items that any list has."""

    name = "coverage"

    def value(self, counts_M: np.ndarray) -> float:
        return np.count_nonzero(counts_M) / len(counts_M)


class Gini(CatalogMeasure):
    """0: all items are recommended equally often; 1 - 1/M: only one of M is. NaN without any.

    sum over i of (2 i - M - 1) c_i / (M sum of c), counts in ascending order, i from 1.
    """

    name = "gini"

    def value(self, counts_M: np.ndarray) -> float:
        total = counts_M.sum()
        size = len(counts_M)
        ranks = 2 * np.arange(1, size + 1) - size - 1
        return float((ranks * np.sort(counts_M)).sum() / (size * total)) if total else math.nan


class PopularityLift:
    """Mean popularity of the lists over that of the ground truths, less 1; NaN where nothing popular is wanted."""

    name = "popularity_lift"

    def value(self, listed: float, wanted: float) -> float:
        """listed, wanted: sums of Popularity and WantedPopularity over the same rows."""
        return listed / wanted - 1 if wanted else math.nan


def _row_means(values_M: np.ndarray, listed_RM: csr_matrix) -> np.ndarray:
    """(R,) means of the items' values, NaN of an empty list."""
    lengths_R = listed_RM.getnnz(axis=1)
    return np.divide(listed_RM @ values_M, lengths_R, out=np.full(len(lengths_R), np.nan), where=lengths_R > 0)


def _genre_shares(lists: Sequence[Sequence[int]], has_genre_MG: csr_matrix) -> csr_matrix:
    """(R, G) shares of the genres in each list; a row of zeros where no item has a genre."""
    has_item_RM = make_multi_hot(lists, has_genre_MG.shape[0], float).sorted_indices()
    counts_M = has_genre_MG.getnnz(axis=1)
    known_R = has_item_RM @ (counts_M > 0)  # items with genres
    return diags(1 / np.maximum(known_R, 1)) @ has_item_RM @ diags(1 / np.maximum(counts_M, 1)) @ has_genre_MG
