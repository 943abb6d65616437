"""JSONL and CSV files of one's own, line by line; what is damaged is collected, then told at once or left out."""

import csv
import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from convrec.data.damage import SHOWN, check_share
from convrec.errors import UserError

LONGEST_VALUE = 300  # characters of one that is quoted in a message
LONGEST_LINE = 8.0  # MiB, unless told otherwise; reading takes up to 32 times as much memory (notes/data.md)
LONGEST_POSSIBLE = 1024  # MiB
MEBIBYTE = 1 << 20
_HALF_PAIR = re.compile(r"\\u[dD][89abcdefABCDEF]")
_QUOTING = "put cells with commas, quotes or line breaks in double quotes"


class BadLine(ValueError):
    """What is wrong with one line, and the fix; the reader adds file and line. `kind` is the same without the values,
    to count by: BadLine("split is %r; write train", "dev").kind is "split is ...; write train"."""

    def __init__(self, text: str, *values: object) -> None:
        super().__init__(text % tuple(map(_brief, values)) if values else text)
        self.kind = re.sub("%[rs]", "...", text) if values else text


def _brief(value: object) -> object:
    """The value; of one that is long the beginning, as text."""
    text = repr(value)
    return value if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}..."


class Entry(NamedTuple):
    """A damaged line; `rows`: how many rows are lost with it."""

    path: Path
    line: int
    problem: BadLine
    rows: int


class Damage:
    """Damaged lines of all files.

    share None: any of them is an error, told with SHOWN different ones, each with how many more lines have it. Else up
    to this share of a table's rows is left out; what spoils a whole file is an error all the same.
    """

    def __init__(self, share: float | None = None) -> None:
        self.share = share
        self.entries: list[Entry] = []
        self.of_files: list[Entry] = []

    def __bool__(self) -> bool:
        return bool(self.entries or self.of_files)

    def add(self, path: Path, line: int, problem: BadLine, rows: int = 1) -> None:
        self.entries.append(Entry(path, line, problem, rows))

    def add_file(self, path: Path, line: int, problem: BadLine) -> None:
        """What is wrong with more than a line."""
        self.of_files.append(Entry(path, line, problem, 0))

    def lines(self) -> set[tuple[Path, int]]:
        return {(entry.path, entry.line) for entry in self.entries}

    def counts(self, paths: Collection[Path] | None = None) -> dict[str, int]:
        """Rows left out, of these files or of all, by kind of problem."""
        counts: Counter[str] = Counter()
        for entry in self.entries:
            if paths is None or entry.path in paths:
                counts[entry.problem.kind] += entry.rows
        return dict(counts)

    def check(self, paths: Sequence[Path], sound: int) -> None:
        """Raises UserError when more rows of `paths` are damaged than may be left out; `sound`: how many are not."""
        if self.of_files or (self.share is None and self.entries):
            raise UserError("\n".join([*self._told(), "Nothing was written."]))
        if self.share is not None:
            counts = self.counts(paths)
            check_share(", ".join(map(str, paths)), counts, sum(counts.values()) + sound, self.share)

    def _told(self) -> list[str]:
        lines: dict[tuple[Path, str], list[int]] = {}  # file and problem -> first line, lines
        for entry in [*self.of_files, *(self.entries if self.share is None else ())]:
            lines.setdefault((entry.path, str(entry.problem)), [entry.line, 0])[1] += 1
        messages = [
            f"{path}, line {line}: {problem}" + (f" (and on {count - 1:,} more lines)" if count > 1 else "")
            for (path, problem), (line, count) in list(lines.items())[:SHOWN]
        ]
        return messages + ([f"and {len(lines) - SHOWN:,} more such messages"] if len(lines) > SHOWN else [])


def read_records(
    path: Path, damage: Damage, longest_line: float = LONGEST_LINE
) -> Iterator[tuple[int, dict[str, Any]]]:
    """(1-based line, record) of a JSONL or CSV file; damaged lines, and those of more than `longest_line` MiB, go to
    `damage`.

    Raises UserError for a file that is not there or of another format.
    """
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    if path.suffix in (".jsonl", ".ndjson"):
        yield from _read_jsonl(path, damage, longest_line)
    elif path.suffix == ".csv":
        yield from _read_csv(path, damage, longest_line)
    else:
        raise UserError(f"{path}: unknown format {path.suffix!r}; write .jsonl (an object a line) or .csv")


