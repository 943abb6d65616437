"""The one reader of times, for conversations, ratings and the options of splits: any usual form -> seconds since 1970.

    2021-08-29, 2021-08-29 18:05:00+02:00    ISO 8601; a time without a zone is UTC
    20210829, 20210829180500                 ISO 8601 without dividers
    1630260300, ...000, ...000000            seconds, milli-, micro- or nanoseconds since 1970, from 1973 to 2099
    29 August 2021, Sun Aug 29 ... 2021      English names of months
    29.08.2021, 08/29/2021 6:05 PM           day, month and year: which of the first two is the day, the file decides

`05.02.2021` alone can be 5 February or 2 May. All dates of a file are read in one order (`DateEvidence`): some other
date of the file, such as `20.02.2021`, must say which. Where none does, or two contradict each other, nothing is read.
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
FIRST_YEAR = 1900  # of dates that are texts
END_YEAR = 2100
EARLIEST_SECONDS = 1e8  # in 1973; a smaller number is a year, a date without dividers or a count of something
LATEST_SECONDS = 4_102_444_800  # 2100-01-01
UNITS_PER_SECOND = (1, 10**3, 10**6, 10**9)  # what numbers count; the ranges of two units never overlap
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
_CLOCK_BEHIND = rf"(?:(?:,? +|t|,? +at +){_CLOCK}{_ZONE})?"
# The forms that have one reading. Their groups are the parts of the time.
_ONE_READING = [
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"{_YEAR}(?P<divider>[-/.])(?P<month>\d{{1,2}})(?P=divider)(?P<day>\d{{1,2}}){_CLOCK_BEHIND}",
        r"(?P<year>\d{4})(?P<month>\d{2})(?P<day>\d{2})"
        rf"(?:[t ]?(?P<hour>\d{{2}})(?P<minute>\d{{2}})(?P<second>\d{{2}})(?:\.(?P<fraction>\d+))?{_ZONE})?",
        rf"{_YEAR}(?P<month>\d{{2}})(?P<day>\d{{2}})[t ]{_CLOCK}{_ZONE}",
        rf"{_WEEKDAY}{_DAY}[ -]{_MONTH_NAME},?[ -]{_YEAR}{_CLOCK_BEHIND}",
        rf"{_WEEKDAY}{_MONTH_NAME}[ -]{_DAY},?[ -]{_YEAR}{_CLOCK_BEHIND}",
        rf"{_WEEKDAY}{_MONTH_NAME} +{_DAY} {_CLOCK}{_ZONE} {_YEAR}",  # Goodreads, and X before 2023
    )
]
_NUMERIC_DATE = re.compile(
    rf"(?P<first>\d{{1,2}})(?P<divider>[./-])(?P<other>\d{{1,2}})(?P=divider){_YEAR}{_CLOCK_BEHIND}", re.IGNORECASE
)


class DateOrder(Enum):
    """Which number of a date such as `05.02.2021` is the day."""

    DAY_FIRST = "day first"
    MONTH_FIRST = "month first"


class Reading(NamedTuple):
    """The seconds since 1970 of a text by each order; None where it is no date in that order."""

    day_first: float | None
    month_first: float | None

    @property
    def is_open(self) -> bool:
        """Whether the two orders give two times."""
        return None not in self and self.day_first != self.month_first


def parse_time(value: Any, order: DateOrder | None = None) -> float:
    """Read one time.

    Args:
        value: a text, a number, or a date or datetime, as parquet has them.
        order: of the file's dates (`DateEvidence.order`). None: a date that the order would change is refused.

    Returns:
        Seconds since 1970.

    Raises:
        BadRecord: The value is no time, or a date with two readings whose order nobody knows.
    """
    reading = read_both_orders(value)
    if order is DateOrder.DAY_FIRST and reading.day_first is not None:
        return reading.day_first
    if order is DateOrder.MONTH_FIRST and reading.month_first is not None:
        return reading.month_first
    if order is not None:
        raise BadRecord(f"is %r, but the file's dates have the {order.value}; {USUAL_FORMS}", value)
    if reading.is_open:
        raise _two_readings_error(str(value), reading)
    seconds = reading.month_first if reading.day_first is None else reading.day_first
    assert seconds is not None  # `read_both_orders` finds one at least
    return seconds


def read_both_orders(value: Any) -> Reading:
    """Read a time as each order of day and month has it. Raises BadRecord for what is no time in either."""
    if isinstance(value, datetime):  # pandas' Timestamp is one
        seconds = _to_timestamp(value)
    elif isinstance(value, date):
        seconds = _to_timestamp(datetime(value.year, value.month, value.day))
    elif isinstance(value, str):
        return _read_text(value.strip())
    elif isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool):
        seconds = _read_number(value)
    else:
        raise BadRecord(f"is a %s; {USUAL_FORMS}", type(value).__name__)
    return Reading(seconds, seconds)


@lru_cache(maxsize=CACHED_DATES)  # days recur
def _read_text(text: str) -> Reading:
    for pattern in _ONE_READING:
        if match := pattern.fullmatch(text):
            parts = match.groupdict()
            month = parts.get("month") or _MONTHS.index(parts["month_name"][:3].lower()) + 1
            seconds = _seconds_of_parts(parts, int(month), int(parts["day"]))
            if seconds is not None:
                return Reading(seconds, seconds)
    if match := _NUMERIC_DATE.fullmatch(text):
        parts = match.groupdict()
        first = int(parts["first"])
        other = int(parts["other"])
        reading = Reading(_seconds_of_parts(parts, other, first), _seconds_of_parts(parts, first, other))
        if any(seconds is not None for seconds in reading):
            return reading
    if _NUMBER.fullmatch(text):
        seconds = _read_number(float(text) if "." in text else int(text))
        return Reading(seconds, seconds)
    if _BY_SPREADSHEET.fullmatch(text):
        raise BadRecord("is %r, of which a spreadsheet has lost digits; export the column as text", text)
    moment = _read_rare_iso(text)
    if moment is not None:
        return Reading(_to_timestamp(moment), _to_timestamp(moment))
    raise BadRecord(f"is %r; {USUAL_FORMS}", text)


def _read_rare_iso(text: str) -> datetime | None:
    """Read what else ISO 8601 has, weeks and hours alone for instance."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if FIRST_YEAR <= moment.year < END_YEAR else None


