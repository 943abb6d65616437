"""Parse times in any usual form into seconds since 1970; used for conversations, ratings and the options for splits.

    2021-08-29, 2021-08-29 18:05:00+02:00    ISO 8601; a time without a zone is UTC
    20210829, 20210829180500                 ISO 8601 without separators
    1630260300, ...000, ...000000            seconds, milli-, micro- or nanoseconds since 1970, from 1973 to 2099
    29 August 2021, Sun Aug 29 ... 2021      English month names
    29.08.2021, 08/29/2021 6:05 PM           day, month and year; the other dates of the file decide which is the day

`05.02.2021` alone can be 5 February or 2 May. All dates of a file are read in one order (`DateEvidence`): some other
date of the file, such as `20.02.2021`, must decide. If none does, or two contradict each other, the file is refused.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from enum import Enum
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from convrec.data.damage import BadRecord

USUAL_FORMS = "write 2022-10-31, 2022-10-31T18:05:00Z or seconds since 1970"
FIRST_YEAR = 1900  # for dates written as text
END_YEAR = 2100
EARLIEST_SECONDS = 1e8  # in 1973; a smaller number is a year, a date without separators or a count of something
LATEST_SECONDS = 4_102_444_800  # 2100-01-01
UNITS_PER_SECOND = (1, 10**3, 10**6, 10**9)  # s, ms, us, ns; their ranges never overlap
CACHED_DATES = 1 << 16

_NUMBER = re.compile(r"[+-]?\d+(?:\.\d*)?")
_COMMON_ISO = r"(?:19|20)\d{2}-\d{2}-\d{2}(?:[ T]\d{2}:\d{2}(?::\d{2}(?:\.\d{1,9})?)?(?:Z|[+-]\d{2}:\d{2})?)?"
_BY_SPREADSHEET = re.compile(r"[+-]?\d+(?:[.,]\d+)?[eE][+-]?\d+")  # 1.63E+12: most digits are lost
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH_NAME = (
    r"(?P<month_name>jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?"
    r"|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)\.?"
)
_WEEKDAY = r"(?:(?:mon|tues?|wed(?:nes)?|thu(?:rs)?|fri|sat(?:ur)?|sun)(?:day)?\.?,? +)?"
_DAY = r"(?P<day>\d{1,2})(?:st|nd|rd|th)?"
_YEAR = r"(?P<year>\d{4})"
_CLOCK = (
    r"(?P<hour>\d{1,2}):(?P<minute>\d{2})(?::(?P<second>\d{2})(?:[.,](?P<fraction>\d+))?)?"
    r"(?:\s*(?P<half>[ap])\.?m\.?)?"
)
_ZONE = r"(?:\s*(?P<zone>z|utc|gmt|[+-]\d{2}(?::?\d{2})?)(?: ?\(utc\))?)?"
_OPTIONAL_CLOCK = rf"(?:(?:,? +|t|,? +at +){_CLOCK}{_ZONE})?"
# The unambiguous forms. Their groups are the parts of the time.
_UNAMBIGUOUS = [
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"{_YEAR}(?P<separator>[-/.])(?P<month>\d{{1,2}})(?P=separator)(?P<day>\d{{1,2}}){_OPTIONAL_CLOCK}",
        r"(?P<year>\d{4})(?P<month>\d{2})(?P<day>\d{2})"
        rf"(?:[t ]?(?P<hour>\d{{2}})(?P<minute>\d{{2}})(?P<second>\d{{2}})(?:\.(?P<fraction>\d+))?{_ZONE})?",
        rf"{_YEAR}(?P<month>\d{{2}})(?P<day>\d{{2}})[t ]{_CLOCK}{_ZONE}",
        rf"{_WEEKDAY}{_DAY}[ -]{_MONTH_NAME},?[ -]{_YEAR}{_OPTIONAL_CLOCK}",
        rf"{_WEEKDAY}{_MONTH_NAME}[ -]{_DAY},?[ -]{_YEAR}{_OPTIONAL_CLOCK}",
        rf"{_WEEKDAY}{_MONTH_NAME} +{_DAY} {_CLOCK}{_ZONE} {_YEAR}",  # Goodreads, and X before 2023
    )
]
_NUMERIC_DATE = re.compile(
    rf"(?P<first>\d{{1,2}})(?P<separator>[./-])(?P<other>\d{{1,2}})(?P=separator){_YEAR}{_OPTIONAL_CLOCK}",
    re.IGNORECASE,
)


class DateOrder(Enum):
    """Which number of a date such as `05.02.2021` is the day."""

    DAY_FIRST = "day first"
    MONTH_FIRST = "month first"


class DateReading(NamedTuple):
    """A text read as a date in both orders.

    Attributes:
        day_first: seconds since 1970; None if it is not a date in this order.
        month_first: the same for the other order.
    """

    day_first: float | None
    month_first: float | None

    @property
    def is_ambiguous(self) -> bool:
        """Whether the two orders give different times."""
        return None not in self and self.day_first != self.month_first


def parse_time(value: Any, order: DateOrder | None = None) -> float:
    """Parse one time.

    Args:
        value: text, a number, or a date or datetime as parquet has them.
        order: order of the file's dates (`DateEvidence.find_order`); None: an ambiguous date is refused.

    Returns:
        Seconds since 1970.

    Raises:
        BadRecord: The value is not a time, or an ambiguous date.
    """
    reading = read_both_orders(value)
    if order is DateOrder.DAY_FIRST and reading.day_first is not None:
        return reading.day_first
    if order is DateOrder.MONTH_FIRST and reading.month_first is not None:
        return reading.month_first
    if order is not None:
        raise BadRecord("time.other-order", f"is %r, but the file's dates have the {order.value}; {USUAL_FORMS}", value)
    if reading.is_ambiguous:
        raise _make_ambiguity_error(str(value), reading)
    seconds = reading.month_first if reading.day_first is None else reading.day_first
    assert seconds is not None  # `read_both_orders` finds at least one
    return seconds


def read_both_orders(value: Any) -> DateReading:
    """Parse a time in both orders of day and month.

    Args:
        value: a text, date, datetime or number; a time without a zone is UTC.

    Returns:
        Seconds since 1970 in each order, equal if the order does not matter.

    Raises:
        BadRecord: it is not a time in either order.
    """
    if isinstance(value, datetime):  # pandas' Timestamp is one
        seconds = _to_timestamp(value)
    elif isinstance(value, date):
        seconds = _to_timestamp(datetime(value.year, value.month, value.day))
    elif isinstance(value, str):
        return _read_text(value.strip())
    elif isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool):
        seconds = _read_number(value)
    else:
        raise BadRecord("time.wrong-type", f"has the type %s; {USUAL_FORMS}", type(value).__name__)
    return DateReading(seconds, seconds)


@lru_cache(maxsize=CACHED_DATES)  # days recur
def _read_text(text: str) -> DateReading:
    for pattern in _UNAMBIGUOUS:
        if match := pattern.fullmatch(text):
            parts = match.groupdict()
            month = parts.get("month") or _MONTHS.index(parts["month_name"][:3].lower()) + 1
            seconds = _combine_parts(parts, int(month), int(parts["day"]))
            if seconds is not None:
                return DateReading(seconds, seconds)
    if match := _NUMERIC_DATE.fullmatch(text):
        parts = match.groupdict()
        first = int(parts["first"])
        other = int(parts["other"])
        reading = DateReading(_combine_parts(parts, other, first), _combine_parts(parts, first, other))
        if any(seconds is not None for seconds in reading):
            return reading
    if _NUMBER.fullmatch(text):
        seconds = _read_number(float(text) if "." in text else int(text))
        return DateReading(seconds, seconds)
    if _BY_SPREADSHEET.fullmatch(text):
        raise BadRecord(
            "time.dropped-digits", "is %r: a spreadsheet dropped its last digits; export the column as text", text
        )
    moment = _read_rare_iso(text)
    if moment is not None:
        return DateReading(_to_timestamp(moment), _to_timestamp(moment))
    raise BadRecord("time.not-a-time", f"is %r; {USUAL_FORMS}", text)


def _read_rare_iso(text: str) -> datetime | None:
    """Parse the rarer forms of ISO 8601, such as weeks or times with hours only."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if FIRST_YEAR <= moment.year < END_YEAR else None


