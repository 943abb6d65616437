"""Splits by time and by name: no conversation is divided, no row is lost, and train comes first."""

from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from convrec.base.errors import UserError
from data_prep.own_data.splits import Borders, SplitKey, SplitRule, assign_splits, find_borders, parse_rule
from data_prep.tables import split_by_hash
from tests.user_errors import refuses

rows = st.lists(st.tuples(st.integers(0, 8), st.integers(0, 12)), min_size=1, max_size=40)  # conversation, time


def collect_keys(rows):
    return [
        SplitKey(path=Path("f"), row=row, conversation=conversation, time=float(time), split=None)
        for row, (conversation, time) in enumerate(rows)
    ]


@given(rows, st.integers(0, 6), st.integers(7, 12))
def test_dates_divide_conversations_by_their_latest_row(rows, validation_from, test_from):
    split_of, _ = assign_splits(collect_keys(rows), SplitRule(), Borders(validation_from, test_from))
    assert set(split_of) == {conversation for conversation, _ in rows}
    for conversation, time in rows:
        latest = max(other for name, other in rows if name == conversation)
        expected = "train" if latest < validation_from else "validation" if latest < test_from else "test"
        assert split_of[conversation] == expected
        assert time < validation_from or expected != "train"


@given(rows, st.sampled_from([0.0, 0.1, 0.3]), st.sampled_from([0.1, 0.25]))
def test_shares_are_reached_and_train_is_earlier(rows, validation, test):
    latest = {name: max(time for other, time in rows if other == name) for name, _ in rows}
    try:
        split_of, summary = assign_splits(
            collect_keys(rows), SplitRule(None, None, validation, test), Borders(None, None)
        )
    except UserError:
        # nothing was left for train: each share can take up to one time's rows too many
        one_time = max(Counter(latest[name] for name, _ in rows).values())
        assert len(rows) <= (validation + test) * len(rows) + 2 * one_time
        return
    sizes = Counter(split_of[conversation] for conversation, _ in rows)
    latest = {name: max(time for other, time in rows if other == name) for name, _ in rows}
    assert sizes["test"] >= test * len(rows)
    assert sizes["validation"] >= validation * len(rows)
    assert sizes["train"] >= 1
    times = {split: [latest[name] for name in latest if split_of[name] == split] for split in sizes}
    order = [times[split] for split in ("train", "validation", "test") if split in times]
    assert all(max(earlier) < min(later) for earlier, later in pairwise(order))
    assert summary["by"] == "time"


def test_shares_by_hand():
    # 10 rows at times 1 to 6; test 0.25 -> 2.5 rows: times 6 (1 row) and 5 (2) make 3. validation 0.2 -> time 4 (2).
    assert find_borders(np.array([1, 1, 2, 3, 3, 4, 4, 5, 5, 6]), 0.2, 0.25) == Borders(4, 5)
    late = np.array([1] * 9 + [2])
    assert find_borders(late, 0.0, 0.1) == Borders(None, 2)
    assert find_borders(late, 0.1, 0.0) == Borders(2, None)
    with refuses("splits.no-train-rows", "--validation-share 0.1", "2 different times"):
        find_borders(late, 0.1, 0.1)


def test_a_name_decides_alone_and_shares_are_met():
    names = [(n * 0x9E3779B97F4A7C15) % 2**64 for n in range(20_000)]  # Weyl's sequence: evenly spread
    sizes = Counter(split_by_hash(name, 0.1, 0.2) for name in names)
    assert [round(sizes[split] / 20_000, 2) for split in ("train", "validation", "test")] == [0.7, 0.1, 0.2]


def test_without_a_rule_all_is_train():
    assert assign_splits(collect_keys([(1, 2), (3, 4)]), SplitRule(), parse_rule(SplitRule()))[0] == {
        1: "train",
        3: "train",
    }
