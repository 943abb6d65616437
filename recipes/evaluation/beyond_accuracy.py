"""What lists are like besides being right: coverage, Gini, popularity, novelty, diversity, calibration, cold items.

Definitions with their sources: docs/how-to/evaluation.md. A row's list is the distinct catalog items of its first N
lines, in order. Of a row: popularity, novelty, cold share (they need mentions), diversity, calibration (they need
genres); NaN where a list is too short for it. Of all rows: coverage, gini, and popularity lift.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix, diags

from convrec.retrieval.retriever import table_of
from convrec.statistics import error_of_mean, jackknife
from recipes.evaluation.split import Split

SMOOTHING = 0.01  # of calibration, as in its source: the list's share of a genre that it lacks
OF_MENTIONS = ("novelty", "cold_share")
OF_GENRES = ("diversity", "calibration")
BY_TURN = ("success_by_1", "success_by_2", "success_by_3")
AFTER = ("ndcg_after_0", "ndcg_after_1", "ndcg_after_2")  # questions; with BY_TURN up to the default of MAX_TURNS
OF_DIALOGUES = ("questions", "useful", "malformed", *BY_TURN, *AFTER)  # where a user answers
OF_A_ROW = (*OF_MENTIONS, *OF_GENRES, *OF_DIALOGUES)
OF_ALL = ("coverage", "gini", "popularity_lift")
MEASURES = (*OF_ALL, *OF_A_ROW)
Row = Mapping[str, Any]
Figures = dict[str, dict[str, Any]]  # name -> {"mean", "se", "n" (rows)}


@dataclass(frozen=True)
class Context:
    """What the lists of a split are measured against.

    mentions_M, genres: of each catalog row M, of one item's rows the first, how many training rows want it, and its
    genres; None where nobody says so. rows: how many training rows there are (with mentions from the catalog alone: the
    sum of the mentions). num_items: different items of the catalog. mentioned, wanted: of each row of the split the
    catalog rows of the titles already seen, and of those wanted.
    """

    num_items: int
    mentions_M: np.ndarray | None
    rows: int
    genres: Sequence[frozenset[str]] | None
    mentioned: Sequence[Sequence[int]] = ()
    wanted: Sequence[Sequence[int]] = ()

    @property
    def novelty_M(self) -> np.ndarray:
        """-log2 of the share of training rows that want the item; one that none wants counts as wanted once."""
        assert self.mentions_M is not None
        return -np.log2(np.maximum(self.mentions_M, 1) / max(self.rows, 1))

    @cached_property
    def has_genre_MG(self) -> csr_matrix:
        """1 where the item has the genre; G: all genres of the catalog."""
        assert self.genres is not None
        names = {name: index for index, name in enumerate(sorted(frozenset().union(*self.genres)))}
        return table_of([sorted(names[name] for name in genres) for genres in self.genres], len(names), float)


def context_of(split: Split, train_rows: Sequence[Mapping[str, Any]]) -> Context:
    """Mentions are counted in the training rows, without these taken from the catalog's column."""
    catalog, first_row = split.catalog, split.matcher.index.items
    items = {first_row[row] for row, year in enumerate(catalog.years) if year is not None}
    mentions_M, rows = None, 0
    if train_rows:
        wanted = list(chain.from_iterable(split.wanted_rows(train_rows)))
        mentions_M, rows = np.bincount(np.array(wanted, int), minlength=len(catalog)), len(train_rows)
    elif catalog.mentions is not None:
        counts = [count or 0 for count in catalog.mentions]
        mentions_M, rows = np.bincount(first_row, counts, minlength=len(catalog)), sum(counts)
    reader = split.reader
    seen = [reader.seen_rows(row["seen_titles"] or ()) for row in split.rows]
    mentioned = [list(dict.fromkeys(first_row[row] for row in of_row)) for of_row in seen]
    return Context(len(items), mentions_M, rows, catalog.genres, mentioned, split.wanted_rows(split.rows))


