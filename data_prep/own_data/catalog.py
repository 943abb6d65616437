"""Read your own catalog of any kind of items: JSONL, CSV or parquet with title, year (optional) and extra columns.

Extra columns are kept. Items are distinguished by item_id, even if they share title and year: their lines then show
`display` (`Hello [Adele]`) and, if that is missing or the same too, the id.
"""

import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pyarrow as pa

from convrec.base.errors import UserError
from convrec.data.damage import BadRecord, Damage, get_suffix, get_unit
from convrec.data.options import SHARE
from convrec.data.records import Records, read_records
from convrec.data.spreadsheets import SPREADSHEETS
from convrec.data.text_files import describe_encoding
from convrec.titles.catalog import NEWEST_YEAR, OLDEST_YEAR, Catalog, add_display
from convrec.titles.forms import normalise
from convrec.titles.item import Item
from data_prep.own_data import NAMES
from data_prep.own_data.column_types import TypedColumn, infer_type
from data_prep.own_data.ids import normalise_id
from data_prep.own_data.layouts import normalise_name
from data_prep.own_data.spellings import clean_records, read_year

MAIN_COLUMNS = ("title", "year")  # recognised by usual names; `genre` stays, because `--ask genre` may name it
RATED_COLUMNS = (*MAIN_COLUMNS, "genres")  # for the items of ratings
TEXTS = ("item_id", "display", "genres", "aliases")  # columns of a CSV that stay text
TABLES_OF_TEXTS = (".csv", ".tsv", ".txt", *SPREADSHEETS)
OWN_COLUMNS = ("item_id", "display", "aliases", "genres", "genre")  # recognised in capitals too


class ParsedCatalog(NamedTuple):
    """A catalog's file as it was understood.

    Attributes:
        table: title, year and the extra columns.
        has_years: whether items have years.
        left_out: a sentence for each item that can never be matched.
        notes: sentences about guesses and changes that the user should know.
    """

    table: pa.Table
    has_years: bool
    left_out: list[str]
    notes: list[str]

    def build_catalog(self) -> Catalog:
        names = {"title", "year", "item_id", "display", "aliases"}.intersection(self.table.column_names)
        return Catalog.from_columns(self.table.select(sorted(names)).to_pydict())


def read_catalog(
    path: Path, damage: Damage, columns: Mapping[str, str] = MappingProxyType({}), entries: Records | None = None
) -> ParsedCatalog:
    """Read and check the items of a file.

    Either all items have a year or none has. If none has and most titles end in `(1999)`, that is taken as the year. A
    few items without a year, or with one that is out of range, are left out.

    Args:
        path: the file.
        damage: collects damaged rows.
        columns: our name of a column -> the file's own.
        entries: the file's records, if they are not read by `read_records`.

    Raises:
        UserError: The file lacks a column of `columns`, has another column of our name, or has no items.
    """
    records = dict(entries or read_records(path, damage))
    if columns:
        records = _rename_columns(path, records, columns)
    usual_names = {ours: NAMES["catalog"][ours] for ours in (RATED_COLUMNS if entries else MAIN_COLUMNS)}
    notes = list(filter(None, [describe_encoding(path)]))
    notes += _apply_usual_names(path, records, {ours: [normalise_name(ours)] for ours in OWN_COLUMNS} | usual_names)
    notes += clean_records(path, records)
    items, impossible = _read_items(path, records, damage)
    impossible |= _remove_undated(items)
    if len(impossible) > SHARE * len(records):
        for row, problem in impossible.items():
            damage.add(path, row, problem)
        impossible = {}
    if not items and not damage:
        raise UserError("items.empty-catalog", f"{path}: no items. Check how the file was written.")
    notes += _disambiguate(path, items)
    is_dated = any(item["year"] is not None for item in items.values())
    main_columns = {
        "title": pa.array([item["title"] for item in items.values()], pa.string()),
        "year": pa.array([item["year"] for item in items.values()], pa.int32()),
    }
    extra_columns, exceptions = _build_extra_columns(path, items, damage)
    table = pa.table(main_columns | extra_columns)
    left_out = [f"{get_unit(path)} {row}: {problem}; left out" for row, problem in impossible.items()]
    return ParsedCatalog(table, is_dated, left_out, notes + exceptions)


