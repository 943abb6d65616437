"""Records of JSONL, CSV, JSON and parquet files, one by one; what is damaged goes to a report (convrec.data.damage)."""

import csv
import gzip
import json
import re
import zlib
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from convrec.data.damage import BadRecord, Damage, kind_of
from convrec.errors import UserError

READABLE = ".jsonl, .json, .csv, .tsv, .txt (also .gz) or .parquet"
LONGEST_LINE = 8 << 20  # bytes; reading takes up to 32 times as much memory (notes/data.md)
ENVELOPES = ("tickets", "data")  # of an object that holds the list of records
BATCH_ROWS = 8192  # of parquet
CUT_OFF = (gzip.BadGzipFile, EOFError, zlib.error)  # what reading a damaged .gz raises
_HALF_PAIR = re.compile(r"\\u[dD][89abcdefABCDEF]")
_EXCEL = re.compile(r"\"?sep=([,;|\t])\"?\s*$")
_QUOTING = "put cells with commas, quotes or line breaks in double quotes"

Records: TypeAlias = Iterator[tuple[int, dict[str, Any]]]


def read_records(path: Path, damage: Damage) -> Records:
    """(row, record) of each sound row, counted as damage.unit_of says; text files also compressed (.gz). Damaged rows,
    and lines of more than LONGEST_LINE, go to `damage`.

    Raises UserError for a file that is not there, is of another format, or cannot be read at all.
    """
    if path.is_dir():
        raise UserError(f"{path}: a folder; name the files in it")
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    try:
        match kind_of(path):
            case ".jsonl" | ".ndjson":
                yield from _read_jsonl(path, damage)
            case ".csv":
                yield from _read_csv(path, damage, ",")
            case ".tsv":
                yield from _read_csv(path, damage, "\t")
            case ".txt":
                yield from _read_lines(path, damage)
            case ".json":
                yield from _read_json(path, damage)
            case ".parquet":
                for batch, numbers in parquet_batches(path, damage):
                    yield from zip(numbers.to_pylist(), batch.to_pylist(), strict=True)
            case other:
                raise UserError(f"{path}: unknown format {other!r}; write {READABLE}")
    except CUT_OFF as error:
        raise UserError(f"{path}: not readable as gzip ({error}); fetch it again") from None


def _read_jsonl(path: Path, damage: Damage, by_record: bool = False) -> Records:
    """by_record: lines are counted as the records of a list are, from 0 and without blank ones."""
    lines = ((line, text) for line, text in _lines(path) if isinstance(text, BadRecord) or text.strip())
    for record, (line, text) in enumerate(lines):
        number = record if by_record else line
        with damage.of(path, number):
            yield number, _checked(_parsed(_sound(text), "write one object a line, line breaks in texts as \\n"))


def _read_lines(path: Path, damage: Damage) -> Records:
    for line, text in _lines(path):
        with damage.of(path, line):
            yield line, {"line": _sound(text).rstrip("\r\n")}


def _sound(text: str | BadRecord) -> str:
    if isinstance(text, BadRecord):
        raise text
    return text


def _read_json(path: Path, damage: Damage) -> Records:
    """A list of records; such a list in an object ({"tickets": [...]}); a record, or one a line, line by line."""
    with _opened(path) as file:
        begin = list(islice((line for line in file if line.strip()), 2))
    if len(begin) == 2 and all(line.lstrip(b"\xef\xbb\xbf \t").startswith(b"{") for line in begin):
        yield from _read_jsonl(path, damage, by_record=True)
        return
    with _opened(path) as file:
        content = file.read()
    try:
        value = _parsed(content.decode("utf-8-sig"), "write [{...}, ...]")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: no UTF-8 ({error}); save the file as UTF-8") from None
    except BadRecord as problem:
        raise UserError(f"{path}: {problem}") from None
    if isinstance(value, dict):
        value = next((value[name] for name in ENVELOPES if isinstance(value.get(name), list)), [value])
    if not isinstance(value, list) or value == [{}]:
        raise UserError(f"{path}: its JSON is no list of records; write [{{...}}, ...], or a record a line")
    for number, entry in enumerate(value):
        with damage.of(path, number):
            yield number, _checked(entry)


