"""Sort a table's turns: by their numbers, otherwise by their times, otherwise in the order of the file."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from convrec.data.damage import BadRecord
from data_prep.own_data.forms.base import NAMES, LocatedRecord, normalise_name, reorder
from data_prep.own_data.times import DateOrder, find_date_order, parse_time

FILE_ORDER = "-"  # --columns order=-: keep the order of the file
_ONE_NUMBER = re.compile(r"[^\d-]*(-?\d+(?:\.\d+)?)\D*")
_FIX = "name the column that numbers the turns: --columns order=NAME, or order=- for the order of the file"


@dataclass(frozen=True)
class TurnOrder:
    """The columns by which a table's turns are sorted.

    Attributes:
        numbers: the columns that number turns, in the order in which they are compared.
        time: the column of times; "" for none.
        date_order: order of day and month in the file's dates.
        is_backwards: whether message ids fall throughout the file; used if it has neither numbers nor times.
        sorts: False to keep the order of the file.
    """

    numbers: Sequence[str] = ()
    time: str = ""
    date_order: DateOrder | None = None
    is_backwards: bool = False
    sorts: bool = True

    @staticmethod
    def find(rows: Sequence[LocatedRecord], names: Sequence[str], keeps_order: bool) -> "TurnOrder":
        """Find the columns of a table that give its order.

        Args:
            rows: of one table.
            names: its columns.
            keeps_order: whether the rows are in order, whatever the columns say.

        Raises:
            BadRecord: its dates are ambiguous, or contradict each other.
        """
        plain_names = {normalise_name(name): name for name in reversed(names)}

        def find_columns(what: str) -> list[str]:
            return [plain_names[name] for name in NAMES[what] if name in plain_names]

        time = next(iter(find_columns("time")), "")
        date_order = find_date_order((row.row, row.record.get(time)) for row in rows) if time else None
        if keeps_order:
            return TurnOrder(time=time, date_order=date_order, sorts=False)
        is_backwards = any(_is_falling(rows, name) for name in find_columns("message_id"))
        return TurnOrder(find_columns("order"), time, date_order, is_backwards)

    def describe(self) -> str:
        """Say how turns are sorted."""
        columns = [*self.numbers, *filter(None, [self.time])] if self.sorts else []
        if columns:
            return f"sorted by {', '.join(columns)}"
        return "in the reverse order of the file" if self.is_backwards else "in the order of the file"

    def get_time(self, row: LocatedRecord) -> Any:
        """Return the time of a turn in seconds since 1970; None if it has none."""
        value = row.record.get(self.time)
        return None if value is None else parse_time(value, self.date_order)

    def sort(self, rows: Sequence[LocatedRecord]) -> list[LocatedRecord]:
        """Sort the rows of a conversation.

        Args:
            rows: in the order of the file; the list is not changed.

        Raises:
            BadRecord: its columns contradict each other, or do not give an order.
        """
        if len(rows) < 2 or not self.sorts:
            return list(rows)
        if keys := self._make_keys(rows):
            in_order = _sort_by(rows, keys, ", ".join(self.numbers))
            self._check_times(in_order)
            return in_order
        if self.time and all(row.record.get(self.time) is not None for row in rows):
            return _sort_by(rows, self._parse_times(rows), self.time)
        self._check_gaps(rows)
        return list(reversed(rows)) if self.is_backwards else list(rows)

    def _check_gaps(self, rows: Sequence[LocatedRecord]) -> None:
        """Raise BadRecord if only some rows have a number or time and these do not rise."""
        for name in filter(None, (*self.numbers, self.time)):
            known = [row for row in rows if row.record.get(name) is not None]
            if not known or len(known) == len(rows):
                continue
            keys = (
                self._parse_times(known)
                if name == self.time
                else [_read_number(row.record[name]) or 0.0 for row in known]
            )
            if any(first > second for first, second in pairwise(keys)):
                raise BadRecord(
                    "turns.incomplete-order", f"rows are not in the order of %s, which some rows lack; {_FIX}", name
                )

    def _make_keys(self, rows: Sequence[LocatedRecord]) -> list[tuple[float, ...]]:
        """Return a sort key per row from the columns with a number in every row; [] if none distinguishes rows."""
        columns = []
        for name in self.numbers:
            numbers = [_read_number(row.record.get(name)) for row in rows]
            known = [number for number in numbers if number is not None]
            if len(known) == len(rows) and len(set(known)) > 1:
                columns.append(known)
        if columns and self.time and all(row.record.get(self.time) is not None for row in rows):
            columns += self._make_time_columns(rows)
        return list(zip(*columns, strict=True))

    def _make_time_columns(self, rows: Sequence[LocatedRecord]) -> list[list[float]]:
        """Return the times as a column that breaks ties between numbers; no column if a time cannot be read."""
        try:
            return [self._parse_times(rows)]
        except BadRecord:
            return []

    def _parse_times(self, rows: Sequence[LocatedRecord]) -> list[float]:
        try:
            return [parse_time(row.record[self.time], self.date_order) for row in rows]
        except BadRecord as problem:
            raise BadRecord("turns.unreadable-time", f"{self.time} {problem}; or {_FIX}") from None

    def _check_times(self, rows: Sequence[LocatedRecord]) -> None:
        """Raise BadRecord if the turns' numbers rise while their times fall."""
        if not self.time or any(row.record.get(self.time) is None for row in rows):
            return
        times = [time for column in self._make_time_columns(rows) for time in column]
        if times and times[0] > times[-1]:
            numbers = ", ".join(self.numbers)
            raise BadRecord("turns.opposite-orders", f"%s rises while %s falls; {_FIX}", numbers, self.time)


def _sort_by(rows: Sequence[LocatedRecord], keys: Sequence[Any], names: str) -> list[LocatedRecord]:
    """Sort rows by keys. Raises BadRecord if keys are equal in a file that is not in order."""
    is_rising = all(first <= second for first, second in pairwise(keys))
    is_falling = all(first >= second for first, second in pairwise(keys))
    if len(set(keys)) < len(keys) and not is_rising and not is_falling:
        raise BadRecord("turns.repeated-key", f"rows are not in order, and some have the same %s; {_FIX}", names)
    return reorder(rows, keys)


def _is_falling(rows: Sequence[LocatedRecord], name: str) -> bool:
    """Whether a column has numbers in all rows, each lower than the one before."""
    numbers = [_read_number(row.record.get(name)) for row in rows]
    return all(first is not None and second is not None and first > second for first, second in pairwise(numbers))


def _read_number(value: Any) -> float | None:
    """Return the number in a cell, also in `t12`; None if it has none or several."""
    if isinstance(value, int | float):
        return float(value)
    match = _ONE_NUMBER.fullmatch(value) if isinstance(value, str) else None
    return float(match[1]) if match else None
