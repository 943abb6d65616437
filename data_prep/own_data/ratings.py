"""Read files of ratings, or of events without ratings, into a table of users, items and times.

Files are read in blocks whose cells become numbers at once, so that 25 million rows take a few hundred MB.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv

from convrec.base.errors import UserError
from convrec.data.damage import BadRecord, Damage, get_suffix
from convrec.data.records import parquet_batches
from convrec.data.spreadsheets import SPREADSHEETS
from convrec.data.text_files import CUT_OFF, UTF8, detect_encoding, iter_lines, open_bytes
from data_prep.own_data import NAMES
from data_prep.own_data.ids import make_truncated_id_error, normalise_ids
from data_prep.own_data.layouts import normalise_name, read_layout
from data_prep.own_data.times import DateEvidence, DateOrder, read_both_orders, read_column

ROLES: dict[str, list[str]] = NAMES["ratings"]  # role -> columns
OPTIONAL_ROLES = ("rating", "time")
HEADERLESS = ("u.data", "ratings.dat")  # MovieLens; their columns are the roles in order
BLOCK_ROWS = 1 << 18
MONTH_FIRST_TIME = "time, month first"  # column of a block with ambiguous dates
_DECIMAL_COMMA = re.compile(r"-?\d+,\d{1,2}")
_EXCEL_SEPARATOR = re.compile(r"\"?sep=([,;|\t])\"?\s*$")


def read_ratings(
    path: Path, column_options: Sequence[str], min_rating: float | None, damage: Damage
) -> tuple[pa.Table, int]:
    """Read who rated what, and when.

    Args:
        path: the file.
        column_options: ROLE=NAME for columns without a usual name (`find_columns`); names without `=` are those of a
            file without a header.
        min_rating: lower ratings are left out; None: every row counts, and the ratings themselves are not read.
        damage: collects the rows that cannot be read.

    Returns:
        A table with `user` and `item` (dictionary-encoded) and, if the file has times, `time` in seconds since 1970;
        and the number of rows read.

    Raises:
        UserError: The file cannot be read, lacks a column, or has no rating that counts.
    """
    reader = _RatingsReader(path, min_rating, damage)
    tables = [reader.read_block(cells) for cells in _iter_blocks(path, column_options, damage)]
    if tables:
        reader.check_dates()
    damage.check([path], reader.num_sound)
    if not any(map(len, tables)):
        raise UserError(
            "ratings.none-left",
            f"{path}: none of its {reader.num_read:,} ratings counts; check the file and --min-rating",
        )
    whole = pa.concat_tables(tables, promote_options="default").unify_dictionaries().combine_chunks()
    return _choose_times(whole, reader.date_order), reader.num_read


class _RatingsReader:
    """Read the blocks of one file.

    Attributes:
        num_read: rows so far.
        num_sound: rows so far that could be read.
        date_order: order of day and month; set by `check_dates`.
    """

    def __init__(self, path: Path, min_rating: float | None, damage: Damage) -> None:
        self.path = path
        self.min_rating = min_rating
        self.damage = damage
        self.num_read = 0
        self.num_sound = 0
        self.date_order: DateOrder | None = None
        self._evidence = DateEvidence()

    def read_block(self, cells: pd.DataFrame) -> pa.Table:
        """Read a block of the file.

        Args:
            cells: a column for each role.

        Returns:
            `user` and `item` (dictionary-encoded), and the other columns; without damaged rows and low ratings.

        Raises:
            UserError: --min-rating is given, but there is no column of ratings.
        """
        self.num_read += len(cells)
        if self.min_rating is not None and "rating" not in cells:
            raise UserError(
                "ratings.no-rating-column",
                f"--min-rating {self.min_rating:g}: {self.path} has no column of ratings; give --columns rating=NAME",
            )
        values = self._read_values(cells)
        self._add_damage(cells, values)
        values = values.dropna()
        self.num_sound += len(values)
        if self.min_rating is not None:
            values = values[values.pop("rating") >= self.min_rating]
        columns = {role: pa.array(values.pop(role), pa.string()).dictionary_encode() for role in ("user", "item")}
        return pa.table(columns | {name: values[name] for name in values})

    def check_dates(self) -> None:
        """Determine the order of day and month in the file's dates; if it is unknown, the file is damaged."""
        try:
            self.date_order = self._evidence.find_order()
        except BadRecord as problem:
            problem.column = "time"
            row, _ = self._evidence.ambiguous or self._evidence.day_first or (0, "")
            self.damage.add(self.path, row, problem, lost=0)

    def _read_values(self, cells: pd.DataFrame) -> pd.DataFrame:
        """Convert the cells; null if a cell cannot be read."""
        values = pd.DataFrame({role: normalise_ids(cells[role]) for role in ("user", "item")})
        if self.min_rating is not None:
            values["rating"] = _parse_ratings(cells["rating"])
        if "time" in cells:
            times = read_column(cells["time"], self._evidence)
            values["time"] = times.day_first.fillna(times.month_first)
            month_first = times.month_first.fillna(times.day_first)
            if not month_first.equals(values["time"]):
                values[MONTH_FIRST_TIME] = month_first
        return values

    def _add_damage(self, cells: pd.DataFrame, values: pd.DataFrame) -> None:
        for role in cells.columns.intersection(values.columns):
            for row, cell in cells.loc[values[role].isna(), role].items():
                self.damage.add(self.path, int(row), _make_bad_record(role, cell))
        if self.damage.share is None:
            self.damage.check()  # per block: millions of rows would mean millions of messages


