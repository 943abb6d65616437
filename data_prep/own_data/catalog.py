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
from data_prep.own_data.files import LONGEST_LINE, BadLine, Damage, read_records


def read_catalog(path: Path, damage: Damage, longest_line: float = LONGEST_LINE) -> tuple[pa.Table, bool]:
    """(table of title, year and further columns; whether items have years). Damaged lines go to `damage`.

    All items have a year or none has.
    """
    parquet = path.suffix == ".parquet"
    records = {}
    first: dict[tuple[str, int | None], int] = {}
    entries: dict[int, tuple[str, int | None]] = {}  # line -> title and year
    for line, record in _read_parquet(path) if parquet else read_records(path, damage, longest_line):
        try:
            title, year = _read_entry(record)
            if (earlier := first.setdefault((normalise(title), year), line)) != line:
                raise BadLine("%r is on line %s already; leave one out", title, earlier)
        except BadLine as problem:
            damage.add(path, line, problem)
            continue
        records[line], entries[line] = record, (title, year)
    if not entries and not damage:
        raise UserError(f"{path}: no items; check how the file was written")
    undated = [line for line, (_, year) in entries.items() if year is None]
    if 0 < len(undated) < len(entries):
        no_year = BadLine("no year, but %s items have one; fill it in, or leave the year out of every item",
                          f"{len(entries) - len(undated):,}")  # fmt: skip
        for line in undated:
            damage.add(path, line, no_year)
            del records[line], entries[line]
        undated = []
    titles, years = [title for title, _ in entries.values()], [year for _, year in entries.values()]
    columns = {"title": pa.array(titles, pa.string()), "year": pa.array(years, pa.int32())}
    return pa.table(columns | _further_columns(path, records, damage)), not undated


def _read_entry(record: Mapping[str, Any]) -> tuple[str, int | None]:
    title, year = record.get("title"), record.get("year")
    if not isinstance(title, str) or not title.strip():
        raise BadLine("no title (the keys are %s); every item needs one", ", ".join(map(str, record)))
    if "\n" in title.strip():
        raise BadLine("%r has a line break, but a list has one item a line; take it out", title)
    if year is None or year == "":
        return title.strip(), None
    number = parse_year(year)
    if number is None or not OLDEST_YEAR <= number <= NEWEST_YEAR:
        raise BadLine(f"%r has the year %r; write one from {OLDEST_YEAR} to {NEWEST_YEAR}", title, year)
    return title.strip(), number


def _read_parquet(path: Path) -> Iterable[tuple[int, dict[str, Any]]]:
    """Rows count as lines, from 1."""
    try:
        return enumerate(pq.read_table(path).to_pylist(), start=1)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (pa.ArrowInvalid, OSError) as error:
        raise UserError(f"{path}: not readable as parquet ({error}); write it again") from error


def _further_columns(path: Path, records: Mapping[int, Mapping[str, Any]], damage: Damage) -> dict[str, pa.Array]:
    columns = {}
    names = dict.fromkeys(name for record in records.values() for name in record if name not in ("title", "year"))
    for name in names:
        values = [record.get(name) for record in records.values()]
        if (problem := _mixed(values)) is None:
            columns[name] = pa.array(values)
        else:
            place = bisect_left(range(1, len(values)), True, key=lambda count: _mixed(values[:count]) is not None)
            text = f"column {name} mixes types here (%s); write one type in every item"
            damage.add_file(path, list(records)[place], BadLine(text, problem))
    return columns


def _mixed(values: list[Any]) -> Exception | None:
    """Why these are no column of one type."""
    try:
        pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        return error
    return None
