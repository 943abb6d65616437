"""Assign rows to splits: by their own column, by time as in the paper, or by a hash of the conversation's name.

A conversation is never divided: all its rows go where its latest row belongs, so that no row of train is later than the
beginning of validation and test.
"""

import math
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from convrec.base.errors import UserError
from convrec.data.damage import BadRecord, Damage, format_place
from data_prep.own_data.rows import SPLITS
from data_prep.own_data.times import parse_time
from data_prep.tables import split_by_hash

# More rows than both share a common opening rather than a conversation.
LARGE_SHARE = 0.05
LARGE_COUNT = 20


class SplitRule(NamedTuple):
    """The options for splits.

    Attributes:
        validation_from: when validation begins, in any form that `parse_time` reads; None if not given.
        test_from: when test begins.
        validation_share: share of the rows, 0 to below 1; 0 for none.
        test_share: the same for test.
    """

    validation_from: str | None = None
    test_from: str | None = None
    validation_share: float = 0.0
    test_share: float = 0.0


class SplitKey(NamedTuple):
    """The values that decide which split a row belongs to.

    Attributes:
        path: the row's file.
        row: its number there.
        conversation: 64-bit hash that identifies its conversation.
        time: seconds since 1970; None if the row has none.
        split: the row's own split; None if it has none.
        is_named: whether the row names its conversation; otherwise the beginning of its text identifies it.
    """

    path: Path
    row: int
    conversation: int
    time: float | None
    split: str | None
    is_named: bool = True


class Borders(NamedTuple):
    """The times at which splits begin; a split may be absent.

    Attributes:
        validation_from: where train ends, in seconds since 1970; None without a validation split.
        test_from: where test begins; None without a test split.
    """

    validation_from: float | None
    test_from: float | None

    def assign_splits(self, times_R: np.ndarray) -> np.ndarray:
        """Assign rows to splits.

        Args:
            times_R: the latest time of each row's conversation, in seconds since 1970.

        Returns:
            The index into SPLITS of each row, (R,).
        """
        test = np.inf if self.test_from is None else self.test_from
        validation = test if self.validation_from is None else self.validation_from
        return (times_R >= validation).astype(np.int8) + (times_R >= test)

    def to_json(self) -> dict[str, Any]:
        """Return the borders as summary.json has them."""
        dates = {name: time and datetime.fromtimestamp(time, UTC).isoformat() for name, time in self._asdict().items()}
        return {"by": "time"} | dates


def find_borders(times_R: np.ndarray, validation: float, test: float) -> Borders:
    """Find borders that split off the last rows as test and those before them as validation.

    Rows of one time stay together, so a share may be exceeded by the rows of one time.

    Args:
        times_R: the latest time of each row's conversation, in seconds since 1970.
        validation: share of the rows for validation.
        test: share of the rows for test.

    Raises:
        UserError: Nothing is left for train.
    """
    test_from, earlier_R = _cut_off_last(np.sort(times_R), math.ceil(test * len(times_R)))
    validation_from, left_R = _cut_off_last(earlier_R, math.ceil(validation * len(times_R)))
    if not len(left_R):
        raise UserError(
            "splits.no-train-rows",
            f"--validation-share {validation} and --test-share {test} leave nothing for train: the rows have only "
            f"{len(np.unique(times_R))} different times; lower the shares",
        )
    return Borders(validation_from=validation_from, test_from=test_from)


def _cut_off_last(sorted_R: np.ndarray, count: int) -> tuple[float | None, np.ndarray]:
    """Return the time at which the last `count` begin (None for none), and the times before it."""
    count = min(count, len(sorted_R))
    if not count:
        return None, sorted_R
    border = sorted_R[-count]
    return float(border), sorted_R[sorted_R < border]


def parse_rule(rule: SplitRule) -> Borders:
    """Return the borders that a rule gives.

    Args:
        rule: the options for splits.

    Returns:
        The borders by dates; both None for a rule of shares, whose borders depend on the data (`find_borders`).

    Raises:
        UserError: no data could follow the rule.
    """
    if (rule.validation_from or rule.test_from) and (rule.validation_share or rule.test_share):
        raise UserError(
            "splits.dates-and-shares",
            "--validation-from and --test-from cannot be combined with --validation-share and --test-share; give dates "
            "or shares",
        )
    for name, share in (("--validation-share", rule.validation_share), ("--test-share", rule.test_share)):
        if not 0 <= share < 1:
            raise UserError("splits.share-out-of-range", f"{name} {share}: give a share from 0 to below 1, e.g. 0.05")
    if rule.validation_share + rule.test_share >= 1:
        total = f"--validation-share {rule.validation_share} and --test-share {rule.test_share}"
        raise UserError("splits.shares-too-large", f"{total} leave nothing for train; lower them")
    validation_from = _parse_border("--validation-from", rule.validation_from)
    test_from = _parse_border("--test-from", rule.test_from)
    if validation_from is not None and test_from is not None and validation_from >= test_from:
        raise UserError(
            "splits.dates-out-of-order",
            f"--validation-from {rule.validation_from}: must be before --test-from {rule.test_from}; validation is the "
            "time between them",
        )
    return Borders(validation_from=validation_from, test_from=test_from)


