"""A catalog of one's own, of any item type: JSONL, CSV or parquet with title, year where items have one, and further
columns, which are kept.

item_id tells items apart, also two of one title and year: their lines show what `display` has (`Hello [Adele]`), and
where that is the same or missing, the id too.
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
from convrec.titles.catalog import NEWEST_YEAR, OLDEST_YEAR, Catalog, shown_title
from convrec.titles.forms import normalise
from convrec.titles.item import Item
from data_prep.own_data import NAMES
from data_prep.own_data.column_types import TypedColumn, infer_type
from data_prep.own_data.ids import plain_id
from data_prep.own_data.layouts import plain_name
from data_prep.own_data.spellings import clean_records, read_year

MAIN_COLUMNS = ("title", "year")  # known by usual names; a `genre` stays, since `--ask genre` may name it
RATED_COLUMNS = (*MAIN_COLUMNS, "genres")  # of the items of ratings
TEXTS = ("item_id", "display", "genres", "aliases")  # columns of a CSV that stay texts
TABLES_OF_TEXTS = (".csv", ".tsv", ".txt", *SPREADSHEETS)
OWN_COLUMNS = ("item_id", "display", "aliases", "genres", "genre")  # known in capitals, too


class CatalogRead(NamedTuple):
    """table: title, year and further columns. dated: whether items have years. left_out: a sentence for every item that
    can never be matched. told: what else is to be known."""

    table: pa.Table
    dated: bool
    left_out: list[str]
    told: list[str]

    def catalog(self) -> Catalog:
        names = {"title", "year", "item_id", "display", "aliases"}.intersection(self.table.column_names)
        return Catalog.from_columns(self.table.select(sorted(names)).to_pydict())


def read_catalog(
    path: Path, damage: Damage, columns: Mapping[str, str] = MappingProxyType({}), entries: Records | None = None
) -> CatalogRead:
    """Read and check the items of a file.

    All items have a year or none has; where none has and most titles end in `(1999)`, that is their year. Items without
    a year, or with one that is out of range, are left out where they are few.

    Args:
        path: the file.
        damage: gets damaged rows.
        columns: our name of a column -> the file's own.
        entries: the file's records, where `read_records` does not read them.

    Raises:
        UserError: The file lacks a column, has another of our name, or has no items.
    """
    records = dict(entries or read_records(path, damage))
    if columns:
        records = _renamed(path, records, columns)
    usual_names = {ours: NAMES["catalog"][ours] for ours in (RATED_COLUMNS if entries else MAIN_COLUMNS)}
    told = list(filter(None, [describe_encoding(path)]))
    told += _name_columns(path, records, {ours: [plain_name(ours)] for ours in OWN_COLUMNS} | usual_names)
    told += clean_records(path, records)
    items, impossible = _read_items(path, records, damage)
    impossible |= _take_out_undated(items)
    if len(impossible) > SHARE * len(records):
        for row, problem in impossible.items():
            damage.add(path, row, problem)
        impossible = {}
    if not items and not damage:
        raise UserError(f"{path}: no items; check how the file was written")
    told += _tell_apart(path, items)
    is_dated = any(item["year"] is not None for item in items.values())
    main_columns = {
        "title": pa.array([item["title"] for item in items.values()], pa.string()),
        "year": pa.array([item["year"] for item in items.values()], pa.int32()),
    }
    further_columns, exceptions = _further_columns(path, items, damage)
    table = pa.table(main_columns | further_columns)
    left_out = [f"{get_unit(path)} {row}: {problem}; left out" for row, problem in impossible.items()]
    return CatalogRead(table, is_dated, left_out, told + exceptions)


def _read_items(
    path: Path, records: Mapping[int, dict[str, Any]], damage: Damage
) -> tuple[dict[int, dict[str, Any]], dict[int, BadRecord]]:
    """(row -> its record with title and year as they are compared, row -> why its year cannot be one)."""
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
                text = f"%r has the year %r; write one from {OLDEST_YEAR} to {NEWEST_YEAR}"
                impossible[row] = BadRecord(text, title, raw_year)
                continue
            item_id = _read_id(record)
            name = normalise(shown_title(title, record.get("display")))
            if (earlier := first.setdefault((name, year, item_id), row)) != row:
                text = (
                    f"%r is on {get_unit(path)} %s already; leave one out, give each an item_id, or name another "
                    "column of titles: --columns title=NAME"
                )
                raise BadRecord(text, title, earlier)
            items[row] = {**record, "title": title, "year": year}
            if item_id is not None:
                items[row]["item_id"] = record["item_id"] if isinstance(record["item_id"], int) else item_id
    return items, impossible


def _take_out_undated(items: dict[int, dict[str, Any]]) -> dict[int, BadRecord]:
    """Take the items without a year out where others have one: they can never be matched."""
    undated = [row for row, item in items.items() if item["year"] is None]
    if len(undated) in (0, len(items)):
        return {}
    num_dated = len(items) - len(undated)
    lacking = f"no year, but {num_dated:,} items have one; fill it in, or leave the year out of every item"
    for row in undated:
        del items[row]
    return dict.fromkeys(undated, BadRecord(lacking))


def _name_columns(
    path: Path, records: Mapping[int, dict[str, Any]], usual_names: Mapping[str, Sequence[str]]
) -> list[str]:
    """Rename in place the columns that other programs call otherwise, `release_date` for instance; what was renamed.

    usual_names: our name of a column -> its plain names.
    """
    there = dict.fromkeys(name for record in records.values() for name in record)
    renamed: dict[str, str] = {}
    for ours, usual in usual_names.items():
        plain_names = {plain_name(name): name for name in reversed(there)}
        theirs = next((plain_names[known] for known in usual if known in plain_names), None)
        if ours not in there and theirs is not None and theirs not in renamed:
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


def _renamed(
    path: Path, records: Mapping[int, dict[str, Any]], columns: Mapping[str, str]
) -> dict[int, dict[str, Any]]:
    there = dict.fromkeys(name for record in records.values() for name in record)
    for ours, given in columns.items():
        if given not in there:
            raise UserError(f"{path}: no column {given}, which --columns names; it has {', '.join(there)}")
        if ours in there and ours not in columns.values():
            raise UserError(f"{path}: --columns {ours}={given}, but it has a column {ours} too; rename or drop one")
    ours_of = {given: ours for ours, given in columns.items()}
    return {row: {ours_of.get(name, name): record[name] for name in record} for row, record in records.items()}


def _read_title(record: Mapping[str, Any]) -> str:
    title = record.get("title")
    if not isinstance(title, str) or not title.strip():
        raise BadRecord("no title (the keys are %s); every item needs one", ", ".join(map(str, record)))
    if "\n" in title.strip():
        raise BadRecord("%r has a line break, but a list has one item a line; take it out", title)
    return title.strip()


class ItemIds:
    """The catalog's ids, and what a text stands for that can be one.

    An id is its item's title and year as lists write them. Without a column item_id no text is an id.
    """

    def __init__(self, catalog: Catalog):
        self._item_of: dict[str, Item] = {}
        for item_id, title, year in zip(
            catalog.item_ids or (), catalog.titles, catalog.years, strict=bool(catalog.item_ids)
        ):
            if item_id is not None and year is not None:
                self._item_of.setdefault(str(item_id), Item(title, year))
        self._forms = {form for form in map(_form, self._item_of) if "0" in form}
        self._titles = {normalise(title) for title in catalog.titles} if self._item_of else set()

    def __bool__(self) -> bool:
        return bool(self._item_of)

    def __contains__(self, text: str) -> bool:
        return text in self._item_of

    def find(self, item_id: object) -> Item:
        """The item of an id. Raises BadRecord for one that the catalog lacks."""
        item = self._item_of.get(str(item_id)) if isinstance(item_id, str | int) else None
        if item is None:
            raise BadRecord("holds the item_id %r, which the catalog lacks; write one of its own", item_id)
        return item

    def read(self, text: str) -> Item | None:
        """The item of a text that is an id; None for one that is no id. Raises BadRecord where it can be either."""
        item = self._item_of.get(text)
        is_title = normalise(text) in self._titles
        if item and is_title and normalise(item.title) != normalise(text):
            raise BadRecord('holds %r, an item_id and a title; write {"item_id": ...} or {"title": ...}', text)
        if item is None and not is_title and _form(text) in self._forms:
            raise BadRecord(
                "holds %r, which looks like an item_id and is none of the catalog's; write it right, or "
                '{"title": ...} where it is a title', text
            )  # fmt: skip
        return item


def _form(text: str) -> str:
    """What ids have in common: tt0113277 -> a0."""
    return re.sub(r"[^\W\d_]+", "a", re.sub(r"\d+", "0", text))


def _read_id(record: Mapping[str, Any]) -> str | None:
    """The item's id as text, None for none; what lists show beside the title is checked, too."""
    item_id = record.get("item_id")
    display = record.get("display")
    is_number = isinstance(item_id, float) and plain_id(item_id) is not None
    if isinstance(item_id, bool) or not (is_number or isinstance(item_id, str | int | None)):
        raise BadRecord("item_id is %r; write a text or a whole number", item_id)
    if isinstance(display, bool) or not isinstance(display, str | int | float | None) or "\n" in str(display):
        raise BadRecord("display is %r; write a text of one line", display)
    return plain_id(item_id) if is_number else None if item_id is None else str(item_id)