def _read_number(value: Any) -> float:
    """Read seconds, milli-, micro- or nanoseconds since 1970, or a date without separators."""
    for units in UNITS_PER_SECOND:
        if EARLIEST_SECONDS * units <= value < LATEST_SECONDS * units:
            return float(value) if units == 1 else int(value) / units
    if value == value and abs(value) < 1e18 and value == int(value) and len(str(int(value))) in (8, 14):
        match = _UNAMBIGUOUS[1].fullmatch(str(int(value)))
        seconds = _combine_parts(match.groupdict(), int(match["month"]), int(match["day"])) if match else None
        if seconds is not None:
            return seconds
    raise BadRecord(
        "time.number-out-of-range",
        "is %r; numbers are seconds, milli-, micro- or nanoseconds since 1970, from 1973 on, or like 20221031; write "
        'other dates as text: "2022-10-31"',
        value,
    )


def _combine_parts(parts: dict[str, str | None], month: int, day: int) -> float | None:
    """Compute the seconds since 1970 from the parts of a time; None if no calendar or clock has such a time."""
    hour = _convert_hour(int(parts.get("hour") or 0), parts.get("half"))
    if hour is None:
        return None
    minute = int(parts.get("minute") or 0)
    second = float(f"{parts.get('second') or 0}.{parts.get('fraction') or 0}")
    try:
        zone = _parse_zone(parts.get("zone"))
        moment = datetime(int(parts["year"] or 0), month, day, hour, minute, tzinfo=zone)
    except ValueError:
        return None
    if not FIRST_YEAR <= moment.year < END_YEAR or second >= 61:  # 60 is a leap second
        return None
    return moment.timestamp() + second