def _read_number(value: Any) -> float:
    """Read seconds, milli-, micro- or nanoseconds since 1970, or a date without dividers."""
    for units in UNITS_PER_SECOND:
        if EARLIEST_SECONDS * units <= value < LATEST_SECONDS * units:
            return float(value) if units == 1 else int(value) / units
    if value == value and abs(value) < 1e18 and value == int(value) and len(str(int(value))) in (8, 14):
        match = _ONE_READING[1].fullmatch(str(int(value)))
        seconds = _seconds_of_parts(match.groupdict(), int(match["month"]), int(match["day"])) if match else None
        if seconds is not None:
            return seconds
    raise BadRecord(
        "is %r; a number is seconds, milli-, micro- or nanoseconds since 1970, from 1973 on, or 20221031; a date is a "
        'text: "2022-10-31"',
        value,
    )


def _seconds_of_parts(parts: dict[str, str | None], month: int, day: int) -> float | None:
    """Compute the seconds since 1970 of what a form has found; None for what no calendar or clock has."""
    hour = _hour_of_day(int(parts.get("hour") or 0), parts.get("half"))
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


def _hour_of_day(hour: int, half: str | None) -> int | None:
    """An hour from 0 to 23 of one with "a" or "p" (am, pm), which begins at 12; None for what such a clock lacks."""
    if half is None:
        return hour
    if not 1 <= hour <= 12:
        return None
    return hour % 12 + (12 if half.lower() == "p" else 0)


def _parse_zone(text: str | None) -> timezone:
    """The time zone of `+02:00`, `-0330`, `+02` or a name of UTC, which is also that of None. Raises ValueError for an
    offset of a day or more."""
    if text is None or text[0] not in "+-":
        return UTC
    minutes = int(text[-2:]) if len(text) > 3 else 0
    offset = timedelta(hours=int(text[1:3]), minutes=minutes)
    return timezone(offset if text[0] == "+" else -offset)


