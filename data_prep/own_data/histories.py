"""What users have rated, in order of time -> rows: a question that names some items, and the next ones, wanted.

E ratings, sorted by user and time; R rows; S ratings of a user in a split, taken together. All rows are found at once,
as places among the sorted ratings; a row is put into words when it is written.
"""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from convrec.titles.catalog import Catalog
from convrec.titles.item import NO_YEAR, format_item
from data_prep.own_data import NAMES
from data_prep.own_data.rows import SPLITS, Row
from data_prep.tables import hash64

COLD = 3  # a history of fewer items is a cold start
WORDINGS: list[str] = NAMES["wordings"]


def in_order(users_E: np.ndarray, items_E: np.ndarray, times_E: np.ndarray | None) -> np.ndarray:
    """The ratings of known items (not -1) by user and time, where there is none in the file's order; of a user's
    ratings of one item the first."""
    order_E = np.argsort(users_E, kind="stable") if times_E is None else np.lexsort((times_E, users_E))
    order_E = order_E[items_E[order_E] >= 0]
    pair_E = users_E[order_E] * np.int64(items_E.max() + 1) + items_E[order_E]
    return order_E[np.sort(np.unique(pair_E, return_index=True)[1])]


def cut(
    users_E: np.ndarray,
    items_E: np.ndarray,
    split_E: np.ndarray,
    by_time: bool,
    wanted: int,
    max_history: int,
    rows: int,
) -> np.ndarray:
    """(R, 6) the rows of all users: among the ratings the first of the history, the first that is wanted and the first
    behind these; place in SPLITS, whether it is cold, the user's first rating. split_E: place in SPLITS.

    By time, the first `wanted` ratings of a user within validation and within test are wanted, and those before them,
    of earlier splits too, are the history. In train, and in all splits by user, the last ones are wanted; in train
    again those before them, `rows` times. A row of validation or test is cold where its history has fewer than COLD
    items, or nothing that it wants is in train.
    """
    begin_S = np.append(0, np.flatnonzero(np.diff(users_E) | np.diff(split_E)) + 1)
    stop_S = np.append(begin_S[1:], len(users_E))
    in_split_S = split_E[begin_S]
    first_S = np.searchsorted(users_E, users_E[begin_S])
    parts = []
    for place in range(rows):
        is_next_S = by_time & (in_split_S > 0)
        last_S = stop_S - place * wanted
        middle_S = np.maximum(np.where(is_next_S, begin_S, last_S - wanted), first_S + 1)
        end_S = np.where(is_next_S, np.minimum(middle_S + wanted, stop_S), last_S)
        start_S = np.maximum(first_S, middle_S - max_history)
        chosen = (middle_S < end_S) & ((in_split_S == 0) | (place == 0))
        cuts_S5 = np.stack([start_S, middle_S, end_S, in_split_S, first_S], axis=1)
        parts.append(cuts_S5[chosen])
    start_R, middle_R, end_R, split_R, first_R = np.concatenate(parts).T
    met_E = np.isin(items_E, np.unique(items_E[split_E == 0]))
    num_met_E = np.append(0, np.cumsum(met_E))  # before each rating
    is_short_R = middle_R - start_R < min(COLD, max_history)
    is_cold_R = (split_R > 0) & (is_short_R | (num_met_E[end_R] == num_met_E[middle_R]))
    return np.stack([start_R, middle_R, end_R, split_R, is_cold_R, first_R], axis=1)


def iter_rows(
    cuts_R6: np.ndarray, items_E: np.ndarray, users_E: pa.Array, catalog: Catalog, seed: int
) -> Iterator[Row]:
    """cuts_R6: see `cut`. items_E: rows of the catalog. users_E: names. The wording is of the seed and the row's id."""
    for start, middle, end, split, is_cold, first in cuts_R6:
        items = items_E[start:end].tolist()
        titles = [catalog.titles[item] for item in items]
        years = [catalog.years[item] or NO_YEAR for item in items]
        user = users_E[middle].as_py()
        name = f"{user}_t{middle - first}"
        seen = titles[: middle - start]
        *others, last = map(format_item, seen, years)
        listed = f"{', '.join(others)} and {last}" if others else last
        question = WORDINGS[hash64(f"{seed} {name}") % len(WORDINGS)].format(listed)
        truth = [(title, str(year) if catalog.dated else "") for title, year in zip(titles, years, strict=True)]
        split_name = SPLITS[split] + "_cold" * is_cold
        yield Row(
            conversation=f"USER: {question}\n",
            truth=truth[len(seen) :],
            seen=seen,
            conversation_id=user,
            split=split_name,
            id=name,
        )