def _convert_hour(hour: int, half: str | None) -> int | None:
    """Convert an hour with "a" or "p" (am, pm) to 0..23; None if a 12-hour clock has no such hour."""
    if half is None:
        return hour
    if not 1 <= hour <= 12:
        return None
    return hour % 12 + (12 if half.lower() == "p" else 0)


def _parse_zone(text: str | None) -> timezone:
    """Parse `+02:00`, `-0330`, `+02` or a name for UTC; None means UTC too. Raises ValueError for a day or more."""
    if text is None or text[0] not in "+-":
        return UTC
    minutes = int(text[-2:]) if len(text) > 3 else 0
    offset = timedelta(hours=int(text[1:3]), minutes=minutes)
    return timezone(offset if text[0] == "+" else -offset)


def _to_timestamp(moment: datetime) -> float:
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _make_ambiguity_error(text: str, reading: DateReading) -> BadRecord:
    days = [f"{datetime.fromtimestamp(seconds, UTC):%-d %B}" for seconds in reading if seconds is not None]
    return BadRecord(
        "time.ambiguous-date",
        f"is %r: {days[0]} or {days[1]}? No date of the file decides; write 2021-12-31",
        text,
    )


@dataclass
class DateEvidence:
    """Evidence about the order of day and month in one file: add every time of the file, then call `find_order`.

    Attributes:
        day_first: row and text of the first date that is valid with the day first only; None if there is none.
        month_first: the same for the month first.
        ambiguous: the same for the first date that is valid in both orders.
    """

    day_first: tuple[int, str] | None = None
    month_first: tuple[int, str] | None = None
    ambiguous: tuple[int, str] | None = None

    def add(self, row: int, value: Any) -> None:
        """Add the time of a row.

        Args:
            row: its number, for messages.
            value: a cell. Values that are not times are left to `parse_time`.
        """
        if not isinstance(value, str):
            return
        try:
            reading = read_both_orders(value)
        except BadRecord:
            return
        if reading.is_ambiguous:
            self.ambiguous = self.ambiguous or (row, value)
        elif reading.month_first is None:
            self.day_first = self.day_first or (row, value)
        elif reading.day_first is None:
            self.month_first = self.month_first or (row, value)

    def find_order(self) -> DateOrder | None:
        """Return the order of the file's dates; None if no date depends on it.

        Raises:
            BadRecord: Two dates contradict each other, or a date is ambiguous and no other decides.
        """
        if self.day_first and self.month_first:
            day_row, day_text = self.day_first
            month_row, month_text = self.month_first
            raise BadRecord(
                "time.both-orders",
                "is %r in row %s (day first), but %r in row %s (month first); write all dates like 2021-12-31",
                day_text,
                day_row,
                month_text,
                month_row,
            )
        if self.day_first:
            return DateOrder.DAY_FIRST
        if self.month_first:
            return DateOrder.MONTH_FIRST
        if self.ambiguous:
            _, text = self.ambiguous
            raise _make_ambiguity_error(text, read_both_orders(text))
        return None


