"""The measures of recipes.evaluation.measures over an evaluation: a mean or a value, with its standard error.

Per row: novelty and cold share (they need mentions), diversity and calibration (they need genres), and for
conversations with a simulated user the figures of recipes.evaluation.dialogues. Over all rows: coverage, Gini,
popularity lift.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from convrec.base.statistics import compute_standard_error, jackknife
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

# Names of figures; those of dialogues go up to the default of MAX_TURNS.
MENTION_MEASURES = (Novelty.name, ColdShare.name)
GENRE_MEASURES = (Diversity.name, Calibration.name)
SUCCESS_BY_TURN = ("success_by_1", "success_by_2", "success_by_3")
NDCG_AFTER_QUESTIONS = ("ndcg_after_0", "ndcg_after_1", "ndcg_after_2")
DIALOGUE_MEASURES = ("questions", "useful", "malformed", *SUCCESS_BY_TURN, *NDCG_AFTER_QUESTIONS)
ROW_MEASURES = (*MENTION_MEASURES, *GENRE_MEASURES, *DIALOGUE_MEASURES)
SPLIT_MEASURES = (*(measure.name for measure in CATALOG_MEASURES), POPULARITY_LIFT.name)
MEASURES = (*SPLIT_MEASURES, *ROW_MEASURES)

Row = Mapping[str, Any]
Figures = dict[str, dict[str, Any]]  # name -> {"mean", "se", "n" (rows)}


def make_context(split: Split, train_rows: Sequence[Mapping[str, Any]]) -> Context:
    """Collect what measures compare lists with.

    Args:
        split: the rows to measure, with their catalog.
        train_rows: the training rows, whose ground truths are the mentions; [] to take those of the catalog's column,
            if it has one.
    """
    catalog = split.catalog
    first_row = split.matcher.index.items
    items = {first_row[row] for row, year in enumerate(catalog.years) if year is not None}
    mentions_M = None
    rows = 0
    if train_rows:
        wanted = list(chain.from_iterable(split.find_relevant_rows(train_rows)))
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
        wanted=split.find_relevant_rows(split.rows),
    )


def add_measures(rows: Sequence[dict[str, Any]], context: Context) -> None:
    """Add the measures that `compute_figures` reads to each row, in place.

    Args:
        rows: each with `recommended`, its list of distinct catalog rows. A measure is NaN where a list is too short.
        context: what lists are compared with.
    """
    lists = ListsInContext([row["recommended"] for row in rows], context)
    measures = [
        *(NEED_MENTIONS if context.mentions_M is not None else ()),
        *(NEED_GENRES if context.genres is not None else ()),
    ]
    for measure in measures:
        for row, value in zip(rows, measure.compute(lists).tolist(), strict=True):
            row[measure.name] = value


class _MeasuredLists:
    """The lists of one model, from rows with the measures of `add_measures`, as in rows.parquet.

    Attributes:
        values_RM: the measures of each row.
        has_popularity_R: whether both the list and the ground truth of a row have a popularity.
    """

    def __init__(self, rows: Sequence[Row], num_items: int, names: Sequence[str]):
        """names: some of ROW_MEASURES, the columns of values_RM."""
        self.values_RM = np.array([[row[name] for name in names] for row in rows], float)
        self._num_items = num_items
        lists = [row["recommended"] for row in rows]
        listed_RM = make_multi_hot(lists, 1 + max(chain.from_iterable(lists), default=0), float)
        self._listed_RM = listed_RM[:, listed_RM.getnnz(axis=0) > 0]  # drop items that no list has
        self._popularity_R2 = None  # popularity of the list, and of the ground truth
        self.has_popularity_R = np.zeros(len(rows), bool)
        if Novelty.name in names:
            popularity_R2 = np.array([(row[Popularity.name], row[WantedPopularity.name]) for row in rows], float)
            self.has_popularity_R = ~np.isnan(popularity_R2).any(axis=1)
            self._popularity_R2 = np.nan_to_num(popularity_R2)

    def compute_statistics(self, weights_R: np.ndarray, has_popularity_R: np.ndarray) -> np.ndarray:
        """Compute SPLIT_MEASURES over the rows with weight 1.

        Args:
            weights_R: 0 or 1 for each row.
            has_popularity_R: the rows that count for the popularity lift.

        Returns:
            One value per measure; without the popularity lift if mentions are unknown.
        """
        counts_M = np.zeros(self._num_items)
        counts_M[: self._listed_RM.shape[1]] = weights_R @ self._listed_RM
        figures = [measure.compute(counts_M) for measure in CATALOG_MEASURES]
        if self._popularity_R2 is not None:
            listed, wanted = (weights_R * has_popularity_R) @ self._popularity_R2
            figures.append(POPULARITY_LIFT.compute(listed, wanted))
        return np.array(figures)


def compute_figures(
    after: Sequence[Sequence[Row]],
    contexts: Sequence[Hashable],
    num_items: int,
    seed: int = 3407,
    minus: Sequence[Sequence[Row]] = (),
) -> Figures:
    """Compute the measures beyond accuracy with their standard errors over contexts.

    A side holds one evaluation, or one per training seed, which are averaged per row.

    Args:
        after: the evaluations, each its rows.
        contexts: the conversation of each row.
        num_items: number of distinct items in the catalog.
        seed: of the jackknife's groups.
        minus: evaluations to subtract, paired by row. A row counts where both sides have the measure.

    Returns:
        The mean of each of ROW_MEASURES over the rows that have it, and the value of each of SPLIT_MEASURES; only
        measures that all evaluations have. {} without rows.
    """
    samples = [rows[0] for rows in (*minus, *after) if rows]
    if not samples:
        return {}
    names = [name for name in ROW_MEASURES if all(name in row for row in samples)]
    sides = [[_MeasuredLists(rows, num_items, names) for rows in side] for side in (after, minus) if side]
    return _compute_catalog_figures(sides, contexts, seed) | compute_means(names, _compute_row_values(sides), contexts)


def _compute_catalog_figures(
    sides: Sequence[Sequence[_MeasuredLists]], contexts: Sequence[Hashable], seed: int
) -> Figures:
    """Compute SPLIT_MEASURES of the only side, or of the first minus the second."""
    has_popularity_R = np.all([lists.has_popularity_R for side in sides for lists in side], axis=0)

    def compute_statistics(weights_R: np.ndarray) -> np.ndarray:
        return _subtract_second(
            [
                np.mean([lists.compute_statistics(weights_R, has_popularity_R) for lists in side], axis=0)
                for side in sides
            ]
        )

    values, errors = jackknife(compute_statistics, contexts, seed)
    num_rows = len(has_popularity_R)
    counts = {POPULARITY_LIFT.name: int(has_popularity_R.sum())}
    return {
        name: {"mean": float(value), "se": float(error), "n": counts.get(name, num_rows)}
        for name, value, error in zip(SPLIT_MEASURES, values, errors, strict=False)  # without mentions there is no lift
    }


def _compute_row_values(sides: Sequence[Sequence[_MeasuredLists]]) -> np.ndarray:
    """Return the (R, M) measures of each row: of the only side, or of the first minus the second."""
    return _subtract_second([np.mean([lists.values_RM for lists in side], axis=0) for side in sides])


def _subtract_second(sides: Sequence[np.ndarray]) -> np.ndarray:
    return sides[0] - sides[1] if len(sides) > 1 else sides[0]


def compute_means(names: Sequence[str], values_RM: np.ndarray, contexts: Sequence[Hashable]) -> Figures:
    """Compute the mean of each column over the rows that are not NaN, with its standard error over contexts.

    Args:
        names: one per column.
        values_RM: a value per row and measure; NaN where a row does not have the measure.
        contexts: the conversation of each row.
    """
    return {name: _compute_mean(values_R, contexts) for name, values_R in zip(names, values_RM.T, strict=True)}


def _compute_mean(values_R: np.ndarray, contexts: Sequence[Hashable]) -> dict[str, Any]:
    rows = np.flatnonzero(~np.isnan(values_R))
    if not len(rows):
        return {"mean": math.nan, "se": math.nan, "n": 0}
    labels = [contexts[row] for row in rows]
    error = float(compute_standard_error(values_R[rows, None], labels)[0])
    return {"mean": float(values_R[rows].mean()), "se": error, "n": len(rows)}
