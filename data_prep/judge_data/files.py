"""Files of records -> what each record says, with its place for whatever is said about it."""

import gzip
import json
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from convrec.errors import UserError
from convrec.judges.criteria import Scores
from convrec.judges.schema import raise_for_problems, row_problem
from data_prep.judge_data.formats import items_of, source_of
from data_prep.judge_data.records import Broken, Item

CUT_OFF = (gzip.BadGzipFile, EOFError, zlib.error)  # what reading a damaged .gz raises


class Loaded(NamedTuple):
    """A record. place: like `ratings.jsonl: line 3`."""

    items: list[Item]
    source: str
    place: str


def load(path: str | os.PathLike, mode: str, scores: Scores, form: str | None = None) -> list[Loaded]:
    """The records of a file. form: a key of FORMATS; None: each record's columns tell.

    Raises UserError that names the broken records and the fix.
    """
    file = Path(path)
    kind, records = read_records(file)
    loaded: list[Loaded] = []
    problems: list[tuple[int, tuple[str, str] | None]] = []
    for number, record in records:
        try:
            items = items_of(record, form, scores)
            problem = next(filter(None, (_problem(item, mode, scores) for item in items)), None)
        except Broken as broken:
            problem = (broken.args[0], broken.args[1])
        problems.append((number, problem))
        if problem is None:
            source = source_of(record, file.name.partition(".")[0])
            loaded.append(Loaded(items, source, f"{file.name}: {kind} {number}"))
    raise_for_problems(f"--input {path}", problems, kind)
    return loaded


def _problem(item: Item, mode: str, scores: Scores) -> tuple[str, str] | None:
    if isinstance(item, dict):
        return row_problem(item, mode, scores, ties=True)
    if item.messages[-1]["role"] != "user":
        return "the prompt does not end in the user's message", "cut it before the response"
    return None


def read_records(file: Path) -> tuple[str, Iterator[tuple[int, Any]]]:
    """("line" from 1 | "row" from 0 | "entry" from 0, (number, record) pairs) of parquet, a JSON list or JSONL, the
    latter two also compressed (.gz). Raises UserError for a file or a line that cannot be read."""
    if not file.is_file():
        raise UserError(f"--input {file}: no such file")
    if file.suffix == ".parquet":
        try:
            return "row", iter(enumerate(pq.read_table(file).to_pylist()))
        except (pa.ArrowInvalid, OSError) as error:
            raise UserError(f"--input {file}: not readable as parquet ({error}); write it again") from error
    if file.name.removesuffix(".gz").endswith(".json"):
        return "entry", iter(enumerate(_json_list(file)))
    return "line", _json_lines(file)


def _json_list(file: Path) -> list[Any]:
    try:
        with _opened(file) as content:
            entries = _parsed(content.read())
    except (ValueError, RecursionError, *CUT_OFF) as error:
        raise UserError(f"--input {file}: no JSON ({error}); is it one record a line? Name it .jsonl then") from None
    if not isinstance(entries, list):
        raise UserError(f"--input {file}: its JSON is no list of records; write [{{...}}, ...], or a record a line")
    return entries


def _json_lines(file: Path) -> Iterator[tuple[int, Any]]:
    number = 0
    try:
        with _opened(file) as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield number, _parsed(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"--input {file}: line {number} is no JSON ({error}); fix or drop that line") from None
    except CUT_OFF as error:
        raise UserError(f"--input {file}: not readable as gzip ({error}); fetch it again") from None


def _parsed(text: bytes) -> Any:
    """Raises ValueError also for half of a surrogate pair, which is no character and can be written nowhere."""
    value = json.loads(text)
    json.dumps(value, ensure_ascii=False).encode()
    return value


def _opened(file: Path) -> Any:
    return gzip.open(file, "rb") if file.suffix == ".gz" else open(file, "rb")