def _read_jsonl(path: Path, damage: Damage, longest_line: float) -> Iterator[tuple[int, dict[str, Any]]]:
    for line, text in _lines(path, longest_line):
        try:
            if isinstance(text, BadLine):
                raise text
            if text.strip():
                yield line, _read_object(text)
        except BadLine as problem:
            damage.add(path, line, problem)


def _read_object(text: str) -> dict[str, Any]:
    try:
        record = json.loads(text)
        if _HALF_PAIR.search(text):
            json.dumps(record, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise BadLine("half of a surrogate pair (\\ud800 to \\udfff), which is no character; take it out") from None
    except (ValueError, RecursionError) as error:
        raise BadLine("no JSON (%s); write one object a line, line breaks in texts as \\n", error) from None
    if not isinstance(record, dict):
        raise BadLine("a %s, not an object; write {...}", type(record).__name__)
    return record


def _read_csv(path: Path, damage: Damage, longest_line: float) -> Iterator[tuple[int, dict[str, Any]]]:
    """A record can have several lines. One that cannot be read loses as many rows as it has lines: a quote too many
    takes in what follows it."""
    csv.field_size_limit(int(longest_line * MEBIBYTE))  # characters of a cell; the default of 131,072 is a long thread
    unreadable: list[BadLine] = []  # in the lines of the record

    def texts() -> Iterator[str]:
        for _, text in _lines(path, longest_line):
            if isinstance(text, BadLine):
                unreadable.append(text)
            yield "\n" if isinstance(text, BadLine) else text

    lines = csv.reader(texts(), strict=True)
    header: list[str] = []
    while True:
        line = lines.line_num + 1
        try:
            cells = next(lines)
            if unreadable:
                raise unreadable[0]
            if header and cells and len(cells) != len(header):
                raise BadLine("%s cells for %s columns; " + _QUOTING, len(cells), len(header))
        except StopIteration:
            return
        except (csv.Error, BadLine) as error:
            problem = error if isinstance(error, BadLine) else BadLine("no CSV (%s); " + _QUOTING, error)
            unreadable.clear()
            if not header:
                damage.add_file(path, line, problem)
                return
            damage.add(path, line, problem, rows=max(1, lines.line_num - line + 1))
            continue
        if header:
            if cells:
                yield line, {name: cell for name, cell in zip(header, cells, strict=True) if cell.strip()}
            continue
        header = [name.strip() for name in cells]
        if len(header) == 1 and (separator := next((mark for mark in ";\t" if mark in header[0]), None)):
            damage.add_file(path, line, BadLine("columns are divided by %r; divide them by commas", separator))
            return
        if len(set(header)) < len(header) or "" in header:
            problem = BadLine("the header %s has a name twice or an empty one; name columns once", header)
            damage.add_file(path, line, problem)
            return


def _lines(path: Path, longest_line: float) -> Iterator[tuple[int, str | BadLine]]:
    """(1-based line, its text or why it has none). A line that is too long is passed over piece by piece."""
    limit = int(longest_line * MEBIBYTE)
    with path.open("rb") as file:
        line = 0
        while raw := file.readline(limit + 1):
            line += 1
            if len(raw) > limit:
                while not raw.endswith(b"\n") and (raw := file.readline(limit)):
                    pass
                yield line, BadLine(
                    "longer than %s MiB; shorten it, or give --longest-line (reading takes up to 32 times as much "
                    "memory)", f"{longest_line:g}"
                )  # fmt: skip
                continue
            try:
                yield line, raw.decode("utf-8-sig" if line == 1 else "utf-8")
            except UnicodeDecodeError as error:
                yield line, BadLine("no UTF-8 (byte %s: %s); save the file as UTF-8", error.start, error.reason)
