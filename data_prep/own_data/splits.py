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

from convrec.data.damage import BadRecord, Damage, place_of
from convrec.errors import UserError
from data_prep.own_data.rows import SPLITS
from data_prep.own_data.times import parse_time
from data_prep.tables import split_by_hash

LARGE_SHARE, LARGE_COUNT = 0.05, 20  # of the rows: a conversation has fewer, a common opening more


class SplitRule(NamedTuple):
    """What the command line says about splits; dates in any form of `parse_time`."""

    validation_from: str | None = None
    test_from: str | None = None
    validation_share: float = 0.0
    test_share: float = 0.0


class Facts(NamedTuple):
    """What the first reading keeps of a row."""

    path: Path
    row: int
    conversation: int  # its 64-bit name
    time: float | None
    split: str | None
    is_named: bool = True  # by the row itself, not by how its text begins


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
    left_R = np.sort(times_R)
    borders: list[float | None] = []
    for share in (test, validation):
        count = min(math.ceil(share * len(times_R)), len(left_R))
        borders.append(float(left_R[-count]) if count else None)
        left_R = left_R[left_R < left_R[-count]] if count else left_R
    if not len(left_R):
        raise UserError(
            f"--validation-share {validation} and --test-share {test} leave nothing for train: the rows have "
            f"{len(np.unique(times_R))} different times; lower the shares"
        )
    return Borders(*reversed(borders))


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
    times: list[float | None] = []
    for name, date in (("--validation-from", rule.validation_from), ("--test-from", rule.test_from)):
        try:
            times.append(parse_time(date) if date else None)
        except BadRecord as problem:
            raise UserError(f"{name} {problem}") from None
    if None not in times and times[0] >= times[1]:  # type: ignore[operator]
        raise UserError(
            f"--validation-from {rule.validation_from} must be before --test-from {rule.test_from}: validation is what "
            "lies between them"
        )
    return Borders(*times)


def complete(facts: Sequence[Facts], rule: SplitRule, damage: Damage) -> list[Facts]:
    """The rows that have what they are split by: a split where any has one, a time where the rule goes by time. The
    others go to `damage`."""
    if any(fact.split is not None for fact in facts):
        field, problem = "split", "no split, but other rows have one; write it in every row"
    elif any(rule) and (rule.validation_from or rule.test_from or any(fact.time is not None for fact in facts)):
        field, problem = "time", "no time, which splitting by time needs in every row; write it"
    else:
        return list(facts)
    for fact in facts:
        if getattr(fact, field) is None:
            damage.add(fact.path, fact.row, problem)
    return [fact for fact in facts if getattr(fact, field) is not None]


def common_opening(facts: Sequence[Facts]) -> str | None:
    """What to tell where so many rows without a conversation's name begin alike that they are hardly of one."""
    rows = Counter(fact.conversation for fact in facts if not fact.is_named)
    ((conversation, count),) = rows.most_common(1) or [(0, 0)]
    if count <= max(LARGE_COUNT, LARGE_SHARE * len(facts)):
        return None
    first = next(fact for fact in facts if fact.conversation == conversation)
    return (
        f"{count:,} of {len(facts):,} rows begin as {place_of(first.path, first.row)} does, so they are one "
        "conversation and in one split; if they are not, give every row a conversation_id"
    )


def assign(facts: Sequence[Facts], rule: SplitRule, borders: Borders) -> tuple[dict[int, str], dict[str, Any]]:
    """(conversation -> split, what the summary says of it) of rows that are `complete`. Raises UserError when rule and
    rows do not go together."""
    by_share = bool(rule.validation_share or rule.test_share)
    by_rule = by_share or borders != Borders(None, None)
    if facts[0].split is not None:
        if by_rule:
            first = place_of(facts[0].path, facts[0].row)
            raise UserError(f"{first}: rows have a split; leave it out, or the options for splits")
        return {fact.conversation: fact.split or "" for fact in facts}, {"by": "the rows' own split"}
    if not by_rule:
        return {fact.conversation: "train" for fact in facts}, {"by": "nothing: all is train"}
    if facts[0].time is None:
        shares = (rule.validation_share, rule.test_share)
        by_name = {fact.conversation: split_by_hash(fact.conversation, *shares) for fact in facts}
        return by_name, {"by": "hash of the conversation: rows have no time"}
    latest: dict[int, float] = {}  # of each conversation
    for fact in facts:
        assert fact.time is not None  # they are complete
        latest[fact.conversation] = max(fact.time, latest.get(fact.conversation, fact.time))
    if by_share:
        times_R = np.array([latest[fact.conversation] for fact in facts])
        borders = borders_at_shares(times_R, rule.validation_share, rule.test_share)
    places = borders.places(np.array([*latest.values()]))
    return {name: SPLITS[place] for name, place in zip(latest, places, strict=True)}, borders.described()
