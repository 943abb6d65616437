"""Layouts of ratings and items in public data sets that `read_records` does not know.

::, | without a header     MovieLens 100K, 1M and 10M
tabs, no quotes            HetRec's .dat; RecBole's atomic files, whose header says types (`user_id:token`)
{'title': 'Heat'}          a Python dict per line: Amazon 2014, Steam
"""

import ast
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from convrec.data.damage import BadRecord, Damage, get_suffix
from convrec.data.records import Records, read_records
from convrec.data.text_files import iter_lines
from data_prep.own_data import NAMES

# MovieLens' item files without a header: the separator, and the names of the first columns
HEADERLESS = {".dat": ("::", ("item_id", "title", "genres")), ".item": ("|", ("item_id", "title"))}
TABLES = (".dat", ".item", ".inter", ".user", ".link")  # with tabs
_ATOMIC_NAME = re.compile(r"(?P<name>[^:\t]+):(?P<type>token|token_seq|float|float_seq)")
_PYTHON_DICT = re.compile(r"\s*\{\s*u?'")


def normalise_name(column: str) -> str:
    """Return a column's name as names.yaml has it: `User-ID`, `user_id` and `user_id:token` are userid."""
    match = _ATOMIC_NAME.fullmatch(column.strip())
    return re.sub(r"[\W_]+", "", (match["name"] if match else column).lower())


def read_layout(path: Path, damage: Damage) -> Records:
    """Read the records of a file in one of these layouts, or in a format that `read_records` knows.

    Args:
        path: the file.
        damage: collects the rows that cannot be read.

    Yields:
        The row number and the record.
    """
    kind = get_suffix(path)
    first = _first_line(path) if kind in (*TABLES, ".json", ".jsonl") else ""
    separator, names = HEADERLESS.get(kind, ("", ()))
    if separator and separator in first and "\t" not in first:
        yield from _read_headerless(path, separator, names, damage)
    elif kind in TABLES:
        yield from _read_table(path, damage)
    elif _PYTHON_DICT.match(first):
        yield from _read_python_dicts(path, damage)
    else:
        yield from read_records(path, damage)


def _first_line(path: Path) -> str:
    first = next((text for _, text in islice(iter_lines(path, is_table=True), 1)), "")
    return first if isinstance(first, str) else ""


def _read_texts(path: Path, damage: Damage) -> Iterator[tuple[int, str]]:
    """Yield the lines that are not blank; damaged ones go to `damage`."""
    for line, text in iter_lines(path, is_table=True):
        if isinstance(text, BadRecord):
            damage.add(path, line, text)
        elif text.strip():
            yield line, text.rstrip("\r\n")


def _read_headerless(path: Path, separator: str, names: tuple[str, ...], damage: Damage) -> Records:
    for line, text in _read_texts(path, damage):
        yield line, dict(zip(names, text.split(separator), strict=False))


def _read_table(path: Path, damage: Damage) -> Records:
    header: list[str] = []
    is_sequence: list[bool] = []
    for line, text in _read_texts(path, damage):
        cells = text.split("\t")
        if not header:
            matches = [_ATOMIC_NAME.fullmatch(name) for name in cells]
            header = [match["name"] if match else name for name, match in zip(cells, matches, strict=True)]
            is_sequence = [match is not None and match["type"] == "token_seq" for match in matches]
            continue
        if len(cells) != len(header):
            problem = BadRecord(
                "layout.wrong-width", "%s cells for %s columns; separate them by tabs", len(cells), len(header)
            )
            damage.add(path, line, problem)
            continue
        columns = zip(header, cells, is_sequence, strict=True)
        yield line, {name: _read_cell(name, cell, sequence) for name, cell, sequence in columns if cell.strip()}


def _read_cell(name: str, cell: str, is_sequence: bool) -> str:
    """Separate genres by `|`: RecBole writes spaces between genres as well as between the words of a title."""
    return "|".join(cell.split()) if is_sequence and normalise_name(name) in NAMES["catalog"]["genres"] else cell


def _read_python_dicts(path: Path, damage: Damage) -> Records:
    for line, text in _read_texts(path, damage):
        number = line if get_suffix(path) == ".jsonl" else line - 1  # as damage.get_unit counts
        with damage.of(path, number):
            yield number, _parse_python_dict(text)


def _parse_python_dict(text: str) -> dict[str, Any]:
    try:
        value = ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        raise BadRecord(
            "layout.not-a-dict", "not a Python dict, unlike the first line; write one object per line"
        ) from None
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise BadRecord("layout.other-keys", "not a Python dict with strings as keys; write one object per line")
    return value