def find_date_order(times: Iterable[tuple[int, Any]]) -> DateOrder | None:
    """Find the order of the dates of a file.

    Args:
        times: the number and the cell of each row.

    Returns:
        The order; None if no date depends on it.

    Raises:
        BadRecord: two dates contradict each other, or a date is ambiguous and no other decides.
    """
    evidence = DateEvidence()
    for row, value in times:
        evidence.add(row, value)
    return evidence.find_order()


def read_column(cells: pd.Series, evidence: DateEvidence) -> pd.DataFrame:
    """Parse a column of times, each as `read_both_orders` does.

    Args:
        cells: texts, numbers or timestamps; the index holds the row numbers.
        evidence: collects the dates that depend on the order of day and month.

    Returns:
        Columns `day_first` and `month_first` in seconds since 1970; NaN if a cell is not a time in that order.
    """
    if not pd.api.types.is_numeric_dtype(cells) and not pd.api.types.is_datetime64_any_dtype(cells):
        cells = cells.astype("str").str.strip()
    day_first = _read_usual_forms(cells).to_numpy("float64", copy=True)
    month_first = day_first.copy()
    for place in np.flatnonzero(np.isnan(day_first)):
        value = cells.iloc[place]
        try:
            reading = read_both_orders(value)
        except BadRecord:
            continue
        evidence.add(int(cells.index[place]), value)
        day_first[place] = np.nan if reading.day_first is None else reading.day_first
        month_first[place] = np.nan if reading.month_first is None else reading.month_first
    return pd.DataFrame({"day_first": day_first, "month_first": month_first}, cells.index)


def _read_usual_forms(cells: pd.Series) -> pd.Series:
    """Parse the numbers and dates that most files have, much faster than `read_both_orders`; NaN for the rest."""
    if pd.api.types.is_datetime64_any_dtype(cells):
        return _convert_dates(cells)
    if pd.api.types.is_numeric_dtype(cells):
        return _read_numbers(cells.astype("float64"))
    seconds = _read_numbers(pd.to_numeric(cells.where(cells.str.fullmatch(_NUMBER)), errors="coerce"))
    dates = cells[cells.str.fullmatch(_COMMON_ISO)]
    seconds.update(_convert_dates(pd.to_datetime(dates, format="ISO8601", utc=True, errors="coerce")))
    return seconds


def _read_numbers(numbers: pd.Series) -> pd.Series:
    seconds = pd.Series(np.nan, numbers.index)
    for units in UNITS_PER_SECOND:
        is_in_range = numbers.between(EARLIEST_SECONDS * units, LATEST_SECONDS * units, inclusive="left")
        seconds = seconds.where(~is_in_range, numbers / units)
    return seconds


def _convert_dates(dates: pd.Series) -> pd.Series:
    return (pd.to_datetime(dates, utc=True) - pd.Timestamp(0, tz="UTC")).dt.total_seconds()
