"""Records of CSV and TSV, by whatever program: its delimiter, its way to escape quotes, pandas' index column."""

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
NO_VALUES = ("", "\\N")  # blank, and what MySQL, Postgres, Hive and IMDb write for null
_SEP_LINE = re.compile(r"\"?sep=([,;|\t])\"?\s*$")  # Excel's first line
_QUOTING = "put cells with commas, quotes or line breaks in double quotes"
_INDEX_NAMES = ("", "Unnamed: 0")  # of the column that pandas adds, and of one that it has read and written again
_END_OF_DATA = "unexpected end of data"  # what csv says of a quote that is still open
_LONGEST_ESCAPED_LINES = 100
_LONGEST_SEEN_VALUE = 40  # characters
_MOST_SEEN_VALUES = 10_000  # of a column


def read_csv(path: Path, damage: Damage, delimiter: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Read the records of a table whose first line names the columns.

    A record can have several lines. One that cannot be read loses as many rows as it has lines: a quote too many takes
    in what follows it. A record that has taken in another row although it can be read is damage too.

    Args:
        path: the file.
        damage: gets what cannot be read.
        delimiter: what divides the cells, unless the first line or the header say otherwise.

    Yields:
        The number of the record's first line, and its cells that have a value by the names of their columns.
    """
    csv.field_size_limit(LONGEST_LINE)  # characters of a cell; the default of 131,072 is a long thread
    table = _Table(path, delimiter)
    for line, cells in table.iter_rows(damage):
        named = zip(table.header, cells, strict=True)
        yield line, {name: cell for name, cell in named if name and cell.strip() not in NO_VALUES}
    for line, lost in table.find_swallowed_rows():
        problem = BadRecord("a quote that is not closed takes the next row in; close it, or write it twice")
        damage.add(path, line, problem, lost=lost)


def read_header(cells: Sequence[str]) -> list[str]:
    """Read the names of a table's columns; "" for the index column of pandas.

    Raises:
        BadRecord: A column has no name, or that of another.
    """
    header = [name.strip() for name in cells]
    names = header
    if len(header) > 1 and header[0] in _INDEX_NAMES:
        names = header[1:]
        header = ["", *names]
    if len(set(names)) < len(names) or "" in names:
        raise BadRecord("the header %s has a name twice or an empty one; name columns once", header)
    return header


@dataclass
class _Record:
    """The lines that csv has asked for since a record began."""

    first_line: int
    lines: list[str] = field(default_factory=list)
    problem: BadRecord | None = None


@dataclass(frozen=True)
class _Suspect:
    """A line within a record that could be a row of its own; cells: those before the quote that closes the record."""

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
        path_lines = self._iter_texts()
        rows = csv.reader(path_lines, delimiter=self.delimiter, strict=True)
        if self.has_sep_line:
            next(rows)
        while True:
            self._record = _Record(self._next_line)
            try:
                cells = next(rows)
                read = [cells] if cells else []
                if self._record.problem:
                    raise self._record.problem
                if not self.header:
                    self._use_header(cells)
                    continue
                self._check_width(read)
            except StopIteration:
                return
            except (csv.Error, BadRecord) as error:
                read = self._read_backslashes(path_lines)
                if not read:
                    self._add_damage(damage, error)
                    if not self.header:
                        return
            for cells in read:
                self._note_row(cells)
                yield self._record.first_line, cells
            if len(read) == 1:
                self._note_suspects()

    def find_swallowed_rows(self) -> Iterator[tuple[int, int]]:
        """(first line, lines) of the records that have a line with a cell that other rows have in the same column."""
        for suspect in self._suspects:
            # In text, a comma is followed by a blank and a tab is rare; a cell of a row often recurs in its column.
            cells = zip(suspect.cells, self._seen_values, strict=False)
            if self.delimiter == "\t" or any(cell in seen for cell, seen in cells if cell):
                yield suspect.record_line, suspect.num_lines

    def _iter_texts(self) -> Iterator[str]:
        """The lines as csv asks for them; an unreadable one is blank, and the record's problem."""
        for number, text in self._lines:
            self._next_line = number + 1
            if isinstance(text, str) and "\0" in text:
                text = BadRecord("a NUL, which is no text; take it out, or save the file as UTF-8 again")
            if isinstance(text, BadRecord):
                self._record.problem = self._record.problem or text
                text = "\n"
            self._record.lines.append(text)
            yield text

    def _use_header(self, cells: Sequence[str]) -> None:
        """Raises BadRecord where the columns cannot have such names."""
        self.header = read_header(cells)
        self._seen_values = [set() for _ in self.header]

    def _check_width(self, rows: Sequence[Sequence[str]]) -> None:
        for cells in rows:
            if len(cells) != len(self.header):
                raise BadRecord("%s cells for %s columns; " + _QUOTING, len(cells), len(self.header))

    def _read_backslashes(self, texts: Iterator[str]) -> list[list[str]]:
        """Read the record again with backslashes before what is text, as MySQL and Spark write quotes and delimiters.

        Returns:
            The rows; none where that makes none.
        """
        lines = self._record.lines
        while self.header and not self._record.problem and len(lines) <= _LONGEST_ESCAPED_LINES:
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
                goes_on = str(error) == _END_OF_DATA or text.rstrip("\r\n").endswith("\\")
                if not goes_on or next(texts, None) is None:
                    return []
            else:
                return rows
        return []

    def _add_damage(self, damage: Damage, error: BadRecord | csv.Error) -> None:
        problem = error if isinstance(error, BadRecord) else BadRecord("no CSV (%s); " + _QUOTING, error)
        record = self._record
        lost = max(1, self._next_line - record.first_line) if self.header else 0
        damage.add(self.path, record.first_line, problem, lost=lost)

    def _note_row(self, cells: Sequence[str]) -> None:
        for cell, seen in zip(cells, self._seen_values, strict=True):
            if len(cell) <= _LONGEST_SEEN_VALUE and len(seen) < _MOST_SEEN_VALUES:
                seen.add(cell)

    def _note_suspects(self) -> None:
        """Remember the lines of a record that have as many cells as a row, and no backslash before them."""
        record = self._record
        for before, text in pairwise(record.lines):
            if before.rstrip("\r\n").endswith("\\"):
                continue
            cells = text.rstrip("\r\n").split(self.delimiter)
            closing = next((place for place, cell in enumerate(cells) if '"' in cell), len(cells))
            if closing and len(cells) == len(self.header) > 1:
                self._suspects.append(_Suspect(record.first_line, len(record.lines), cells[:closing]))


def _find_delimiter(path: Path, usual: str) -> tuple[str, bool]:
    """(what divides the cells, whether Excel's line `sep=;` says it); else what the header has, the usual one first."""
    first = next(iter_lines(path, is_table=True), (1, ""))[1]
    if not isinstance(first, str):
        return usual, False
    if match := _SEP_LINE.match(first):
        return match[1], True
    counts = {mark: len(next(csv.reader([first], delimiter=mark), [])) for mark in dict.fromkeys(usual + DELIMITERS)}
    return (usual if counts[usual] > 1 else max(counts, key=lambda mark: counts[mark])), False
