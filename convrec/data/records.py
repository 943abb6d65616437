"""Read records from JSONL, CSV, JSON and parquet files one by one; convrec.data.damage collects damaged ones."""

import json
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from convrec.base.errors import UserError
from convrec.data.arrow_types import to_plain_batch
from convrec.data.csv_records import read_csv
from convrec.data.damage import BadRecord, Damage, get_compression, get_suffix
from convrec.data.spreadsheets import SPREADSHEETS, UNREAD_SPREADSHEETS, read_spreadsheet
from convrec.data.text_files import CUT_OFF, is_table, iter_lines, open_bytes

READABLE = ".jsonl, .json, .csv, .tsv, .txt (also .gz or .zst), .xlsx or .parquet"
ENVELOPES = ("tickets", "conversations", "data")  # keys of a list of records in an object
RECORD_NAME = "record_name"  # key for a record's name, if an object has records by name
LIST = "list"  # key for a record that is a list
BATCH_ROWS = 8192  # of parquet
_HALF_PAIR = re.compile(r"\\u[dD][89abcdefABCDEF]")
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")  # JSON's escape, after an even number of backslashes
_INDEX_COLUMN = re.compile(r"__index_level_\d+__|Unnamed: 0")  # pandas' index of a frame that was sorted or filtered

Records: TypeAlias = Iterator[tuple[int, dict[str, Any]]]


def read_records(path: Path, damage: Damage, lists: bool = False) -> Records:
    """Read the undamaged records of a file; text files can be compressed (.gz, .zst).

    Args:
        path: the file.
        damage: collects damaged rows and lines longer than LONGEST_LINE.
        lists: whether a list of objects is also a record, {LIST: the list}.

    Yields:
        The row, counted as damage.get_unit says, and its record.

    Raises:
        UserError: the file is missing, has an unknown format, or is unreadable.
    """
    if path.is_dir():
        raise UserError("data.not-a-file", f"{path}: a folder; name the files in it")
    if not path.is_file():
        raise UserError("data.missing-file", f"{path}: no such file")
    try:
        match get_suffix(path):
            case ".jsonl" | ".ndjson":
                yield from _read_jsonl(path, damage, lists)
            case ".csv":
                yield from read_csv(path, damage, ",")
            case ".tsv":
                yield from read_csv(path, damage, "\t")
            case ".txt" if is_table(path):
                yield from read_csv(path, damage, "\t")
            case ".txt":
                yield from _read_lines(path, damage)
            case ".json":
                yield from _read_json(path, damage, lists)
            case ".parquet":
                columns = _name_parquet_columns(path)
                for batch, numbers in parquet_batches(path, damage, columns):
                    yield from zip(numbers.to_pylist(), batch.to_pylist(), strict=True)
            case other if other in SPREADSHEETS:
                yield from read_spreadsheet(path, damage)
            case other if other in UNREAD_SPREADSHEETS:
                raise UserError(
                    "data.unsupported-spreadsheet",
                    f"{path}: unsupported spreadsheet format. Save it as .xlsx, or as CSV UTF-8",
                )
            case other:
                raise UserError("data.unknown-format", f"{path}: unknown format {other!r}; use {READABLE}")
    except CUT_OFF as error:
        raise UserError(
            "data.damaged-compression", f"{path}: not readable as gzip ({error}). Download or copy it again"
        ) from None
    except (pa.ArrowInvalid, OSError) as error:
        if get_compression(path) != ".zst":  # Arrow decompresses zstd, and raises its own errors
            raise
        raise UserError(
            "data.damaged-compression", f"{path}: not readable as zstd ({error}). Download or copy it again"
        ) from None


def _read_jsonl(path: Path, damage: Damage, lists: bool, by_record: bool = False) -> Records:
    """Read one object per line.

    With `by_record`, lines are numbered like the records of a list: from 0, without blank ones.
    """
    lines = ((line, text) for line, text in iter_lines(path) if isinstance(text, BadRecord) or text.strip())
    for record, (line, text) in enumerate(lines):
        number = record if by_record else line
        with damage.of(path, number):
            value = _parse_json(_require_text(text), "write one object per line, line breaks in texts as \\n")
            yield number, _check_record(value, lists)


def _read_lines(path: Path, damage: Damage) -> Records:
    for line, text in iter_lines(path):
        with damage.of(path, line):
            yield line, {"line": _require_text(text).rstrip("\r\n")}


def _require_text(text: str | BadRecord) -> str:
    if isinstance(text, BadRecord):
        raise text
    return text


def _read_json(path: Path, damage: Damage, lists: bool) -> Records:
    """Read a JSON file in any of several layouts.

    They are a list of records; an object with such a list ({"tickets": [...]}); one record, or one per line; records
    by name; and a table by columns, as pandas writes it.
    """
    with open_bytes(path) as file:
        first_lines = list(islice((line for line in file if line.strip()), 2))
    if len(first_lines) == 2 and all(line.lstrip(b"\xef\xbb\xbf \t").startswith(b"{") for line in first_lines):
        yield from _read_jsonl(path, damage, lists, by_record=True)
        return
    with open_bytes(path) as file:
        content = file.read()
    try:
        value = _parse_json(content.decode("utf-8-sig"), "write [{...}, ...]")
    except UnicodeDecodeError as error:
        raise UserError("data.invalid-encoding", f"{path}: not UTF-8 ({error}); save the file as UTF-8") from None
    except BadRecord as problem:
        raise UserError("data.invalid-json", f"{path}: {problem}") from None
    entries = _find_records(value) if isinstance(value, dict) else value
    if not isinstance(entries, list) or entries == [{}]:
        raise UserError(
            "data.not-a-record-list",
            f"{path}: expected a list of records. Write [{{...}}, ...], or one record per line",
        )
    for number, entry in enumerate(entries):
        with damage.of(path, number):
            yield number, _check_record(entry, lists)