def _parsed(text: str, fix: str) -> Any:
    try:
        value = json.loads(text, object_pairs_hook=_object)
        if _HALF_PAIR.search(text):
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise BadRecord("half of a surrogate pair (\\ud800 to \\udfff), which is no character; take it out") from None
    except BadRecord:
        raise
    except (ValueError, RecursionError) as error:
        raise BadRecord("no JSON (%s); " + fix, error) from None
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Of a key that is there twice json keeps the last, and says nothing."""
    value = dict(pairs)
    if len(value) < len(pairs):
        twice = next(key for index, (key, _) in enumerate(pairs) if key in dict(pairs[:index]))
        raise BadRecord("the key %r is there twice in one object; keep one", twice)
    return value


def _checked(record: Any) -> dict[str, Any]:
    if not isinstance(record, dict):
        raise BadRecord("a %s, not an object; write {...}", type(record).__name__)
    return record


def parquet_batches(
    path: Path, damage: Damage, columns: Sequence[str] | None = None
) -> Iterator[tuple[pa.RecordBatch, pa.Array]]:
    """(rows whose text is UTF-8, their numbers) of a parquet file, batch by batch."""
    start = 0
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(BATCH_ROWS, columns=columns):
                numbers = pa.array(np.arange(start, start + len(batch)))
                start += len(batch)
                if damaged := rows_without_utf8(batch):
                    for number in numbers.take(pa.array(damaged)).to_pylist():
                        damage.add(path, number, "text that is no UTF-8; write the row again")
                    keep = pa.array(np.isin(np.arange(len(batch)), damaged, invert=True))
                    batch, numbers = batch.filter(keep), numbers.filter(keep)
                yield batch, numbers
    except (pa.ArrowInvalid, OSError) as error:
        raise UserError(f"{path}: not readable as parquet ({error}); write it again") from error


def rows_without_utf8(batch: pa.RecordBatch) -> list[int]:
    """Rows of which some text is no UTF-8: Arrow reads it unseen, and Python fails where it is used. Raises
    pa.ArrowInvalid where more than text is damaged: then no row of the batch can be trusted."""
    try:
        batch.validate(full=True)
        return []
    except pa.ArrowInvalid:
        for column in batch.columns:
            column.cast(_as_bytes(column.type)).validate(full=True)
    return [row for row in range(len(batch)) if not _is_readable(batch.slice(row, 1))]


def _is_readable(batch: pa.RecordBatch) -> bool:
    try:
        batch.to_pylist()
    except UnicodeDecodeError:
        return False
    return True


def _as_bytes(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_string(kind):
        return pa.binary()
    if pa.types.is_large_string(kind):
        return pa.large_binary()
    if pa.types.is_list(kind):
        return pa.list_(_as_bytes(kind.value_type))
    if pa.types.is_large_list(kind):
        return pa.large_list(_as_bytes(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _as_bytes(field.type)) for field in kind])
    return kind


def _read_csv(path: Path, damage: Damage, delimiter: str) -> Records:
    """A record can have several lines. One that cannot be read loses as many rows as it has lines: a quote too many
    takes in what follows it."""
    csv.field_size_limit(LONGEST_LINE)  # characters of a cell; the default of 131,072 is a long thread
    unreadable: list[BadRecord] = []  # in the lines of the record

    def texts() -> Iterator[str]:
        for _, text in _lines(path):
            if isinstance(text, str) and "\0" in text:
                text = BadRecord("a NUL, which is no text; take it out, or save the file as UTF-8 again")
            if isinstance(text, BadRecord):
                unreadable.append(text)
            yield "\n" if isinstance(text, BadRecord) else text

    told = _delimiter(path)
    lines = csv.reader(texts(), delimiter=told or delimiter, strict=True)
    header: list[str] = []
    while True:
        line = lines.line_num + 1
        try:
            cells = next(lines)
            if unreadable:
                raise unreadable[0]
            if not header:
                header = [] if line == 1 and told else _header(cells)
            elif cells:
                if len(cells) != len(header):
                    raise BadRecord("%s cells for %s columns; " + _QUOTING, len(cells), len(header))
                yield line, {name: cell for name, cell in zip(header, cells, strict=True) if cell.strip()}
        except StopIteration:
            return
        except (csv.Error, BadRecord) as error:
            problem = error if isinstance(error, BadRecord) else BadRecord("no CSV (%s); " + _QUOTING, error)
            unreadable.clear()
            damage.add(path, line, problem, lost=max(1, lines.line_num - line + 1) if header else 0)
            if not header:
                return


def _delimiter(path: Path) -> str:
    """What Excel's first line `sep=;` says; "" for a file without."""
    first = next(_lines(path), (1, ""))[1]
    match = _EXCEL.match(first) if isinstance(first, str) else None
    return match[1] if match else ""


def _header(cells: Sequence[str]) -> list[str]:
    """The columns' names. Raises BadRecord where they cannot be."""
    header = [name.strip() for name in cells]
    if len(header) == 1 and (separator := next((mark for mark in ";\t" if mark in header[0]), None)):
        raise BadRecord("columns are divided by %r; divide them by commas", separator)
    if len(set(header)) < len(header) or "" in header:
        raise BadRecord("the header %s has a name twice or an empty one; name columns once", header)
    return header


def _lines(path: Path) -> Iterator[tuple[int, str | BadRecord]]:
    """(1-based line, its text or why it has none). A line that is too long is passed over piece by piece."""
    with _opened(path) as file:
        line = 0
        while raw := file.readline(LONGEST_LINE + 1):
            line += 1
            if len(raw) > LONGEST_LINE:
                while not raw.endswith(b"\n") and (raw := file.readline(LONGEST_LINE)):
                    pass
                yield line, BadRecord("longer than %s MiB; shorten it, or write parquet", LONGEST_LINE >> 20)
                continue
            try:
                yield line, raw.decode("utf-8-sig" if line == 1 else "utf-8")
            except UnicodeDecodeError as error:
                yield line, BadRecord("no UTF-8 (byte %s: %s); save the file as UTF-8", error.start, error.reason)


def _opened(path: Path) -> Any:
    return gzip.open(path, "rb") if path.suffix.lower() == ".gz" else path.open("rb")