def _tell_apart(path: Path, items: Mapping[int, dict[str, Any]]) -> list[str]:
    """Put the id into `display` of items whose lines would be the same; a sentence about such twins."""
    same: dict[tuple[str, int | None], list[dict[str, Any]]] = {}
    for item in items.values():
        same.setdefault((normalise(shown_title(item["title"], item.get("display"))), item["year"]), []).append(item)
    twins = [alike for alike in same.values() if len(alike) > 1]
    for item in (item for alike in twins for item in alike):
        parts = (item.get("display"), item.get("item_id"))
        item["display"] = ", ".join(str(part) for part in parts if part not in (None, ""))
    if any(isinstance(item.get("display"), str) for item in items.values()):  # numbers beside texts
        for item in items.values():
            if item.get("display") is not None:
                item["display"] = str(item["display"])
    if not twins:
        return []
    ids = " and ".join(str(item["item_id"]) for item in twins[0][:2])
    example = f"{twins[0][0]['title']} has the ids {ids}"
    return [
        f"{path}: {sum(map(len, twins)):,} items share title and year with another ({example}); lists tell them apart "
        "by id. If they are the same item, give them one id and leave the repeats out"
    ]


def _further_columns(
    path: Path, items: Mapping[int, Mapping[str, Any]], damage: Damage
) -> tuple[dict[str, pa.Array], list[str]]:
    """The columns besides title and year, and a sentence for each that stays texts because of single cells."""
    columns: dict[str, pa.Array] = {}
    told: list[str] = []
    rows = list(items)
    for name in dict.fromkeys(name for item in items.values() for name in item if name not in ("title", "year")):
        values: Sequence[Any] = [item.get(name) for item in items.values()]
        if get_suffix(path) in TABLES_OF_TEXTS and name not in TEXTS:
            column = infer_type(name, values)
            values = column.values
            if column.majority:
                told.append(_describe_exception(path, rows[column.exception], name, column))
        problem = _mixed(values)
        if problem is None:
            columns[name] = pa.array(values)
        else:
            index = bisect_left(range(1, len(values)), True, key=lambda count: _mixed(values[:count]) is not None)
            text = f"column {name} mixes types here ({problem}); write one type in every item"
            damage.add(path, rows[index], text, lost=0)
    return columns, told


def _describe_exception(path: Path, row: int, name: str, column: TypedColumn) -> str:
    cell = column.values[column.exception]
    return (
        f"{path}: column {name} stays texts: most of its cells are {column.majority}, but {get_unit(path)} {row} has "
        f"{cell!r:.80}; write one type in every row, or leave that cell empty"
    )


def _mixed(values: Sequence[Any]) -> Exception | None:
    """Why these are no column of one type."""
    try:
        pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        return error
    return None
