"""Which split a row belongs to: its own word, or by time as in the paper, or by its conversation's name.

A conversation is never divided: all its rows go where its latest row belongs, so that nothing in train is later than
what validation and test begin with.
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

# A conversation has fewer rows than both, a common opening has more.
LARGE_SHARE = 0.05
LARGE_COUNT = 20


class SplitRule(NamedTuple):
    """What the command line says about splits; dates in any form of `parse_time`."""

    validation_from: str | None = None
    test_from: str | None = None
    validation_share: float = 0.0
    test_share: float = 0.0


class SplitKey(NamedTuple):
    """What decides which split a row belongs to.

    Attributes:
        path: the row's file.
        row: its number there.
        conversation: 64 bits that tell its conversation from others.
        time: seconds since 1970; None: the row has none.
        split: the row's own word; None: it has none.
        is_named: whether the row itself names its conversation, and not the beginning of its text.
    """

    path: Path
    row: int
    conversation: int
    time: float | None
    split: str | None
    is_named: bool = True


class Borders(NamedTuple):
    """Seconds since 1970: train is before validation_from, test from test_from on. None: there is no such split."""

    validation_from: float | None
    test_from: float | None

    def places(self, times_R: np.ndarray) -> np.ndarray:
        """(R,) places in SPLITS of rows; times_R: the latest of each one's conversation."""
        test = np.inf if self.test_from is None else self.test_from
        validation = test if self.validation_from is None else self.validation_from
        return (times_R >= validation).astype(np.int8) + (times_R >= test)

    def described(self) -> dict[str, Any]:
        """As summary.json has them."""
        dates = {name: time and datetime.fromtimestamp(time, UTC).isoformat() for name, time in self._asdict().items()}
        return {"by": "time"} | dates


def borders_at_shares(times_R: np.ndarray, validation: float, test: float) -> Borders:
    """Borders so that the last `test` of the rows and the last `validation` before them are split off.

    times_R: the latest of each row's conversation. Rows of one time stay together, so that a share is reached, or
    exceeded by the rows of one time. Raises UserError when nothing is left for train.
    """
    test_from, earlier_R = _cut_off_last(np.sort(times_R), math.ceil(test * len(times_R)))
    validation_from, left_R = _cut_off_last(earlier_R, math.ceil(validation * len(times_R)))
    if not len(left_R):
        raise UserError(
            f"--validation-share {validation} and --test-share {test} leave nothing for train: the rows have "
            f"{len(np.unique(times_R))} different times; lower the shares"
        )
    return Borders(validation_from=validation_from, test_from=test_from)


def _cut_off_last(sorted_R: np.ndarray, count: int) -> tuple[float | None, np.ndarray]:
    """(the time from which on the last `count` are, None for none; the times before it)."""
    count = min(count, len(sorted_R))
    if not count:
        return None, sorted_R
    border = sorted_R[-count]
    return float(border), sorted_R[sorted_R < border]


def check_rule(rule: SplitRule) -> Borders:
    """The borders that the rule names. Raises UserError for a rule that no data could follow."""
    if (rule.validation_from or rule.test_from) and (rule.validation_share or rule.test_share):
        raise UserError(
            "--validation-from and --test-from go without --validation-share and --test-share: give one pair"
        )
    for name, share in (("--validation-share", rule.validation_share), ("--test-share", rule.test_share)):
        if not 0 <= share < 1:
            raise UserError(f"{name} {share}: give a share from 0 to below 1, 0.05 say")
    if rule.validation_share + rule.test_share >= 1:
        raise UserError("--validation-share and --test-share are the whole together: leave something for train")
    validation_from = _parse_border("--validation-from", rule.validation_from)
    test_from = _parse_border("--test-from", rule.test_from)
    if validation_from is not None and test_from is not None and validation_from >= test_from:
        raise UserError(
            f"--validation-from {rule.validation_from} must be before --test-from {rule.test_from}: validation is what "
            "lies between them"
        )
    return Borders(validation_from=validation_from, test_from=test_from)


def _parse_border(option: str, date: str | None) -> float | None:
    """The time of an option, None where it is not given. Raises UserError for what is no time."""
    try:
        return parse_time(date) if date else None
    except BadRecord as problem:
        raise UserError(f"{option} {problem}") from None


def complete(keys: Sequence[SplitKey], rule: SplitRule, damage: Damage) -> list[SplitKey]:
    """The rows that have what they are split by: a split where any has one, a time where the rule goes by time. The
    others go to `damage`."""
    if any(key.split is not None for key in keys):
        field = "split"
        problem = "no split, but other rows have one; write it in every row"
    elif any(rule) and (rule.validation_from or rule.test_from or any(key.time is not None for key in keys)):
        field = "time"
        problem = "no time, which splitting by time needs in every row; write it"
    else:
        return list(keys)
    for key in keys:
        if getattr(key, field) is None:
            damage.add(key.path, key.row, problem)
    return [key for key in keys if getattr(key, field) is not None]


def common_opening(keys: Sequence[SplitKey]) -> str | None:
    """What to tell where so many rows without a conversation's name begin alike that they are hardly of one."""
    rows = Counter(key.conversation for key in keys if not key.is_named)
    ((conversation, count),) = rows.most_common(1) or [(0, 0)]
    if count <= max(LARGE_COUNT, LARGE_SHARE * len(keys)):
        return None
    first = next(key for key in keys if key.conversation == conversation)
    return (
        f"{count:,} of {len(keys):,} rows begin as {format_place(first.path, first.row)} does, so they are one "
        "conversation and in one split; if they are not, give every row a conversation_id"
    )


def assign(keys: Sequence[SplitKey], rule: SplitRule, borders: Borders) -> tuple[dict[int, str], dict[str, Any]]:
    """(conversation -> split, what the summary says of it) of rows that are `complete`. Raises UserError when rule and
    rows do not go together."""
    by_share = bool(rule.validation_share or rule.test_share)
    by_rule = by_share or borders != Borders(None, None)
    if keys[0].split is not None:
        if by_rule:
            first = format_place(keys[0].path, keys[0].row)
            raise UserError(f"{first}: rows have a split; leave it out, or the options for splits")
        return {key.conversation: key.split or "" for key in keys}, {"by": "the rows' own split"}
    if not by_rule:
        return {key.conversation: "train" for key in keys}, {"by": "nothing: all is train"}
    if keys[0].time is None:
        by_name = {
            key.conversation: split_by_hash(key.conversation, rule.validation_share, rule.test_share) for key in keys
        }
        return by_name, {"by": "hash of the conversation: rows have no time"}
    latest: dict[int, float] = {}  # of each conversation
    for key in keys:
        assert key.time is not None  # they are complete
        latest[key.conversation] = max(key.time, latest.get(key.conversation, key.time))
    if by_share:
        times_R = np.array([latest[key.conversation] for key in keys])
        borders = borders_at_shares(times_R, rule.validation_share, rule.test_share)
    places = borders.places(np.array([*latest.values()]))
    return {name: SPLITS[place] for name, place in zip(latest, places, strict=True)}, borders.described()