def _find_records(value: dict[str, Any]) -> list[Any]:
    """Return the records in an object: in an envelope, by name, as columns (pandas' to_json), or the object itself."""
    for name in ENVELOPES:
        entries = value.get(name)
        if isinstance(entries, list) and not any(_is_turn(entry) for entry in entries[:1]):
            return entries
    parts = [part for part in value.values() if isinstance(part, dict)]
    common = set.intersection(*map(set, parts)) if parts else set()
    if len(parts) < len(value) or not common:
        return [value]
    if _are_columns(parts):
        return [{name: column[row] for name, column in value.items()} for row in parts[0]]
    return [{RECORD_NAME: name, **part} for name, part in value.items()]


def _are_columns(parts: Sequence[dict[str, Any]]) -> bool:
    """Return whether objects have the same numbers of rows as keys."""
    rows = list(parts[0])
    return all(row.isdecimal() for row in rows) and all(list(part) == rows for part in parts)


def _is_turn(entry: Any) -> bool:
    """Return whether a list's entry is a turn of a conversation, so that the list is not a list of records."""
    return isinstance(entry, dict) and not {"from", "role", "speaker"}.isdisjoint(entry)


def _parse_json(text: str, fix: str) -> Any:
    try:
        value = json.loads(text, object_pairs_hook=_build_object)
        if _NUL.search(text):
            raise BadRecord("json.nul-character", "contains a NUL character (\\u0000); remove it")
        if _HALF_PAIR.search(text):
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise BadRecord(
            "json.half-surrogate-pair", "contains half a surrogate pair (\\ud800 to \\udfff); remove it"
        ) from None
    except BadRecord:
        raise
    except (ValueError, RecursionError) as error:
        raise BadRecord("json.invalid", "invalid JSON (%s); " + fix, error) from None
    return value


def _build_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse duplicate keys, of which json silently keeps the last."""
    value = dict(pairs)
    if len(value) < len(pairs):
        duplicate = next(key for index, (key, _) in enumerate(pairs) if key in dict(pairs[:index]))
        raise BadRecord("json.duplicate-key", "the key %r occurs twice in one object; keep one", duplicate)
    return value


def _check_record(record: Any, lists: bool) -> dict[str, Any]:
    if lists and isinstance(record, list) and record and all(isinstance(entry, dict) for entry in record):
        return {LIST: record}
    if not isinstance(record, dict):
        raise BadRecord("json.not-an-object", "a %s, not an object; write {...}", type(record).__name__)
    return record


def _name_parquet_columns(path: Path) -> list[str]:
    """Return all columns except for pandas' index."""
    try:
        return [name for name in pq.read_schema(path).names if not _INDEX_COLUMN.fullmatch(name)]
    except (pa.ArrowInvalid, OSError) as error:
        raise _describe_unreadable_parquet(path, error) from error


def _describe_unreadable_parquet(path: Path, error: Exception) -> UserError:
    return UserError("data.unreadable-parquet", f"{path}: not readable as parquet ({error}). Write it again")


def parquet_batches(
    path: Path, damage: Damage, columns: Sequence[str] | None = None
) -> Iterator[tuple[pa.RecordBatch, pa.Array]]:
    """Read a parquet file batch by batch, in plain types (convrec.data.arrow_types).

    Args:
        path: the file.
        damage: collects rows whose text is not UTF-8.
        columns: to read; None: all.

    Yields:
        The undamaged rows, and their numbers from 0.

    Raises:
        UserError: the file is not readable as parquet.
    """
    start = 0
    try:
        with pq.ParquetFile(path) as file:
            for stored_batch in file.iter_batches(BATCH_ROWS, columns=columns):
                batch = to_plain_batch(stored_batch)
                numbers = pa.array(np.arange(start, start + len(batch)))
                start += len(batch)
                if damaged := rows_without_utf8(batch):
                    for number in numbers.take(pa.array(damaged)).to_pylist():
                        damage.add(path, number, BadRecord("data.not-utf8", "text is not UTF-8; write the row again"))
                    keep = pa.array(np.isin(np.arange(len(batch)), damaged, invert=True))
                    batch = batch.filter(keep)
                    numbers = numbers.filter(keep)
                yield batch, numbers
    except (pa.ArrowInvalid, OSError) as error:
        raise _describe_unreadable_parquet(path, error) from error


def rows_without_utf8(batch: pa.RecordBatch) -> list[int]:
    """Return the rows with text that is not UTF-8: Arrow reads it unchecked, and Python fails later.

    Raises:
        pa.ArrowInvalid: more than text is damaged, so that no row of the batch can be trusted.
    """
    try:
        batch.validate(full=True)
        return []
    except pa.ArrowInvalid:
        for column in batch.columns:
            column.cast(_to_binary_type(column.type)).validate(full=True)
    return [row for row in range(len(batch)) if not _is_readable(batch.slice(row, 1))]


def _is_readable(batch: pa.RecordBatch) -> bool:
    try:
        batch.to_pylist()
    except UnicodeDecodeError:
        return False
    return True


def _to_binary_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_string(kind):
        return pa.binary()
    if pa.types.is_large_string(kind):
        return pa.large_binary()
    if pa.types.is_list(kind):
        return pa.list_(_to_binary_type(kind.value_type))
    if pa.types.is_large_list(kind):
        return pa.large_list(_to_binary_type(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _to_binary_type(field.type)) for field in kind])
    return kind
