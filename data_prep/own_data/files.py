"""JSONL and CSV files of one's own, line by line; what is damaged is collected and told at once."""

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from convrec.errors import UserError

SHOWN = 20  # errors told at once


class BadLine(ValueError):
    """What is wrong with one line, and the mend; the reader adds file and line."""


class Damage:
    """Errors of all files, told at once: SHOWN different ones, each with how many more lines have it."""

    def __init__(self) -> None:
        self.lines: dict[tuple[Path, str], list[int]] = {}  # file and problem -> first line, lines

    def __bool__(self) -> bool:
        return bool(self.lines)

    def add(self, path: Path, line: int, problem: object) -> None:
        self.lines.setdefault((path, str(problem)), [line, 0])[1] += 1

    def raise_if_any(self) -> None:
        if not self.lines:
            return
        told = [
            f"{path}, line {line}: {problem}" + (f" (and on {count - 1:,} more lines)" if count > 1 else "")
            for (path, problem), (line, count) in list(self.lines.items())[:SHOWN]
        ]
        if len(self.lines) > SHOWN:
            told.append(f"and {len(self.lines) - SHOWN:,} more such messages")
        raise UserError("\n".join([*told, "Nothing was written."]))


def read_records(path: Path, damage: Damage) -> Iterator[tuple[int, dict[str, Any]]]:
    """(1-based line, record) of a JSONL or CSV file; damaged lines go to `damage`.

    Raises UserError for a file that is not there or of another format.
    """
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    if path.suffix in (".jsonl", ".ndjson"):
        yield from _read_jsonl(path, damage)
    elif path.suffix == ".csv":
        yield from _read_csv(path, damage)
    else:
        raise UserError(f"{path}: unknown format {path.suffix!r}; write .jsonl (an object a line) or .csv")


def _read_jsonl(path: Path, damage: Damage) -> Iterator[tuple[int, dict[str, Any]]]:
    for line, text in _decoded(path, damage):
        if not text.strip():
            continue
        try:
            record = json.loads(text)
            if "\\ud" in text.lower():
                json.dumps(record, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            damage.add(path, line, "half of a surrogate pair (\\ud800 to \\udfff), which is no character; take it out")
            continue
        except (ValueError, RecursionError) as error:
            damage.add(path, line, f"no JSON ({error}); write one object a line, line breaks in texts as \\n")
            continue
        if isinstance(record, dict):
            yield line, record
        else:
            damage.add(path, line, f"a {type(record).__name__}, not an object; write {{...}}")


def _read_csv(path: Path, damage: Damage) -> Iterator[tuple[int, dict[str, Any]]]:
    csv.field_size_limit(1 << 24)  # characters of a cell; the default of 131,072 is a long thread
    lines = csv.reader((text for _, text in _decoded(path, damage)), strict=True)
    header: list[str] = []
    line = 1
    try:
        for cells in lines:
            if not header:
                header = [name.strip() for name in cells]
                if len(header) == 1 and (found := next((mark for mark in ";\t" if mark in header[0]), None)):
                    damage.add(path, line, f"columns are divided by {found!r}; divide them by commas")
                    return
                if len(set(header)) < len(header) or "" in header:
                    damage.add(path, line, f"the header {header} has a name twice or an empty one; name columns once")
                    return
            elif cells and len(cells) != len(header):
                mend = "put cells with commas, quotes or line breaks in double quotes"
                damage.add(path, line, f"{len(cells)} cells for {len(header)} columns; {mend}")
            elif cells:
                yield line, {name: cell for name, cell in zip(header, cells, strict=True) if cell.strip()}
            line = lines.line_num + 1
    except csv.Error as error:
        damage.add(path, line, f"no CSV ({error}); put cells with commas, quotes or line breaks in double quotes")


def _decoded(path: Path, damage: Damage) -> Iterator[tuple[int, str]]:
    with path.open("rb") as file:
        for line, raw in enumerate(file, start=1):
            try:
                yield line, raw.decode("utf-8-sig" if line == 1 else "utf-8")
            except UnicodeDecodeError as error:
                damage.add(path, line, f"no UTF-8 (byte {error.start}: {error.reason}); save the file as UTF-8")
                yield line, "\n"
