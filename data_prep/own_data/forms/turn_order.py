"""The order of a table's turns: by their numbers, else by their times, else as the file has them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from convrec.data.damage import BadRecord
from data_prep.own_data.forms.base import NAMES, Placed, plain_name, reorder
from data_prep.own_data.times import DateOrder, find_date_order, parse_time

FILE_ORDER = "-"  # --columns order=-: the rows as the file has them
_ONE_NUMBER = re.compile(r"[^\d-]*(-?\d+(?:\.\d+)?)\D*")
_ANOTHER = "name the column that counts the turns: --columns order=NAME, or order=- for the order of the file"


@dataclass(frozen=True)
class TurnOrder:
    """The columns by which a table's turns are sorted.

    numbers: those that count turns; all are compared, the first first.
    time: "" for none.
    date_order: of the file's dates.
    is_backwards: whether the numbers of messages fall throughout the file, where it has neither numbers nor times.
    sorts: False where the file's order is kept.
    """

    numbers: Sequence[str] = ()
    time: str = ""
    date_order: DateOrder | None = None
    is_backwards: bool = False
    sorts: bool = True

    @staticmethod
    def find(rows: Sequence[Placed], names: Sequence[str], keeps_order: bool) -> "TurnOrder":
        """The columns of a table by their names. Raises BadRecord for dates that can be read in two ways."""
        plain_names = {plain_name(name): name for name in reversed(names)}

        def find_columns(what: str) -> list[str]:
            return [plain_names[name] for name in NAMES[what] if name in plain_names]

        time = next(iter(find_columns("time")), "")
        date_order = find_date_order((row.row, row.record.get(time)) for row in rows) if time else None
        if keeps_order:
            return TurnOrder(time=time, date_order=date_order, sorts=False)
        is_backwards = any(_falls(rows, name) for name in find_columns("message_id"))
        return TurnOrder(find_columns("order"), time, date_order, is_backwards)

    def describe(self) -> str:
        """How turns are sorted, in words."""
        columns = [*self.numbers, *filter(None, [self.time])] if self.sorts else []
        if columns:
            return f"sorted by {', '.join(columns)}"
        return "in the reverse order of the file" if self.is_backwards else "in the order of the file"

    def get_time(self, row: Placed) -> Any:
        """When a turn was written, in seconds since 1970; None for a table without times."""
        value = row.record.get(self.time)
        return None if value is None else parse_time(value, self.date_order)

    def sort(self, rows: Sequence[Placed]) -> list[Placed]:
        """The rows of a conversation in order. Raises BadRecord where they contradict each other."""
        if len(rows) < 2 or not self.sorts:
            return list(rows)
        if keys := self._number_keys(rows):
            in_order = _sort_by(rows, keys, ", ".join(self.numbers))
            self._check_times(in_order)
            return in_order
        if self.time and all(row.record.get(self.time) is not None for row in rows):
            return _sort_by(rows, self._times(rows), self.time)
        self._check_gaps(rows)
        return list(reversed(rows)) if self.is_backwards else list(rows)

    def _check_gaps(self, rows: Sequence[Placed]) -> None:
        """Raises BadRecord where some rows have a number or time, and these do not rise."""
        for name in filter(None, (*self.numbers, self.time)):
            known = [row for row in rows if row.record.get(name) is not None]
            if not known or len(known) == len(rows):
                continue
            keys = self._times(known) if name == self.time else [_read_number(row.record[name]) or 0.0 for row in known]
            if any(first > second for first, second in pairwise(keys)):
                raise BadRecord(f"rows are not in the order of %s, which some lack; {_ANOTHER}", name)

    def _number_keys(self, rows: Sequence[Placed]) -> list[tuple[float, ...]]:
        """A key per row of the columns in which all have numbers; [] where there is none that tells rows apart."""
        columns = []
        for name in self.numbers:
            numbers = [_read_number(row.record.get(name)) for row in rows]
            known = [number for number in numbers if number is not None]
            if len(known) == len(rows) and len(set(known)) > 1:
                columns.append(known)
        if columns and self.time and all(row.record.get(self.time) is not None for row in rows):
            columns += self._times_of_pairs(rows)
        return list(zip(*columns, strict=True))

    def _times_of_pairs(self, rows: Sequence[Placed]) -> list[list[float]]:
        """The times as one more column, for rows of one number; none where they cannot be read."""
        try:
            return [self._times(rows)]
        except BadRecord:
            return []

    def _times(self, rows: Sequence[Placed]) -> list[float]:
        try:
            return [parse_time(row.record[self.time], self.date_order) for row in rows]
        except BadRecord as problem:
            raise BadRecord(f"{self.time} {problem}; or {_ANOTHER}") from None

    def _check_times(self, rows: Sequence[Placed]) -> None:
        """Raises BadRecord where the turns' numbers rise while their times fall."""
        if not self.time or any(row.record.get(self.time) is None for row in rows):
            return
        times = [time for column in self._times_of_pairs(rows) for time in column]
        if times and times[0] > times[-1]:
            text = f"%s rises while %s falls; {_ANOTHER}"
            raise BadRecord(text, ", ".join(self.numbers), self.time)


def _sort_by(rows: Sequence[Placed], keys: Sequence[Any], names: str) -> list[Placed]:
    """Raises BadRecord where rows of one key stand in a file that is in no order."""
    is_rising = all(first <= second for first, second in pairwise(keys))
    is_falling = all(first >= second for first, second in pairwise(keys))
    if len(set(keys)) < len(keys) and not is_rising and not is_falling:
        raise BadRecord(f"rows are in no order, and some have the same %s; {_ANOTHER}", names)
    return reorder(rows, keys)


def _falls(rows: Sequence[Placed], name: str) -> bool:
    """Whether a column has numbers in all rows, each lower than the one before."""
    numbers = [_read_number(row.record.get(name)) for row in rows]
    return all(first is not None and second is not None and first > second for first, second in pairwise(numbers))


def _read_number(value: Any) -> float | None:
    """The number that a cell has, also in `t12`; None for one that has none, or several."""
    if isinstance(value, int | float):
        return float(value)
    match = _ONE_NUMBER.fullmatch(value) if isinstance(value, str) else None
    return float(match[1]) if match else None
