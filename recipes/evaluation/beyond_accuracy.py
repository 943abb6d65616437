"""The measures of recipes.evaluation.measures over an evaluation: a mean or a value, with its standard error.

Of a row: novelty, cold share (they need mentions), diversity, calibration (they need genres), and where a user answers
what recipes.evaluation.dialogues adds. Of all rows: coverage, Gini, popularity lift.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from convrec.base.statistics import error_of_mean, jackknife
from convrec.retrieval.retriever import make_multi_hot
from recipes.evaluation.measures import (
    Calibration,
    ColdShare,
    Context,
    Coverage,
    Diversity,
    Gini,
    ListMeasure,
    ListsInContext,
    Novelty,
    Popularity,
    PopularityLift,
    WantedPopularity,
)
from recipes.evaluation.split import Split

NEED_MENTIONS: tuple[ListMeasure, ...] = (Novelty(), ColdShare(), Popularity(), WantedPopularity())
NEED_GENRES: tuple[ListMeasure, ...] = (Diversity(), Calibration())
CATALOG_MEASURES = (Coverage(), Gini())
POPULARITY_LIFT = PopularityLift()

# Names of the figures.
OF_MENTIONS = (Novelty.name, ColdShare.name)
OF_GENRES = (Diversity.name, Calibration.name)
BY_TURN = ("success_by_1", "success_by_2", "success_by_3")
AFTER = ("ndcg_after_0", "ndcg_after_1", "ndcg_after_2")  # questions; with BY_TURN up to the default of MAX_TURNS
OF_DIALOGUES = ("questions", "useful", "malformed", *BY_TURN, *AFTER)  # where a user answers
OF_A_ROW = (*OF_MENTIONS, *OF_GENRES, *OF_DIALOGUES)
OF_ALL = (*(measure.name for measure in CATALOG_MEASURES), POPULARITY_LIFT.name)
MEASURES = (*OF_ALL, *OF_A_ROW)

Row = Mapping[str, Any]
Figures = dict[str, dict[str, Any]]  # name -> {"mean", "se", "n" (rows)}


def make_context(split: Split, train_rows: Sequence[Mapping[str, Any]]) -> Context:
    """Mentions are counted in the training rows, without these taken from the catalog's column."""
    catalog = split.catalog
    first_row = split.matcher.index.items
    items = {first_row[row] for row, year in enumerate(catalog.years) if year is not None}
    mentions_M = None
    rows = 0
    if train_rows:
        wanted = list(chain.from_iterable(split.wanted_rows(train_rows)))
        mentions_M = np.bincount(np.array(wanted, int), minlength=len(catalog))
        rows = len(train_rows)
    elif catalog.mentions is not None:
        counts = [count or 0 for count in catalog.mentions]
        mentions_M = np.bincount(first_row, counts, minlength=len(catalog))
        rows = sum(counts)
    reader = split.reader
    seen = [reader.seen_rows(row["seen_titles"] or ()) for row in split.rows]
    return Context(
        num_items=len(items),
        mentions_M=mentions_M,
        rows=rows,
        genres=catalog.genres,
        mentioned=[list(dict.fromkeys(first_row[row] for row in of_row)) for of_row in seen],
        wanted=split.wanted_rows(split.rows),
    )


def add_measures(rows: Sequence[dict[str, Any]], context: Context) -> None:
    """To each row with `recommended`, its list of distinct catalog rows, what `compute_figures` reads: the
    measures, NaN where the list is too short, and `wanted_popularity`."""
    lists = ListsInContext([row["recommended"] for row in rows], context)
    measures = [
        *(NEED_MENTIONS if context.mentions_M is not None else ()),
        *(NEED_GENRES if context.genres is not None else ()),
    ]
    for measure in measures:
        for row, value in zip(rows, measure.values(lists).tolist(), strict=True):
            row[measure.name] = value


