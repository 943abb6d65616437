"""Read CSV and TSV from any program: its delimiter, its way to escape quotes, pandas' index column."""

import csv
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from convrec.data.damage import BadRecord, Damage
from convrec.data.text_files import LONGEST_LINE, iter_lines

DELIMITERS = ",;\t|"
NO_VALUES = ("", "\\N")  # blank, and null as MySQL, Postgres, Hive and IMDb write it
_SEP_LINE = re.compile(r"\"?sep=([,;|\t])\"?\s*$")  # Excel's first line
_QUOTING = "put cells with commas, quotes or line breaks in double quotes"
_INDEX_NAMES = ("", "Unnamed: 0")  # the index column that pandas writes, and its name after another round trip
_END_OF_DATA = "unexpected end of data"  # csv's error for a quote that is still open
_MAX_ESCAPED_LINES = 100  # of one record
_MAX_SEEN_LENGTH = 40  # characters of a value
_MAX_SEEN_VALUES = 10_000  # per column


def read_csv(path: Path, damage: Damage, delimiter: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Read the records of a table whose first line names the columns.

    A record can span several lines. An unreadable record counts as many lost rows as it has lines, because an unclosed
    quote swallows the rows after it. A readable record that swallowed another row counts as damage too.

    Args:
        path: the file.
        damage: collects unreadable records.
        delimiter: separates cells, unless the first line or the header shows another one.

    Yields:
        The number of the record's first line, and its non-empty cells by column name.
    """
    csv.field_size_limit(LONGEST_LINE)  # characters per cell; a long thread exceeds the default of 131,072
    table = _Table(path, delimiter)
    for line, cells in table.iter_rows(damage):
        named_cells = zip(table.header, cells, strict=True)
        yield line, {name: cell for name, cell in named_cells if name and cell.strip() not in NO_VALUES}
    for line, lost in table.find_swallowed_rows():
        problem = BadRecord("csv.unclosed-quote", "an unclosed quote swallows the next row; close it, or double it")
        damage.add(path, line, problem, lost=lost)


def read_header(cells: Sequence[str]) -> list[str]:
    """Read the names of a table's columns; "" is pandas' index column.

    Raises:
        BadRecord: a column has no name, or the name of another one.
    """
    header = [name.strip() for name in cells]
    names = header
    if len(header) > 1 and header[0] in _INDEX_NAMES:
        names = header[1:]
        header = ["", *names]
    if len(set(names)) < len(names) or "" in names:
        raise BadRecord(
            "csv.invalid-header", "the header %s has a duplicate or empty name; give every column its own name", header
        )
    return header


@dataclass
class _Record:
    """The lines that csv has consumed since a record began."""

    first_line: int
    lines: list[str] = field(default_factory=list)
    problem: BadRecord | None = None


@dataclass(frozen=True)
class _Suspect:
    """A line inside a record that looks like a separate row.

    Attributes:
        record_line: first line of the record.
        num_lines: number of the record's lines.
        cells: the cells of the suspect line before the quote that closes the record.
    """

    record_line: int
    num_lines: int
    cells: Sequence[str]


class _Table:
    def __init__(self, path: Path, delimiter: str) -> None:
        self.path = path
        self.header: list[str] = []
        self.delimiter, self.has_sep_line = _find_delimiter(path, delimiter)
        self._escape = re.compile(rf"""\\["\r\n{re.escape(self.delimiter)}]""")
        self._lines = iter_lines(path, is_table=True)
        self._record = _Record(1)
        self._next_line = 1
        self._suspects: list[_Suspect] = []
        self._seen_values: list[set[str]] = []

    def iter_rows(self, damage: Damage) -> Iterator[tuple[int, Sequence[str]]]:
        texts = self._iter_texts()
        reader = csv.reader(texts, delimiter=self.delimiter, strict=True)
        if self.has_sep_line:
            next(reader)
        while True:
            self._record = _Record(self._next_line)
            try:
                cells = next(reader)
                rows = [cells] if cells else []
                if self._record.problem:
                    raise self._record.problem
                if not self.header:
                    self._use_header(cells)
                    continue
                self._check_width(rows)
            except StopIteration:
                return
            except (csv.Error, BadRecord) as error:
                rows = self._read_backslashes(texts)
                if not rows:
                    self._add_damage(damage, error)
                    if not self.header:
                        return
            for cells in rows:
                self._note_row(cells)
                yield self._record.first_line, cells
            if len(rows) == 1:
                self._note_suspects()

    def find_swallowed_rows(self) -> Iterator[tuple[int, int]]:
        """Yield (first line, number of lines) of every record that swallowed a row.

        A line inside a record is a row of its own if one of its cells also occurs in the same column of another row.
        """
        for suspect in self._suspects:
            # In prose, a space follows a comma and tabs are rare; a cell's value often recurs in its column.
            cells = zip(suspect.cells, self._seen_values, strict=False)
            if self.delimiter == "\t" or any(cell in seen for cell, seen in cells if cell):
                yield suspect.record_line, suspect.num_lines

    def _iter_texts(self) -> Iterator[str]:
        """Yield lines to csv; an unreadable line is blank, and is recorded as the record's problem."""
        for number, text in self._lines:
            self._next_line = number + 1
            if isinstance(text, str) and "\0" in text:
                text = BadRecord("csv.nul-character", "contains a NUL character; remove it, or save the file as UTF-8")
            if isinstance(text, BadRecord):
                self._record.problem = self._record.problem or text
                text = "\n"
            self._record.lines.append(text)
            yield text

    def _use_header(self, cells: Sequence[str]) -> None:
        """Take a row as the header. Raises BadRecord for invalid column names."""
        self.header = read_header(cells)
        self._seen_values = [set() for _ in self.header]

    def _check_width(self, rows: Sequence[Sequence[str]]) -> None:
        for cells in rows:
            if len(cells) != len(self.header):
                raise BadRecord("csv.wrong-width", "%s cells for %s columns; " + _QUOTING, len(cells), len(self.header))

    def _read_backslashes(self, texts: Iterator[str]) -> list[list[str]]:
        """Read the record again with backslash as the escape character, as MySQL and Spark write it.

        Returns:
            The rows; none if the record is unreadable that way too.
        """
        lines = self._record.lines
        while self.header and not self._record.problem and len(lines) <= _MAX_ESCAPED_LINES:
            text = "".join(lines)
            if not self._escape.search(text):
                return []
            try:
                escaped = csv.reader(
                    io.StringIO(text, newline=""),
                    delimiter=self.delimiter,
                    doublequote=False,
                    escapechar="\\",
                    strict=True,
                )
                rows = [cells for cells in escaped if cells]
                self._check_width(rows)
            except (BadRecord, csv.Error) as error:
                continues = str(error) == _END_OF_DATA or text.rstrip("\r\n").endswith("\\")
                if not continues or next(texts, None) is None:
                    return []
            else:
                return rows
        return []

    def _add_damage(self, damage: Damage, error: BadRecord | csv.Error) -> None:
        if isinstance(error, csv.Error):
            error = BadRecord("csv.invalid-quoting", "invalid CSV (%s); " + _QUOTING, error)
        record = self._record
        lost = max(1, self._next_line - record.first_line) if self.header else 0
        damage.add(self.path, record.first_line, error, lost=lost)

    def _note_row(self, cells: Sequence[str]) -> None:
        for cell, seen in zip(cells, self._seen_values, strict=True):
            if len(cell) <= _MAX_SEEN_LENGTH and len(seen) < _MAX_SEEN_VALUES:
                seen.add(cell)

    def _note_suspects(self) -> None:
        """Remember lines of a record that have as many cells as a row and do not follow a backslash."""
        record = self._record
        for previous, text in pairwise(record.lines):
            if previous.rstrip("\r\n").endswith("\\"):
                continue
            cells = text.rstrip("\r\n").split(self.delimiter)
            closing = next((place for place, cell in enumerate(cells) if '"' in cell), len(cells))
            if closing and len(cells) == len(self.header) > 1:
                self._suspects.append(_Suspect(record.first_line, len(record.lines), cells[:closing]))


def _find_delimiter(path: Path, default: str) -> tuple[str, bool]:
    """Return (delimiter, whether Excel's line `sep=;` names it).

    Without that line, the header decides: the default if it occurs there, else the delimiter with the most cells.
    """
    first = next(iter_lines(path, is_table=True), (1, ""))[1]
    if not isinstance(first, str):
        return default, False
    if match := _SEP_LINE.match(first):
        return match[1], True
    counts = {mark: len(next(csv.reader([first], delimiter=mark), [])) for mark in dict.fromkeys(default + DELIMITERS)}
    return (default if counts[default] > 1 else max(counts, key=lambda mark: counts[mark])), False
