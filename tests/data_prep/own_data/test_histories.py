"""Rows from rating histories: by hand, and on random ratings against the definition applied user by user."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from convrec.titles.catalog import Catalog
from data_prep.own_data.histories import MIN_WARM_HISTORY, WORDINGS, cut_histories, iter_rows, order_ratings

EVENTS = st.lists(st.tuples(st.integers(0, 4), st.integers(-1, 6), st.integers(0, 9)), min_size=1, max_size=60)


def decode_cuts(cuts_R6: np.ndarray, items_E: np.ndarray) -> list[tuple[int, list[int], list[int], bool]]:
    """Return (split, history, targets, whether it is cold) for each row."""
    return [
        (split, items_E[start:middle].tolist(), items_E[middle:end].tolist(), bool(is_cold))
        for start, middle, end, split, is_cold, _ in cuts_R6.tolist()
    ]


def iter_rows_by_definition(
    events: list[tuple[int, int, int]], borders: tuple[int, int] | None, num_targets: int, most: int, rows: int
) -> Iterator[tuple[int, list[int], list[int], bool]]:
    """borders: of validation and test; None: user 1 is validation, user 2 test, the others train."""
    histories: dict[int, list[tuple[int, int]]] = {}  # user -> (item, split) in order
    for user, item, time in sorted(
        (event for event in events if event[1] >= 0), key=lambda event: (event[0], event[2])
    ):
        split = sum(time >= border for border in borders) if borders else {1: 1, 2: 2}.get(user, 0)
        if item not in [other for other, _ in histories.setdefault(user, [])]:
            histories[user].append((item, split))
    train = {item for history in histories.values() for item, split in history if split == 0}
    for history in histories.values():
        items = [item for item, _ in history]
        for split in range(3):
            places = [place for place, (_, other) in enumerate(history) if other == split]
            for row in range(rows if split == 0 else 1):
                if not places:
                    continue
                if borders and split:
                    begin = max(places[0], 1)
                    end = min(begin + num_targets, places[-1] + 1)
                else:
                    end = places[-1] + 1 - row * num_targets
                    begin = max(end - num_targets, 1)
                if begin < end:
                    named = items[max(0, begin - most) : begin]
                    is_cold = len(named) < min(MIN_WARM_HISTORY, most) or not train & {*items[begin:end]}
                    yield split, named, items[begin:end], is_cold and split > 0


def check(
    events: list[tuple[int, int, int]], borders: tuple[int, int] | None, num_targets: int, most: int, rows: int
) -> None:
    users_E, items_E, times_E = (np.array(column) for column in zip(*events, strict=True))
    order_E = order_ratings(users_E, items_E, times_E)
    users_E, items_E, times_E = users_E[order_E], items_E[order_E], times_E[order_E]
    if borders:
        split_E = (times_E >= borders[0]).astype(np.int8) + (times_E >= borders[1])
    else:
        split_E = np.where(users_E <= 2, users_E, 0).astype(np.int8)
    rows_found = decode_cuts(
        cut_histories(users_E, items_E, split_E, borders is not None, num_targets, most, rows), items_E
    )
    assert sorted(rows_found) == sorted(iter_rows_by_definition(events, borders, num_targets, most, rows))


@settings(max_examples=300, deadline=None)
@given(EVENTS, st.sampled_from([None, (3, 6), (6, 6), (0, 9)]), st.integers(1, 3), st.integers(1, 4), st.integers(1, 3))
def test_rows_are_those_of_the_definition(
    events: list[tuple[int, int, int]], borders: tuple[int, int] | None, num_targets: int, most: int, rows: int
) -> None:
    if any(item >= 0 for _, item, _ in events):
        check(events, borders, num_targets, most, rows)


def test_time_split_trains_on_the_past_and_targets_what_follows() -> None:
    #        user 7: five films before the border, three after it; user 8: one before, two after
    times_E = np.array([1, 2, 3, 4, 5, 11, 12, 13, 1, 11, 12])
    users_E, items_E = np.array([7] * 8 + [8] * 3), np.array([0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 9])
    order_E = order_ratings(users_E, items_E, times_E)
    assert order_E.tolist() == [0, 1, 2, 3, 4, 5, 6, 8, 9, 10]  # film 0 again, at 13, is not a next film
    users_E, items_E, times_E = users_E[order_E], items_E[order_E], times_E[order_E]
    split_E = 2 * (times_E >= 10).astype(np.int8)
    assert decode_cuts(cut_histories(users_E, items_E, split_E, True, 2, 3, 2), items_E) == [
        (0, [0, 1, 2], [3, 4], False),
        (2, [2, 3, 4], [5, 6], True),  # nobody has rated 5 and 6 in train
        (2, [1], [2, 9], True),  # 2 is in train, but the history is short
        (0, [0], [1, 2], False),  # the second row of user 7
    ]


def test_question_names_the_history_with_a_seeded_wording() -> None:
    catalog = Catalog(["Heat", "Alien", "Up", "M"], [1995, 1979, 2009, 1931])
    items_E, users_E = np.array([0, 1, 2, 3]), pa.DictionaryArray.from_arrays(np.zeros(4, np.int32), ["ann"])
    cuts_R6 = np.array([[0, 3, 4, 0, 0, 0]])
    rows = [next(iter_rows(cuts_R6, items_E, users_E, catalog, seed)) for seed in range(60)]
    texts = {f"USER: {wording.format('Heat (1995), Alien (1979) and Up (2009)')}\n" for wording in WORDINGS}
    assert {row.conversation for row in rows} == texts
    assert {(row.id, row.conversation_id, row.split) for row in rows} == {("ann_t3", "ann", "train")}
    assert rows[0].seen == ["Heat", "Alien", "Up"]
    assert rows[0].truth == [("M", "1931")]