class _MeasuredLists:
    """The lists of one model, from rows as `add_measures` and rows.parquet have them.

    Attributes:
        values_RM: the measures of each row.
        has_popularity_R: whether both the list and the ground truth of a row have a popularity.
    """

    def __init__(self, rows: Sequence[Row], num_items: int, names: Sequence[str]):
        """names: of OF_A_ROW."""
        self.values_RM = np.array([[row[name] for name in names] for row in rows], float)
        self._num_items = num_items
        lists = [row["recommended"] for row in rows]
        listed_RM = make_multi_hot(lists, 1 + max(chain.from_iterable(lists), default=0), float)
        self._listed_RM = listed_RM[:, listed_RM.getnnz(axis=0) > 0]  # of the items that any list has
        self._popularity_R2 = None  # of the list and of what is wanted
        self.has_popularity_R = np.zeros(len(rows), bool)
        if Novelty.name in names:
            popularity_R2 = np.array([(row[Popularity.name], row[WantedPopularity.name]) for row in rows], float)
            self.has_popularity_R = ~np.isnan(popularity_R2).any(axis=1)
            self._popularity_R2 = np.nan_to_num(popularity_R2)

    def statistics(self, weights_R: np.ndarray, has_popularity_R: np.ndarray) -> np.ndarray:
        """The figures OF_ALL of the rows of weight 1; the last one only with mentions, and of these rows alone."""
        counts_M = np.zeros(self._num_items)
        counts_M[: self._listed_RM.shape[1]] = weights_R @ self._listed_RM
        figures = [measure.value(counts_M) for measure in CATALOG_MEASURES]
        if self._popularity_R2 is not None:
            listed, wanted = (weights_R * has_popularity_R) @ self._popularity_R2
            figures.append(POPULARITY_LIFT.value(listed, wanted))
        return np.array(figures)


def compute_figures(
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
    sides = [[_MeasuredLists(rows, num_items, names) for rows in side] for side in (after, minus) if side]
    return _catalog_figures(sides, contexts, seed) | means(names, _values(sides), contexts)


def _catalog_figures(sides: Sequence[Sequence[_MeasuredLists]], contexts: Sequence[Hashable], seed: int) -> Figures:
    """The figures OF_ALL: of the only side, or of the first less those of the second."""
    has_popularity_R = np.all([lists.has_popularity_R for side in sides for lists in side], axis=0)

    def statistics(weights_R: np.ndarray) -> np.ndarray:
        return _first_minus_second(
            [np.mean([lists.statistics(weights_R, has_popularity_R) for lists in side], axis=0) for side in sides]
        )

    values, errors = jackknife(statistics, contexts, seed)
    num_rows = len(has_popularity_R)
    counts = {POPULARITY_LIFT.name: int(has_popularity_R.sum())}
    return {
        name: {"mean": float(value), "se": float(error), "n": counts.get(name, num_rows)}
        for name, value, error in zip(OF_ALL, values, errors, strict=False)  # without mentions there is no lift
    }


def _values(sides: Sequence[Sequence[_MeasuredLists]]) -> np.ndarray:
    """(R, M) the measures of each row: of the only side, or of the first less those of the second."""
    return _first_minus_second([np.mean([lists.values_RM for lists in side], axis=0) for side in sides])


def _first_minus_second(sides: Sequence[np.ndarray]) -> np.ndarray:
    return sides[0] - sides[1] if len(sides) > 1 else sides[0]


def means(names: Sequence[str], values_RM: np.ndarray, contexts: Sequence[Hashable]) -> Figures:
    """Of each column the mean over the rows that are not NaN, with its standard error over contexts."""
    return {name: _mean(values_R, contexts) for name, values_R in zip(names, values_RM.T, strict=True)}


def _mean(values_R: np.ndarray, contexts: Sequence[Hashable]) -> dict[str, Any]:
    known = np.flatnonzero(~np.isnan(values_R))
    if not len(known):
        return {"mean": math.nan, "se": math.nan, "n": 0}
    labels = [contexts[row] for row in known]
    error = float(error_of_mean(values_R[known, None], labels)[0])
    return {"mean": float(values_R[known].mean()), "se": error, "n": len(known)}
