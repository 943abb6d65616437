"""What lists are like besides being right: coverage, Gini, popularity, novelty, diversity, calibration, cold items.

Definitions with their sources: docs/how-to/evaluation.md. A row's list is the distinct catalog items of its first N
lines, in order. Of a row: popularity, novelty, cold share (they need mentions), diversity, calibration (they need
genres); NaN where a list is too short for it. Of all rows: coverage, gini, and popularity lift.
"""

import math
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from convrec.data.schema import Pair, truth_of
from convrec.lists.matching import Matcher
from convrec.statistics import error_of_mean, jackknife
from recipes.evaluation.split import Split

SMOOTHING = 0.01  # of calibration, as in its source: the list's share of a genre that it lacks
OF_MENTIONS = ("novelty", "cold_share")
OF_A_ROW = (*OF_MENTIONS, "diversity", "calibration")
OF_ALL = ("coverage", "gini", "popularity_lift")
MEASURES = (*OF_ALL, *OF_A_ROW)
Figures = dict[str, dict[str, Any]]  # name -> {"mean", "se", "n" (rows)}


@dataclass(frozen=True)
class ItemFacts:
    """Of each catalog row M, of one item's rows the first: how many training rows want it, and its genres.

    mentions_M, genres: None where nobody says so. rows: how many training rows there are (with mentions from the
    catalog alone: the sum of the mentions). num_items: different items of the catalog.
    """

    num_items: int
    mentions_M: np.ndarray | None
    rows: int
    genres: Sequence[frozenset[str]] | None

    @property
    def novelty_M(self) -> np.ndarray:
        """-log2 of the share of training rows that want the item; one that none wants counts as wanted once."""
        assert self.mentions_M is not None
        return -np.log2(np.maximum(self.mentions_M, 1) / max(self.rows, 1))


def facts_of(split: Split, train_rows: Sequence[dict[str, Any]] | None) -> ItemFacts:
    """Mentions are counted in the training rows, without these taken from the catalog's column."""
    catalog, first_row = split.catalog, split.matcher.index.items
    items = {first_row[row] for row, year in enumerate(catalog.years) if year is not None}
    mentions_M, rows = None, 0
    if train_rows:
        wanted = [wanted_rows(truth_of(row), split.matcher) for row in train_rows]
        mentions_M, rows = np.bincount([item for some in wanted for item in some], minlength=len(catalog)), len(wanted)
    elif catalog.mentions is not None:
        counts = [count or 0 for count in catalog.mentions]
        mentions_M, rows = np.bincount(first_row, counts, minlength=len(catalog)), sum(counts)
    return ItemFacts(len(items), mentions_M, rows, catalog.genres)


def wanted_rows(truth: Sequence[Pair], matcher: Matcher) -> list[int]:
    """The catalog rows of the wanted titles that the catalog has, each once."""
    pairs = [(title, year) for title, raw in truth if (year := matcher.catalog.year_of(raw)) is not None]
    return [row for row in dict.fromkeys(matcher.identify(*pair).index for pair in pairs) if row >= 0]


@dataclass(frozen=True)
class Context:
    """What the lists of a split are measured against: of each row the catalog rows mentioned and wanted."""

    facts: ItemFacts
    mentioned: Sequence[Sequence[int]]
    wanted: Sequence[Sequence[int]]


def context_of(split: Split, train_rows: Sequence[dict[str, Any]] | None) -> Context:
    reader = split.reader
    mentioned = [reader.seen_rows(row["seen_titles"] or ()) for row in split.rows]
    wanted = [wanted_rows(truth_of(row), split.matcher) for row in split.rows]
    return Context(facts_of(split, train_rows), mentioned, wanted)


def add_measures(rows: Sequence[dict[str, Any]], context: Context) -> None:
    """To each row with `recommended`, its list, what `Lists` reads: the measures and `wanted_popularity`."""
    mentions_M = context.facts.mentions_M
    for row, mentioned, wanted in zip(rows, context.mentioned, context.wanted, strict=True):
        row |= row_measures(row["recommended"], mentioned, context.facts)
        if mentions_M is not None:
            row["wanted_popularity"] = _mean(mentions_M[list(wanted)])


def row_measures(items: Sequence[int], mentioned: Sequence[int], facts: ItemFacts) -> dict[str, float]:
    """The measures of one list. items: its distinct catalog rows; mentioned: those of the titles already seen."""
    measures: dict[str, float] = {}
    if facts.mentions_M is not None:
        mentions = facts.mentions_M[list(items)]
        values = (mentions, facts.novelty_M[list(items)], mentions == 0)
        names = ("popularity", *OF_MENTIONS)
        measures |= {name: _mean(value) for name, value in zip(names, values, strict=True)}
    if facts.genres is not None:
        known = [facts.genres[item] for item in items if facts.genres[item]]
        measures["diversity"] = _mean([1 - len(a & b) / len(a | b) for a, b in combinations(known, 2)])
        measures["calibration"] = _calibration([facts.genres[item] for item in mentioned], known)
    return measures


def _mean(values: Sequence[float] | np.ndarray) -> float:
    return float(np.mean(values)) if len(values) else math.nan