def _read_items(
    path: Path, records: Mapping[int, dict[str, Any]], damage: Damage
) -> tuple[dict[int, dict[str, Any]], dict[int, BadRecord]]:
    """Return row -> record with title and year normalised, and row -> why its year is impossible."""
    items: dict[int, dict[str, Any]] = {}
    first: dict[tuple[str, int | None, str | None], int] = {}
    impossible: dict[int, BadRecord] = {}
    for row, record in records.items():
        with damage.of(path, row):
            title = _read_title(record)
            raw_year = record.get("year")
            year = read_year(raw_year)
            is_blank = raw_year in (None, "")
            if not is_blank and (year is None or not OLDEST_YEAR <= year <= NEWEST_YEAR):
                impossible[row] = BadRecord(
                    "items.impossible-year",
                    f"%r has the year %r; write a year from {OLDEST_YEAR} to {NEWEST_YEAR}",
                    title,
                    raw_year,
                )
                continue
            item_id = _read_id(record)
            name = normalise(add_display(title, record.get("display")))
            if (earlier := first.setdefault((name, year, item_id), row)) != row:
                raise BadRecord(
                    "items.repeated-item",
                    f"%r is already on {get_unit(path)} %s; remove one, give each an item_id, or name another column "
                    "as title: --columns title=NAME",
                    title,
                    earlier,
                )
            items[row] = {**record, "title": title, "year": year}
            if item_id is not None:
                items[row]["item_id"] = record["item_id"] if isinstance(record["item_id"], int) else item_id
    return items, impossible


def _remove_undated(items: dict[int, dict[str, Any]]) -> dict[int, BadRecord]:
    """Remove items without a year if others have one: they can never be matched."""
    undated = [row for row, item in items.items() if item["year"] is None]
    if len(undated) in (0, len(items)):
        return {}
    num_dated = len(items) - len(undated)
    problem = BadRecord(
        "items.missing-year",
        f"no year, but {num_dated:,} items have one; fill it in, or leave the year out of every item",
    )
    for row in undated:
        del items[row]
    return dict.fromkeys(undated, problem)


def _apply_usual_names(
    path: Path, records: Mapping[int, dict[str, Any]], usual_names: Mapping[str, Sequence[str]]
) -> list[str]:
    """Rename columns in place that other programs call something else, e.g. `release_date`.

    Args:
        path: the file, for messages.
        records: row -> record.
        usual_names: our name of a column -> the usual names, normalised.

    Returns:
        A sentence for each renamed column.
    """
    present = dict.fromkeys(name for record in records.values() for name in record)
    renamed: dict[str, str] = {}
    for ours, usual in usual_names.items():
        plain_names = {normalise_name(name): name for name in reversed(present)}
        theirs = next((plain_names[known] for known in usual if known in plain_names), None)
        if ours not in present and theirs is not None and theirs not in renamed:
            renamed[theirs] = ours
    if renamed:
        for record in records.values():
            for theirs, ours in renamed.items():
                if theirs in record:
                    record[ours] = record.pop(theirs)
    first = next(iter(records.values()), {})
    return [
        f"{path}: the column {theirs} is read as {ours} ({first.get(ours)!r}, ...)" for theirs, ours in renamed.items()
    ]


def _rename_columns(
    path: Path, records: Mapping[int, dict[str, Any]], columns: Mapping[str, str]
) -> dict[int, dict[str, Any]]:
    present = dict.fromkeys(name for record in records.values() for name in record)
    for ours, theirs in columns.items():
        if theirs not in present:
            raise UserError(
                "items.unknown-column",
                f"--columns {ours}={theirs}: {path} has no column {theirs}; its columns are {', '.join(present)}",
            )
        if ours in present and ours not in columns.values():
            raise UserError(
                "items.conflicting-column",
                f"--columns {ours}={theirs}: {path} already has a column {ours}; rename or drop one",
            )
    own_names = {theirs: ours for ours, theirs in columns.items()}
    return {row: {own_names.get(name, name): record[name] for name in record} for row, record in records.items()}


def _read_title(record: Mapping[str, Any]) -> str:
    title = record.get("title")
    if not isinstance(title, str) or not title.strip():
        keys = ", ".join(map(str, record))
        raise BadRecord("items.no-title", "no title (the keys are %s); every item needs one", keys)
    if "\n" in title.strip():
        raise BadRecord(
            "items.line-break", "%r contains a line break, but lists have one item per line; remove it", title
        )
    return title.strip()


