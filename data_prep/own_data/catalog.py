"""A catalog of one's own, of any item type: JSONL, CSV or parquet with title, year where items have one, and further
columns, which are kept."""

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from convrec.errors import UserError
from convrec.lists.catalog import NEWEST_YEAR, OLDEST_YEAR, parse_year
from convrec.lists.titles import normalise
from data_prep.own_data.files import BadLine, Damage, read_records


def read_catalog(path: Path, damage: Damage) -> tuple[pa.Table, bool]:
    """(table of title, year and further columns; whether items have years). Damaged lines go to `damage`.

    All items have a year or none has.
    """
    records = list(_read_parquet(path) if path.suffix == ".parquet" else read_records(path, damage))
    titles: list[str] = []
    years: list[int | None] = []
    first: dict[tuple[str, int | None], int] = {}
    for line, record in records:
        try:
            title, year = _read_entry(record)
            if (earlier := first.setdefault((normalise(title), year), line)) != line:
                raise BadLine(f"{title!r} is on line {earlier} already; leave one out")
        except BadLine as problem:
            damage.add(path, line, problem)
            continue
        titles.append(title)
        years.append(year)
    if not titles and not damage:
        raise UserError(f"{path}: no items; check how the file was written")
    missing = years.count(None)
    if 0 < missing < len(years):
        line = next(line for (title, year), line in first.items() if year is None)
        damage.add(path, line, f"no year, and {missing - 1:,} more items have none, but {len(years) - missing:,} have "
                   "one; fill them in, or leave the year out of every item")  # fmt: skip
    columns = {"title": pa.array(titles, pa.string()), "year": pa.array(years, pa.int32())}
    if not damage:
        columns |= _further_columns(path, records, damage)
    return pa.table(columns), missing < len(years)


def _read_entry(record: Mapping[str, Any]) -> tuple[str, int | None]:
    title, year = record.get("title"), record.get("year")
    if not isinstance(title, str) or not title.strip():
        raise BadLine(f"no title (the keys are {', '.join(map(str, record))}); every item needs one")
    if "\n" in title.strip():
        raise BadLine(f"{title!r} has a line break, but a list has one item a line; take it out")
    if year is None or year == "":
        return title.strip(), None
    number = parse_year(year)
    if number is None or not OLDEST_YEAR <= number <= NEWEST_YEAR:
        raise BadLine(f"{title!r} has the year {year!r}; write one from {OLDEST_YEAR} to {NEWEST_YEAR}")
    return title.strip(), number


def _read_parquet(path: Path) -> Iterable[tuple[int, dict[str, Any]]]:
    """Rows count as lines, from 1."""
    try:
        return enumerate(pq.read_table(path).to_pylist(), start=1)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (pa.ArrowInvalid, OSError) as error:
        raise UserError(f"{path}: not readable as parquet ({error}); write it again") from error


def _further_columns(path: Path, records: list[tuple[int, dict[str, Any]]], damage: Damage) -> dict[str, pa.Array]:
    columns = {}
    for name in dict.fromkeys(name for _, record in records for name in record if name not in ("title", "year")):
        values = [record.get(name) for _, record in records]
        if (problem := _mixed(values)) is None:
            columns[name] = pa.array(values)
        else:
            place = bisect_left(range(1, len(values)), True, key=lambda count: _mixed(values[:count]) is not None)
            mend = "write one type in every item"
            damage.add(path, records[place][0], f"column {name} mixes types here ({problem}); {mend}")
    return columns


def _mixed(values: list[Any]) -> Exception | None:
    """Why these are no column of one type."""
    try:
        pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        return error
    return None