def add_measures(rows: Sequence[dict[str, Any]], context: Context) -> None:
    """To each row with `recommended`, its list of distinct catalog rows, what `figures_of` reads: the measures, NaN
    where the list is too short, and `wanted_popularity`."""
    lists, measures = [row["recommended"] for row in rows], dict[str, np.ndarray]()
    if (mentions_M := context.mentions_M) is not None:
        listed_RM, wanted_RM = (table_of(some, len(mentions_M), float) for some in (lists, context.wanted))
        for name, values_M in zip(OF_MENTIONS, (context.novelty_M, mentions_M == 0), strict=True):
            measures[name] = _row_means(values_M, listed_RM)
        measures["popularity"] = _row_means(mentions_M, listed_RM)
        measures["wanted_popularity"] = _row_means(mentions_M, wanted_RM)
    if context.genres is not None:
        measures["diversity"] = np.array([_diversity(context.has_genre_MG[items].toarray()) for items in lists])
        measures["calibration"] = _calibration(context.mentioned, lists, context.has_genre_MG)
    for name, values_R in measures.items():
        for row, value in zip(rows, values_R.tolist(), strict=True):
            row[name] = value


def _row_means(values_M: np.ndarray, listed_RM: csr_matrix) -> np.ndarray:
    """(R,) means of the items' values, NaN of an empty list."""
    lengths_R = listed_RM.getnnz(axis=1)
    return np.divide(listed_RM @ values_M, lengths_R, out=np.full(len(lengths_R), np.nan), where=lengths_R > 0)


def _diversity(has_genre_KG: np.ndarray) -> float:
    """Mean over the pairs of a list's items with genres of 1 - (genres in common / genres of either)."""
    has_genre_KG = has_genre_KG[has_genre_KG.any(axis=1)]
    count_K = has_genre_KG.sum(axis=1)
    common_KK = has_genre_KG @ has_genre_KG.T
    either_KK = count_K[:, None] + count_K - common_KK
    pairs = len(count_K) * (len(count_K) - 1)
    return ((either_KK - common_KK) / either_KK).sum() / pairs if pairs else math.nan


def _calibration(
    mentioned: Sequence[Sequence[int]], listed: Sequence[Sequence[int]], has_genre_MG: csr_matrix
) -> np.ndarray:
    """(R,) KL(p || q') in nats, q' = (1 - SMOOTHING) q + SMOOTHING p; p, q: genres of the titles mentioned and of the
    list, each title's weight shared by its genres. 0: the list has them in the conversation's proportions."""
    p_RG, q_RG = (_genre_shares(lists, has_genre_MG) for lists in (mentioned, listed))
    rows, genres = p_RG.nonzero()
    if not len(rows):
        return np.full(len(listed), np.nan)
    p, q = (np.asarray(shares_RG[rows, genres]).ravel() for shares_RG in (p_RG, q_RG))
    terms = p * np.log(p / ((1 - SMOOTHING) * q + SMOOTHING * p))
    is_known_R = (p_RG.getnnz(axis=1) > 0) & (q_RG.getnnz(axis=1) > 0)
    return np.where(is_known_R, np.bincount(rows, terms, len(listed)), np.nan)


def _genre_shares(lists: Sequence[Sequence[int]], has_genre_MG: csr_matrix) -> csr_matrix:
    """(R, G) shares of the genres in each list; a row of zeros where no item has a genre."""
    has_item_RM = table_of(lists, has_genre_MG.shape[0], float).sorted_indices()
    counts_M = has_genre_MG.getnnz(axis=1)
    known_R = has_item_RM @ (counts_M > 0)  # items with genres
    return diags(1 / np.maximum(known_R, 1)) @ has_item_RM @ diags(1 / np.maximum(counts_M, 1)) @ has_genre_MG


def gini(counts_M: np.ndarray) -> float:
    """Of how often each of M items is recommended: 0 all equally often, 1 - 1/M only one; NaN without any.

    sum over i of (2 i - M - 1) c_i / (M sum of c), counts in ascending order, i from 1.
    """
    total, size = counts_M.sum(), len(counts_M)
    ranks = 2 * np.arange(1, size + 1) - size - 1
    return float((ranks * np.sort(counts_M)).sum() / (size * total)) if total else math.nan