def _calibration(mentioned: Sequence[frozenset[str]], listed: Sequence[frozenset[str]]) -> float:
    """KL(p || q') in nats, q' = (1 - SMOOTHING) q + SMOOTHING p; p, q: genres of the titles mentioned and of the list,
    each title's weight shared by its genres. 0: the list has them in the conversation's proportions."""
    p, q = _genre_shares(mentioned), _genre_shares(listed)
    if not p or not q:
        return math.nan
    mixed = {genre: (1 - SMOOTHING) * q.get(genre, 0.0) + SMOOTHING * share for genre, share in p.items()}
    return sum(share * math.log(share / mixed[genre]) for genre, share in p.items())


def _genre_shares(titles: Sequence[frozenset[str]]) -> dict[str, float]:
    shares: dict[str, float] = {}
    titles = [genres for genres in titles if genres]
    for genres in titles:
        for genre in genres:
            shares[genre] = shares.get(genre, 0.0) + 1 / (len(genres) * len(titles))
    return shares


def gini(counts_M: np.ndarray) -> float:
    """Of how often each of M items is recommended: 0 all equally often, 1 - 1/M only one; NaN without any.

    sum over i of (2 i - M - 1) c_i / (M sum of c), counts in ascending order, i from 1.
    """
    total, size = counts_M.sum(), len(counts_M)
    ranks = 2 * np.arange(1, size + 1) - size - 1
    return float((ranks * np.sort(counts_M)).sum() / (size * total)) if total else math.nan


class Lists:
    """The measured lists of one model, from rows as `add_measures` and rows.parquet have them, in the same order for
    whatever they are compared with. without: measures to leave out."""

    def __init__(self, rows: Sequence[Mapping[str, Any]], num_items: int, without: Collection[str] = ()):
        self.names = [name for name in OF_A_ROW if name in rows[0] and name not in without]
        self.values_RM = np.array([[row[name] for name in self.names] for row in rows], float)
        self._num_items = num_items
        lists = [row["recommended"] for row in rows]
        self._row_of_place = np.repeat(np.arange(len(lists)), [len(items) for items in lists])
        items, place_of_item = np.unique([item for items in lists for item in items], return_inverse=True)
        self._item_of_place, self._num_listed = place_of_item, len(items)
        self._popularity = None
        if "novelty" in self.names:
            both = np.array([(row["popularity"], row["wanted_popularity"]) for row in rows], float)
            self._popularity = np.where(np.isnan(both).any(axis=1, keepdims=True), 0.0, both)

    def of_all(self, weights_R: np.ndarray) -> np.ndarray:
        """The figures OF_ALL of the rows of weight 1 (the last one only with mentions)."""
        counts = np.bincount(self._item_of_place, weights_R[self._row_of_place], self._num_listed)
        never_listed = np.zeros(self._num_items - self._num_listed)
        figures = [np.count_nonzero(counts) / self._num_items, gini(np.concatenate([never_listed, counts]))]
        if self._popularity is not None:
            listed, wanted = weights_R @ self._popularity
            figures.append(listed / wanted - 1 if wanted else math.nan)
        return np.array(figures)


def summarise_lists(lists: Lists, contexts: Sequence[Hashable], seed: int) -> Figures:
    """Each measure's mean over the rows that have it, of OF_ALL the value, with its standard error over contexts."""
    values, errors = jackknife(lists.of_all, contexts, seed)
    return _of_all(values, errors, len(contexts)) | means(lists.names, lists.values_RM, contexts)


def difference(
    before: Sequence[Lists], after: Sequence[Lists], contexts: Sequence[Hashable], seed: int = 3407
) -> Figures:
    """After minus before, paired by row: where both have the measure. Several lists of a side (of several seeds of a
    training) count as their mean."""

    def of_all(weights_R: np.ndarray) -> np.ndarray:
        of_sides = [np.mean([lists.of_all(weights_R) for lists in side], axis=0) for side in (before, after)]
        return of_sides[1] - of_sides[0]

    values, errors = jackknife(of_all, contexts, seed)
    before_RM, after_RM = (np.mean([lists.values_RM for lists in side], axis=0) for side in (before, after))
    return _of_all(values, errors, len(contexts)) | means(before[0].names, after_RM - before_RM, contexts)


def _of_all(values: np.ndarray, errors: np.ndarray, n: int) -> Figures:
    found = zip(OF_ALL, values, errors, strict=False)
    return {name: {"mean": float(value), "se": float(error), "n": n} for name, value, error in found}


def means(names: Sequence[str], values_RM: np.ndarray, contexts: Sequence[Hashable]) -> Figures:
    """Of each column the mean over the rows that are not NaN, with its standard error over contexts."""
    figures: Figures = {}
    for name, values_R in zip(names, values_RM.T, strict=True):
        kept = np.flatnonzero(~np.isnan(values_R))
        labels = [contexts[row] for row in kept]
        error = float(error_of_mean(values_R[kept, None], labels)[0]) if len(kept) else math.nan
        figures[name] = {"mean": _mean(values_R[kept]), "se": error, "n": len(kept)}
    return figures