def _parse_border(option: str, date: str | None) -> float | None:
    """Parse the time of an option; None if it is not given. Raises UserError if it is not a time."""
    try:
        return parse_time(date) if date else None
    except BadRecord as problem:
        raise UserError("splits.unreadable-date", f"{option} {problem}") from None


def select_splittable(keys: Sequence[SplitKey], rule: SplitRule, damage: Damage) -> list[SplitKey]:
    """Select the rows that can be assigned to a split.

    If any row has a split, every row needs one; if the rule splits by time, every row needs a time.

    Args:
        keys: of all rows.
        rule: the options for splits.
        damage: collects the other rows.
    """
    if any(key.split is not None for key in keys):
        field = "split"
        problem = BadRecord("splits.no-split", "no split, but other rows have one; add it to every row")
    elif any(rule) and (rule.validation_from or rule.test_from or any(key.time is not None for key in keys)):
        field = "time"
        problem = BadRecord("splits.no-time", "no time, which splitting by time needs in every row; add it")
    else:
        return list(keys)
    for key in keys:
        if getattr(key, field) is None:
            damage.add(key.path, key.row, problem)
    return [key for key in keys if getattr(key, field) is not None]


def describe_common_opening(keys: Sequence[SplitKey]) -> str | None:
    """Warn if so many unnamed rows begin alike that they are hardly one conversation.

    Args:
        keys: of all rows.

    Returns:
        The warning; None if all is well.
    """
    rows = Counter(key.conversation for key in keys if not key.is_named)
    ((conversation, count),) = rows.most_common(1) or [(0, 0)]
    if count <= max(LARGE_COUNT, LARGE_SHARE * len(keys)):
        return None
    first = next(key for key in keys if key.conversation == conversation)
    return (
        f"{count:,} of {len(keys):,} rows begin like {format_place(first.path, first.row)}, so they count as one "
        "conversation and stay in one split; if they are several, give every row a conversation_id"
    )


def assign_splits(keys: Sequence[SplitKey], rule: SplitRule, borders: Borders) -> tuple[dict[int, str], dict[str, Any]]:
    """Assign each conversation to a split.

    Args:
        keys: the rows, as `select_splittable` returns them.
        rule: the options for splits.
        borders: the rule's borders, as `parse_rule` returns them.

    Returns:
        conversation -> split; and the entry `splits` of summary.json.

    Raises:
        UserError: The rows have splits of their own although a rule is given, or the rule leaves nothing for train.
    """
    by_share = bool(rule.validation_share or rule.test_share)
    by_rule = by_share or borders != Borders(None, None)
    if keys[0].split is not None:
        if by_rule:
            first = format_place(keys[0].path, keys[0].row)
            raise UserError(
                "splits.rows-have-splits", f"{first}: rows have a split; remove it, or drop the options for splits"
            )
        return {key.conversation: key.split or "" for key in keys}, {"by": "the rows' own split"}
    if not by_rule:
        return {key.conversation: "train" for key in keys}, {"by": "nothing: all is train"}
    if keys[0].time is None:
        by_name = {
            key.conversation: split_by_hash(key.conversation, rule.validation_share, rule.test_share) for key in keys
        }
        return by_name, {"by": "hash of the conversation: rows have no time"}
    latest: dict[int, float] = {}  # conversation -> its latest time
    for key in keys:
        assert key.time is not None  # select_splittable made sure
        latest[key.conversation] = max(key.time, latest.get(key.conversation, key.time))
    if by_share:
        times_R = np.array([latest[key.conversation] for key in keys])
        borders = find_borders(times_R, rule.validation_share, rule.test_share)
    places = borders.assign_splits(np.array([*latest.values()]))
    return {name: SPLITS[place] for name, place in zip(latest, places, strict=True)}, borders.to_json()
