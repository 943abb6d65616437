"""Turn rating histories into rows: a question names some items, and the user's next items are the ground truth.

Shapes: E ratings, sorted by user and time; R rows; S segments (one user's ratings within one split). All rows are cut
at once, as indices into the sorted ratings; the text of a row is composed when it is written.
"""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from convrec.titles.catalog import Catalog
from convrec.titles.item import NO_YEAR, format_item
from data_prep.own_data import NAMES
from data_prep.own_data.rows import SPLITS, Row
from data_prep.tables import hash64

MIN_WARM_HISTORY = 3  # a shorter history is a cold start
WORDINGS: list[str] = NAMES["wordings"]


def order_ratings(users_E: np.ndarray, items_E: np.ndarray, times_E: np.ndarray | None) -> np.ndarray:
    """Return the indices of ratings sorted by user and time, without unknown items and repeated ratings.

    Args:
        users_E: user numbers.
        items_E: rows of the catalog; -1 if the catalog lacks the item.
        times_E: seconds since 1970; None keeps the order of the file.

    Returns:
        Indices into the arguments. If a user rated an item more than once, only the first rating counts.
    """
    order_E = np.argsort(users_E, kind="stable") if times_E is None else np.lexsort((times_E, users_E))
    order_E = order_E[items_E[order_E] >= 0]
    pair_E = users_E[order_E] * np.int64(items_E.max() + 1) + items_E[order_E]
    return order_E[np.sort(np.unique(pair_E, return_index=True)[1])]


def cut_histories(
    users_E: np.ndarray,
    items_E: np.ndarray,
    split_E: np.ndarray,
    by_time: bool,
    num_targets: int,
    max_history: int,
    rows: int,
) -> np.ndarray:
    """Cut the rows of all users out of their sorted ratings.

    Split by time, a row of validation or test targets the user's first `num_targets` ratings within that split; all
    earlier ratings, also those of earlier splits, are its history. In train, and in every split by user, the targets
    are the last ratings; in train this repeats for the ratings before them, up to `rows` times. A row of validation or
    test is cold if its history has fewer than MIN_WARM_HISTORY items or none of its targets occurs in train.

    Args:
        users_E: user numbers, sorted.
        items_E: rows of the catalog.
        split_E: index into SPLITS.
        by_time: whether splits are made by time; otherwise by user.
        num_targets: items in the ground truth.
        max_history: items that a question names at most.
        rows: rows of train per user at most.

    Returns:
        (R, 6): index of the first history rating, of the first target, and of the first rating after the targets; index
        into SPLITS; 1 if cold; index of the user's first rating.
    """
    begin_S = np.append(0, np.flatnonzero(np.diff(users_E) | np.diff(split_E)) + 1)
    stop_S = np.append(begin_S[1:], len(users_E))
    in_split_S = split_E[begin_S]
    first_S = np.searchsorted(users_E, users_E[begin_S])
    parts = []
    for place in range(rows):
        is_next_S = by_time & (in_split_S > 0)
        last_S = stop_S - place * num_targets
        middle_S = np.maximum(np.where(is_next_S, begin_S, last_S - num_targets), first_S + 1)
        end_S = np.where(is_next_S, np.minimum(middle_S + num_targets, stop_S), last_S)
        start_S = np.maximum(first_S, middle_S - max_history)
        chosen = (middle_S < end_S) & ((in_split_S == 0) | (place == 0))
        cuts_S5 = np.stack([start_S, middle_S, end_S, in_split_S, first_S], axis=1)
        parts.append(cuts_S5[chosen])
    start_R, middle_R, end_R, split_R, first_R = np.concatenate(parts).T
    is_in_train_E = np.isin(items_E, np.unique(items_E[split_E == 0]))
    num_in_train_E = np.append(0, np.cumsum(is_in_train_E))  # before each rating
    is_short_R = middle_R - start_R < min(MIN_WARM_HISTORY, max_history)
    is_cold_R = (split_R > 0) & (is_short_R | (num_in_train_E[end_R] == num_in_train_E[middle_R]))
    return np.stack([start_R, middle_R, end_R, split_R, is_cold_R, first_R], axis=1)


def iter_rows(
    cuts_R6: np.ndarray, items_E: np.ndarray, users_E: pa.Array, catalog: Catalog, seed: int
) -> Iterator[Row]:
    """Compose the text of each row.

    Args:
        cuts_R6: what `cut_histories` returns.
        items_E: rows of the catalog.
        users_E: names of the users.
        catalog: the catalog.
        seed: the wording of a row depends on it and on the row's id only.
    """
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