def _choose_times(table: pa.Table, order: DateOrder | None) -> pa.Table:
    if MONTH_FIRST_TIME not in table.column_names:
        return table
    month_first = table[MONTH_FIRST_TIME]
    table = table.drop_columns([MONTH_FIRST_TIME])
    if order is not DateOrder.MONTH_FIRST:
        return table
    times = month_first.to_pandas().fillna(table["time"].to_pandas())  # null in blocks where both orders agree
    return table.set_column(table.column_names.index("time"), "time", pa.array(times))


def _parse_ratings(cells: pd.Series) -> pd.Series:
    """Convert ratings to numbers, NaN if impossible; true and false are 1 and 0, and `4,5` is 4.5."""
    if pd.api.types.is_numeric_dtype(cells):
        return cells.astype("float64")
    texts = cells.fillna("").astype("str").str.strip().str.lower().replace({"true": "1", "false": "0"})
    numbers = pd.to_numeric(texts, errors="coerce")
    decimal_commas = texts[numbers.isna() & texts.str.fullmatch(_DECIMAL_COMMA)]
    numbers.update(pd.to_numeric(decimal_commas.str.replace(",", ".")))
    return numbers


def _make_bad_record(role: str, cell: Any) -> BadRecord:
    """Explain why a cell cannot be read, and the fix."""
    if role == "time":
        problem = BadRecord("ratings.invalid-time", "is %r; correct it", cell)
        try:
            read_both_orders(cell)
        except BadRecord as reason:
            problem = reason
    elif role == "rating":
        problem = BadRecord("ratings.not-a-number", "is %r; write a number", cell)
    elif cell is None or cell != cell or not str(cell).strip():
        problem = BadRecord("ratings.blank-id", "is %r; fill it in", cell)
    else:
        problem = make_truncated_id_error(cell)
    problem.column = role
    return problem


def find_columns(path: Path, names: Sequence[str], column_options: Sequence[str]) -> dict[str, str]:
    """Find the column of each role; rating and time may be missing.

    Args:
        path: the file, for messages.
        names: its columns.
        column_options: ROLE=NAME for columns without a usual name.

    Returns:
        column -> its role.

    Raises:
        UserError: A role has no column, or a column has two roles.
    """
    plain_names = {normalise_name(name): name for name in reversed(names)}
    columns = {
        role: next((plain_names[known] for known in usual if known in plain_names), "") for role, usual in ROLES.items()
    }
    columns |= dict(entry.split("=", 1) for entry in column_options)
    for role, column in columns.items():
        is_alone = column in names and [*columns.values()].count(column) == 1
        if role not in ROLES or not (is_alone or (column == "" and role in OPTIONAL_ROLES)):
            missing = f"no separate column {column}" if column else "no column with a usual name"
            raise UserError(
                "ratings.missing-column",
                f"{path}: {missing} for {role} among {', '.join(names)}; name it with --columns {role}=NAME or, if "
                f"the file has no header, name all columns in order: --columns {' '.join(ROLES)}",
            )
    return {column: role for role, column in columns.items() if column}