class ItemIds:
    """Look up items by id, and decide whether a text is an id or a title.

    Without a column item_id no text is an id.
    """

    def __init__(self, catalog: Catalog):
        self._items_by_id: dict[str, Item] = {}
        for item_id, title, year in zip(
            catalog.item_ids or (), catalog.titles, catalog.years, strict=bool(catalog.item_ids)
        ):
            if item_id is not None and year is not None:
                self._items_by_id.setdefault(str(item_id), Item(title, year))
        self._patterns = {pattern for pattern in map(_mask, self._items_by_id) if "0" in pattern}
        self._titles = {normalise(title) for title in catalog.titles} if self._items_by_id else set()

    def __bool__(self) -> bool:
        return bool(self._items_by_id)

    def __contains__(self, text: str) -> bool:
        return text in self._items_by_id

    def find(self, item_id: object) -> Item:
        """Return the item with this id.

        Args:
            item_id: a text or a number; 17 and "17" are the same id.

        Raises:
            BadRecord: the catalog has no such id.
        """
        item = self._items_by_id.get(str(item_id)) if isinstance(item_id, str | int) else None
        if item is None:
            raise BadRecord(
                "cell.unknown-id",
                "holds the item_id %r, which is not in the catalog; write an id of the catalog",
                item_id,
            )
        return item

    def read(self, text: str) -> Item | None:
        """Return the item if a text is an id, else None.

        Raises:
            BadRecord: the text is an id and another item's title, or looks like an id that the catalog lacks.
        """
        item = self._items_by_id.get(text)
        is_title = normalise(text) in self._titles
        if item and is_title and normalise(item.title) != normalise(text):
            raise BadRecord(
                "cell.id-or-title",
                'holds %r, which is both an item_id and a title; write {"item_id": ...} or {"title": ...}',
                text,
            )
        if item is None and not is_title and _mask(text) in self._patterns:
            raise BadRecord(
                "cell.misspelt-id",
                "holds %r, which looks like an item_id but is not in the catalog; correct it, or write "
                '{"title": ...} if it is a title',
                text,
            )
        return item


def _mask(text: str) -> str:
    """Return the pattern that ids share: tt0113277 -> a0."""
    return re.sub(r"[^\W\d_]+", "a", re.sub(r"\d+", "0", text))


def _read_id(record: Mapping[str, Any]) -> str | None:
    """Return the item's id as text, None if it has none; check `display` too."""
    item_id = record.get("item_id")
    display = record.get("display")
    is_number = isinstance(item_id, float) and normalise_id(item_id) is not None
    if isinstance(item_id, bool) or not (is_number or isinstance(item_id, str | int | None)):
        raise BadRecord("items.invalid-id", "item_id is %r; write a string or an integer", item_id)
    if isinstance(display, bool) or not isinstance(display, str | int | float | None) or "\n" in str(display):
        raise BadRecord("items.invalid-display", "display is %r; write a string without line breaks", display)
    return normalise_id(item_id) if is_number else None if item_id is None else str(item_id)


def _disambiguate(path: Path, items: Mapping[int, dict[str, Any]]) -> list[str]:
    """Add the id to `display` for items whose lines would be identical; return a sentence about them."""
    same: dict[tuple[str, int | None], list[dict[str, Any]]] = {}
    for item in items.values():
        same.setdefault((normalise(add_display(item["title"], item.get("display"))), item["year"]), []).append(item)
    twins = [alike for alike in same.values() if len(alike) > 1]
    for item in (item for alike in twins for item in alike):
        parts = (item.get("display"), item.get("item_id"))
        item["display"] = ", ".join(str(part) for part in parts if part not in (None, ""))
    if any(isinstance(item.get("display"), str) for item in items.values()):  # a column has one type
        for item in items.values():
            if item.get("display") is not None:
                item["display"] = str(item["display"])
    if not twins:
        return []
    ids = " and ".join(str(item["item_id"]) for item in twins[0][:2])
    example = f"{twins[0][0]['title']} has the ids {ids}"
    return [
        f"{path}: {sum(map(len, twins)):,} items share title and year with another ({example}); lists show their "
        "ids. If they are the same item, give them one id and remove the duplicates"
    ]


def _build_extra_columns(
    path: Path, items: Mapping[int, Mapping[str, Any]], damage: Damage
) -> tuple[dict[str, pa.Array], list[str]]:
    """Return the extra columns, and a sentence for each that stays text because of single cells."""
    columns: dict[str, pa.Array] = {}
    notes: list[str] = []
    rows = list(items)
    for name in dict.fromkeys(name for item in items.values() for name in item if name not in ("title", "year")):
        values: Sequence[Any] = [item.get(name) for item in items.values()]
        if get_suffix(path) in TABLES_OF_TEXTS and name not in TEXTS:
            column = infer_type(name, values)
            values = column.values
            if column.majority:
                notes.append(_describe_exception(path, rows[column.exception], name, column))
        problem = _find_type_error(values)
        if problem is None:
            columns[name] = pa.array(values)
        else:
            index = bisect_left(
                range(1, len(values)), True, key=lambda count: _find_type_error(values[:count]) is not None
            )
            mixed = BadRecord(
                "items.mixed-types", f"column {name} mixes types here ({problem}); use one type for every item"
            )
            damage.add(path, rows[index], mixed, lost=0)
    return columns, notes


def _describe_exception(path: Path, row: int, name: str, column: TypedColumn) -> str:
    cell = column.values[column.exception]
    return (
        f"{path}: column {name} stays text: most of its cells are {column.majority}, but {get_unit(path)} {row} has "
        f"{cell!r:.80}; use one type in every row, or leave that cell empty"
    )


def _find_type_error(values: Sequence[Any]) -> Exception | None:
    """Return the error if these values do not have one type."""
    try:
        pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        return error
    return None