class _Lists:
    """The measured lists of one model, from rows as `add_measures` and rows.parquet have them."""

    def __init__(self, rows: Sequence[Row], num_items: int, names: Sequence[str]):
        """names: of OF_A_ROW."""
        self.values_RM = np.array([[row[name] for name in names] for row in rows], float)
        self._num_items = num_items
        lists = [row["recommended"] for row in rows]
        listed_RM = table_of(lists, 1 + max(chain.from_iterable(lists), default=0), float)
        self._listed_RM = listed_RM[:, listed_RM.getnnz(axis=0) > 0]  # of the items that any list has
        self._popularity_R2 = None  # of the list and of what is wanted
        self.has_popularity_R = np.zeros(len(rows), bool)
        if "novelty" in names:
            popularity_R2 = np.array([(row["popularity"], row["wanted_popularity"]) for row in rows], float)
            self.has_popularity_R = ~np.isnan(popularity_R2).any(axis=1)
            self._popularity_R2 = np.nan_to_num(popularity_R2)

    def statistics(self, weights_R: np.ndarray, has_popularity_R: np.ndarray) -> np.ndarray:
        """The figures OF_ALL of the rows of weight 1; the last one only with mentions, and of these rows alone."""
        counts_M = np.zeros(self._num_items)
        counts_M[: self._listed_RM.shape[1]] = weights_R @ self._listed_RM
        figures = [np.count_nonzero(counts_M) / self._num_items, gini(counts_M)]
        if self._popularity_R2 is not None:
            listed, wanted = (weights_R * has_popularity_R) @ self._popularity_R2
            figures.append(listed / wanted - 1 if wanted else math.nan)
        return np.array(figures)


def figures_of(
    after: Sequence[Sequence[Row]],
    contexts: Sequence[Hashable],
    num_items: int,
    seed: int = 3407,
    minus: Sequence[Sequence[Row]] = (),
) -> Figures:
    """Each measure that all have: its mean over the rows that have it, of OF_ALL the value, with its standard error
    over contexts; {} of no rows. With `minus` these figures less those, paired by row: where both have the measure.

    A side has the rows of one evaluation or, one for each seed of a training, of several, which count as their mean.
    num_items: different items of the catalog.
    """
    samples = [rows[0] for rows in (*minus, *after) if rows]
    if not samples:
        return {}
    names = [name for name in OF_A_ROW if all(name in row for row in samples)]
    sides = [[_Lists(rows, num_items, names) for rows in side] for side in (after, minus) if side]
    has_popularity_R = np.all([lists.has_popularity_R for side in sides for lists in side], axis=0)

    def statistics(weights_R: np.ndarray) -> np.ndarray:
        both = [np.mean([one.statistics(weights_R, has_popularity_R) for one in side], axis=0) for side in sides]
        return both[0] - both[1] if minus else both[0]

    values, errors = jackknife(statistics, contexts, seed)
    counts = (len(has_popularity_R), len(has_popularity_R), int(has_popularity_R.sum()))
    found = zip(OF_ALL, values, errors, counts, strict=False)
    list_figures = {name: {"mean": float(value), "se": float(error), "n": n} for name, value, error, n in found}
    values_RM = [np.mean([lists.values_RM for lists in side], axis=0) for side in sides]
    return list_figures | means(names, values_RM[0] - values_RM[1] if minus else values_RM[0], contexts)


def means(names: Sequence[str], values_RM: np.ndarray, contexts: Sequence[Hashable]) -> Figures:
    """Of each column the mean over the rows that are not NaN, with its standard error over contexts."""
    figures: Figures = {}
    for name, values_R in zip(names, values_RM.T, strict=True):
        kept = np.flatnonzero(~np.isnan(values_R))
        labels = [contexts[row] for row in kept]
        error = float(error_of_mean(values_R[kept, None], labels)[0]) if len(kept) else math.nan
        figures[name] = {"mean": float(values_R[kept].mean()) if len(kept) else math.nan, "se": error, "n": len(kept)}
    return figures
