"""Times: every usual form is parsed, and an ambiguous date is refused unless the file's other dates decide."""

from datetime import UTC, date, datetime

import numpy as np
import pandas as pd
import pytest

from data_prep.own_data.times import DateEvidence, DateOrder, find_date_order, parse_time, read_column
from tests.user_errors import refuses_record

EVENING = datetime(2021, 8, 29, 18, 5, tzinfo=UTC)
SECONDS = int(EVENING.timestamp())
SAME_EVENING = [
    "2021-08-29 18:05",
    "2021-08-29T18:05:00Z",
    "2021-08-29T20:05:00.000000+02:00",
    "2021-08-29 13:05:00-0500",
    " 2021-08-29 18:05:00.000000000 UTC ",
    "2021/8/29 18:05",
    "20210829180500",
    "20210829T180500Z",
    "29 August 2021, 18:05",
    "29-Aug-2021 6:05 PM",
    "August 29, 2021 at 6:05 p.m.",
    "Sun Aug 29 11:05:00 -0700 2021",
    "Sun, 29 Aug 2021 18:05:00 +0000",
    "29.08.2021 18:05",
    "29/08/2021, 6:05 pm",
    "8/29/2021 6:05:00 PM",
    SECONDS,
    str(SECONDS),
    f"{SECONDS}.0",
    SECONDS * 10**3,
    str(SECONDS * 10**6),
    SECONDS * 10**9,
    float(SECONDS * 10**3),
    EVENING,
    EVENING.replace(tzinfo=None),
    pd.Timestamp("2021-08-29 18:05"),
    np.int64(SECONDS),
]


@pytest.mark.parametrize("value", SAME_EVENING, ids=repr)
def test_every_form_of_one_evening_is_the_same_second(value: object) -> None:
    assert parse_time(value) == SECONDS


@pytest.mark.parametrize("value", ["2021-08-29", "20210829", 20210829, 20210829.0, date(2021, 8, 29), "08/29/2021"])
def test_a_day_begins_at_midnight(value: object) -> None:
    assert parse_time(value) == datetime(2021, 8, 29, tzinfo=UTC).timestamp()


def test_fractions_of_seconds_are_kept() -> None:
    assert parse_time("2021-08-29T18:05:00.25") == SECONDS + 0.25
    assert parse_time(SECONDS * 10**6 + 1) == pytest.approx(SECONDS + 1e-6, abs=2e-7)


@pytest.mark.parametrize(
    ("value", "code"),
    [
        ("05.02.2021", "time.ambiguous-date"),
        ("2021", "time.number-out-of-range"),
        (2021, "time.number-out-of-range"),
        (17, "time.number-out-of-range"),
        ("44377.66", "time.number-out-of-range"),  # days since 1900, as Excel counts
        (float("nan"), "time.number-out-of-range"),
        (float("inf"), "time.number-out-of-range"),
        ("1.63E+12", "time.dropped-digits"),
        ("31.04.2021", "time.not-a-time"),
        ("13.13.2021", "time.not-a-time"),
        ("2021-02-30", "time.not-a-time"),
        ("29.08.21", "time.not-a-time"),
        ("2021-08-29 25:00", "time.not-a-time"),
        ("2021-08-29 13:05 PM", "time.not-a-time"),
        ("2021-08-29 18:05:00+25:00", "time.not-a-time"),  # no zone is a day away
        ("1850-01-01", "time.not-a-time"),
        ("yesterday", "time.not-a-time"),
        ("", "time.not-a-time"),
        (True, "time.wrong-type"),
        (None, "time.wrong-type"),
        ([2021], "time.wrong-type"),
    ],
)
def test_a_value_that_is_no_time_or_ambiguous_is_refused(value: object, code: str) -> None:
    with refuses_record(code):
        parse_time(value)


def test_one_date_of_a_file_decides_the_order_of_all() -> None:
    with_day_first, with_month_first = ["05.02.2021", "20.02.2021"], ["05/02/2021", "02/20/2021"]
    assert find_date_order(enumerate(with_day_first)) is DateOrder.DAY_FIRST
    assert find_date_order(enumerate(with_month_first)) is DateOrder.MONTH_FIRST
    assert parse_time("05.02.2021", DateOrder.DAY_FIRST) == parse_time("2021-02-05")
    assert parse_time("05/02/2021", DateOrder.MONTH_FIRST) == parse_time("2021-05-02")
    assert find_date_order(enumerate(["2021-02-05", 1630260300, None, "03.03.2021", "never"])) is None
    with refuses_record("time.other-order", "'20.02.2021'", "the month first"):
        parse_time("20.02.2021", DateOrder.MONTH_FIRST)


def test_contradictory_or_ambiguous_dates_are_refused() -> None:
    with refuses_record("time.both-orders", "'20.02.2021' in row 0", "'02/20/2021' in row 1"):
        find_date_order(enumerate(["20.02.2021", "02/20/2021"]))
    with refuses_record("time.ambiguous-date", "'05/02/2021': 5 February or 2 May"):
        find_date_order(enumerate(["01.01.2021", "05/02/2021"]))


def test_a_column_is_read_as_its_cells_are() -> None:
    texts = [value for value in SAME_EVENING if isinstance(value, str)]
    refused = ["05.02.2021", "2021", "1.63E+12", "", "2021-02-30", "1850-01-01"]
    evidence = DateEvidence()
    table = read_column(pd.Series([*texts, *refused], range(2, 2 + len(texts) + len(refused))), evidence)
    assert (table.iloc[: len(texts)].max(axis=1) == SECONDS).all()
    assert table.day_first.iloc[-6] == parse_time("2021-02-05")
    assert table.month_first.iloc[-6] == parse_time("2021-05-02")
    assert table.iloc[-5:].isna().all(axis=None)
    assert (evidence.day_first or ())[1] == "29.08.2021 18:05"
    numbers = pd.Series([SECONDS, SECONDS * 10**3, SECONDS * 10**6, SECONDS * 10**9, 20210829180500, 2021])
    read = read_column(numbers, DateEvidence()).day_first
    assert (read[:5] == SECONDS).all()
    assert np.isnan(read[5])
    days = pd.Series(pd.to_datetime(["2021-08-29 18:05", "2021-08-29 20:05+02:00"], format="ISO8601", utc=True))
    assert (read_column(days, DateEvidence()).month_first == SECONDS).all()
