"""Normalise titles and years of catalogs to the way lists write them.

Matrix, The (1999)                                 The Matrix, 1999
Postman, The (Postino, Il)                         The Postman, with the alias Il Postino
Tom &amp; Jerry                                    Tom & Jerry
2013-2023, 1995-12-15 as year                      2013, 1995
"""

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from convrec.data.damage import BadRecord
from convrec.titles.catalog import parse_year
from convrec.titles.forms import fold, numbers, turn_article
from convrec.titles.marks import decode_marks
from data_prep.own_data.times import read_both_orders

TEXT_COLUMNS = ("title", "display", "aliases")
_YEAR_AT_END = re.compile(r"\s*(.*\S)\s*\((\d{4})\)\s*")
_FIRST_OF_SPAN = re.compile(r"\s*(\d{4})\s*[-–—/]\s*(?:\d{4}|present|\?*)\s*", re.IGNORECASE)
_DATE_WITH_YEAR_FIRST = re.compile(r"\s*(\d{4})[-/]\d{1,2}(?:[-/]\d{1,2}.*)?")
_DATE_WITH_YEAR_LAST = re.compile(r"\s*\d{1,2}([./-])\d{1,2}\1(\d{4})\s*")
_SECOND_TITLE = re.compile(r"(.*\S) \(([^()]+)\)")
_ALSO_KNOWN_AS = re.compile(r"a\.?k\.?a\.?:? +", re.IGNORECASE)
_EDITION = re.compile(
    r"\b(?:cut|edition|version|remaster(?:ed)?|restored|uncut|unrated|extended|director'?s|part|vol(?:ume)?|season|series"
    r"|episode|chapter|tv|film|movie|documentary|short|live|remix|demo|deluxe|disc|3d|imax)\b",
    re.IGNORECASE,
)


def clean_records(path: Path, records: Mapping[int, dict[str, Any]]) -> list[str]:
    """Rewrite the titles and years of a catalog's records in place.

    Args:
        path: the file, for messages.
        records: row -> record.

    Returns:
        A sentence for each kind of change.
    """
    notes = [
        _decode_texts(path, records),
        _extract_years_from_titles(path, records),
        *_move_articles(path, records),
    ]
    return [sentence for sentence in notes if sentence]


def read_year(value: Any) -> int | None:
    """Read a year.

    Args:
        value: a number, a text, a date, or a span of years, of which the first counts.

    Returns:
        The year; None for anything else.
    """
    if isinstance(value, date):
        return value.year
    number = parse_year(value)
    if number is not None or not isinstance(value, str):
        return number
    for pattern in (_FIRST_OF_SPAN, _DATE_WITH_YEAR_FIRST, _DATE_WITH_YEAR_LAST):
        if match := pattern.fullmatch(value):
            return int(match[match.lastindex or 1])
    try:
        reading = read_both_orders(value)
    except BadRecord:
        return None
    return datetime.fromtimestamp(next(seconds for seconds in reading if seconds is not None), UTC).year


def _decode_texts(path: Path, records: Mapping[int, dict[str, Any]]) -> str:
    example = ""
    count = 0
    for record in records.values():
        for name in TEXT_COLUMNS:
            text = record.get(name)
            decoded = decode_marks(text) if isinstance(text, str) else text
            if decoded != text:
                record[name] = decoded
                example = example or f"{text} is {decoded}"
                count += 1
    return f"{path}: HTML entities decoded in {count:,} texts ({example})" if count else ""


def _extract_years_from_titles(path: Path, records: Mapping[int, dict[str, Any]]) -> str:
    """Move years from titles to `year`: if no item has a year but most titles end in `(1999)`, or for single items."""
    has_years = any(record.get("year") not in (None, "") for record in records.values())
    matches: dict[int, re.Match[str]] = {}
    for row, record in records.items():
        match = _YEAR_AT_END.fullmatch(str(record.get("title")))
        if match and read_year(record.get("year")) is None:
            matches[row] = match
    if not matches or (not has_years and 2 * len(matches) <= len(records)):
        return ""
    for row, match in matches.items():
        records[row]["title"] = match[1]
        records[row]["year"] = int(match[2])
    if has_years:
        return f"{path}: {len(matches):,} items have a year only in their title, which is used"
    return f"{path}: no column year; the years at the end of {len(matches):,} titles are used"


def _move_articles(path: Path, records: Mapping[int, dict[str, Any]]) -> Iterator[str]:
    """Turn `Matrix, The` into `The Matrix`, and alternative titles in parentheses into aliases.

    Only catalogs with titles that end in `, The` are changed: the A in `Vitamin, A` is not an article.
    """
    titles = {row: record["title"] for row, record in records.items() if isinstance(record.get("title"), str)}
    if not any(re.search(r", The(?=$| \()", title) for title in titles.values()):
        return
    num_moved = 0
    num_aliases = 0
    for row, title in titles.items():
        first, others = _split_second_titles(title)
        turned = turn_article(first)
        num_moved += turned != first
        num_aliases += len(others)
        records[row]["title"] = turned
        if others:
            aliases = records[row].get("aliases") or []
            aliases = aliases.split("|") if isinstance(aliases, str) else list(aliases)
            records[row]["aliases"] = [*aliases, *map(turn_article, others)]
    for record in records.values() if num_aliases else ():
        if isinstance(record.get("aliases"), str):  # a column has one type
            record["aliases"] = record["aliases"].split("|")
    yield f"{path}: articles moved to the front of {num_moved:,} titles: Matrix, The is now The Matrix"
    if num_aliases:
        yield f"{path}: {num_aliases:,} alternative titles in parentheses became aliases"


def _split_second_titles(title: str) -> tuple[str, list[str]]:
    """Split off the alternative titles in parentheses; an edition or another number is not one."""
    others: list[str] = []
    while match := _SECOND_TITLE.fullmatch(title):
        first, second = match.groups()
        second = _ALSO_KNOWN_AS.sub("", second)
        second_numbers = numbers(fold(second))
        is_title = len(second) > 2 and second_numbers in ((), numbers(fold(first))) and not _EDITION.search(second)
        if not is_title:
            break
        others.insert(0, second)
        title = first
    return title, others