def _to_timestamp(moment: datetime) -> float:
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _two_readings_error(text: str, reading: Reading) -> BadRecord:
    """The error of a date whose order nobody knows."""
    days = [f"{datetime.fromtimestamp(seconds, UTC):%-d %B}" for seconds in reading if seconds is not None]
    return BadRecord(f"is %r, {days[0]} or {days[1]}, and no date of the file says which; write 2021-12-31", text)


@dataclass
class DateEvidence:
    """What the dates of one file say about their order. Show it every time of the file, then ask for `order`.

    day_first, month_first: the first text that is a date in that order alone, and its row. is_open: the first that is
    one in both.
    """

    day_first: tuple[int, str] | None = None
    month_first: tuple[int, str] | None = None
    is_open: tuple[int, str] | None = None

    def add(self, row: int, value: Any) -> None:
        """Look at the time of a row; what is no time at all is left to `parse_time`."""
        if not isinstance(value, str):
            return
        try:
            reading = read_both_orders(value)
        except BadRecord:
            return
        if reading.is_open:
            self.is_open = self.is_open or (row, value)
        elif reading.month_first is None:
            self.day_first = self.day_first or (row, value)
        elif reading.day_first is None:
            self.month_first = self.month_first or (row, value)

    def order(self) -> DateOrder | None:
        """The order of the file's dates; None where it changes none of them.

        Raises:
            BadRecord: Two dates contradict each other, or no date says which of two readings another has.
        """
        if self.day_first and self.month_first:
            day_row, day_text = self.day_first
            month_row, month_text = self.month_first
            told = (
                "is %r in row %s, with the day first, and %r in row %s, with the month first; write all as 2021-12-31"
            )
            raise BadRecord(told, day_text, day_row, month_text, month_row)
        if self.day_first:
            return DateOrder.DAY_FIRST
        if self.month_first:
            return DateOrder.MONTH_FIRST
        if self.is_open:
            _, text = self.is_open
            raise _two_readings_error(text, read_both_orders(text))
        return None


def find_date_order(times: Iterable[tuple[int, Any]]) -> DateOrder | None:
    """The order of the dates among a file's (row, time). Raises BadRecord as `DateEvidence.order` does."""
    evidence = DateEvidence()
    for row, value in times:
        evidence.add(row, value)
    return evidence.order()


def read_column(cells: pd.Series, evidence: DateEvidence) -> pd.DataFrame:
    """Read many times at once, as `read_both_orders` reads each.

    Args:
        cells: texts, numbers or timestamps; the index is the rows' numbers.
        evidence: gets the dates that the order of day and month would change.

    Returns:
        Columns `day_first` and `month_first`, seconds since 1970, NaN for what is no time in that order.
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
    """Read, many times faster than `read_both_orders`, the numbers and dates that most files have; NaN for others."""
    if pd.api.types.is_datetime64_any_dtype(cells):
        return _seconds_of_dates(cells)
    if pd.api.types.is_numeric_dtype(cells):
        return _read_numbers(cells.astype("float64"))
    seconds = _read_numbers(pd.to_numeric(cells.where(cells.str.fullmatch(_NUMBER)), errors="coerce"))
    dates = cells[cells.str.fullmatch(_COMMON_ISO)]
    seconds.update(_seconds_of_dates(pd.to_datetime(dates, format="ISO8601", utc=True, errors="coerce")))
    return seconds


def _read_numbers(numbers: pd.Series) -> pd.Series:
    seconds = pd.Series(np.nan, numbers.index)
    for units in UNITS_PER_SECOND:
        is_in_range = numbers.between(EARLIEST_SECONDS * units, LATEST_SECONDS * units, inclusive="left")
        seconds = seconds.where(~is_in_range, numbers / units)
    return seconds


def _seconds_of_dates(dates: pd.Series) -> pd.Series:
    return (pd.to_datetime(dates, utc=True) - pd.Timestamp(0, tz="UTC")).dt.total_seconds()