def _iter_blocks(path: Path, column_options: Sequence[str], damage: Damage) -> Iterator[pd.DataFrame]:
    """Yield blocks of cells with a column per role; the index holds the row numbers."""
    try:
        if get_suffix(path) == ".parquet":
            yield from _iter_parquet_blocks(path, column_options, damage)
        elif get_suffix(path) in (".json", ".jsonl", ".ndjson", *SPREADSHEETS):
            yield from _iter_record_blocks(path, column_options, damage)
        else:
            yield from _iter_csv_blocks(path, column_options)
    except (pa.ArrowInvalid, OSError, *CUT_OFF) as error:
        raise UserError(
            "ratings.unreadable-file",
            f"{path}: not readable ({error}); write UTF-8 CSV with the same number of cells in every row",
        ) from None


def _iter_parquet_blocks(path: Path, column_options: Sequence[str], damage: Damage) -> Iterator[pd.DataFrame]:
    roles = find_columns(path, pq.read_schema(path).names, column_options)
    for batch, numbers in parquet_batches(path, damage, [*roles]):
        yield batch.to_pandas(integer_object_nulls=True).set_axis(numbers).rename(columns=roles)


def _iter_record_blocks(path: Path, column_options: Sequence[str], damage: Damage) -> Iterator[pd.DataFrame]:
    records = read_layout(path, damage)
    while block := dict(islice(records, BLOCK_ROWS)):
        roles = find_columns(path, list({key: None for record in block.values() for key in record}), column_options)
        rows = [[record.get(name) for name in roles] for record in block.values()]
        yield pd.DataFrame(rows, [*block], [*roles.values()])


class _CSVFormat(NamedTuple):
    """How a CSV file is read.

    Attributes:
        separator: one character between cells.
        names: columns of a file without a header; [] for one with a header.
        num_skipped: lines before the header.
    """

    separator: str
    names: list[str]
    num_skipped: int


def _guess_format(path: Path, column_options: Sequence[str]) -> _CSVFormat:
    """Return the format of a CSV file by its first line.

    Names without `=` in `column_options` are the columns of a file without a header; `-` is a column to ignore.
    """
    first = next((text for _, text in iter_lines(path, is_table=True) if isinstance(text, str)), "")
    names = [*ROLES] if path.name in HEADERLESS else [name for name in column_options if "=" not in name]
    if excel := _EXCEL_SEPARATOR.match(first):
        return _CSVFormat(excel[1], names, num_skipped=1)
    if "::" in first:  # Arrow separators have one character: an empty cell comes between any two
        return _CSVFormat(":", [name for role in names for name in (role, "-")][:-1], num_skipped=0)
    return _CSVFormat(max(",\t;|", key=first.count), names, num_skipped=0)


def _iter_csv_blocks(path: Path, column_options: Sequence[str]) -> Iterator[pd.DataFrame]:
    """Yield blocks of a CSV file; the rows' index is their line in the file."""
    form = _guess_format(path, column_options)
    encoding = detect_encoding(path)
    is_utf16 = encoding.startswith(("utf-16", "utf-32"))
    reading = csv.ReadOptions(
        use_threads=False,
        block_size=1 << 24,
        column_names=form.names or None,
        skip_rows=form.num_skipped,
        encoding=UTF8 if is_utf16 else encoding,
    )
    parsing = csv.ParseOptions(delimiter=form.separator, newlines_in_values=not form.names)

    def open_blocks(conversion: csv.ConvertOptions | None = None) -> csv.CSVStreamingReader:
        return csv.open_csv(open_bytes(path) if is_utf16 else str(path), reading, parsing, conversion)

    header = form.names or open_blocks().schema.names
    roles = find_columns(path, header, [entry for entry in column_options if "=" in entry])
    texts = csv.ConvertOptions(include_columns=[*roles], column_types=dict.fromkeys(roles, pa.string()))
    line = form.num_skipped + (1 if form.names else 2)
    for batch in open_blocks(texts):
        yield batch.to_pandas().set_axis(range(line, line + len(batch))).rename(columns=roles)
        line += len(batch)
