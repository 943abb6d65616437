"""Collect damaged rows of files: report all of them at once, or skip up to a share of them, counted and listed."""

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import chain, zip_longest
from pathlib import Path
from typing import NamedTuple

from convrec.base.errors import UserError
from convrec.base.files import write_jsonl

REPORT = "damaged.jsonl"
SHOWN = 20  # different problems in one message
NAMED = 5  # rows that a message names per problem
LONGEST_VALUE = 300  # characters of a value that a message quotes
COMPRESSIONS = (".gz", ".zst")
LINES = (".jsonl", ".ndjson", ".csv", ".tsv", ".txt", ".dat", ".data", ".item", ".inter")  # MovieLens, RecBole


def get_suffix(path: str | Path) -> str:
    """Return the suffix that tells a file's format: `.jsonl` for chats.JSONL.gz."""
    name = Path(path).name.lower().removesuffix(get_compression(path))
    return Path(name).suffix


def get_compression(path: str | Path) -> str:
    """Return `.gz` or `.zst`, "" for a file that is not compressed."""
    suffix = Path(path).suffix.lower()
    return suffix if suffix in COMPRESSIONS else ""


@cache
def get_unit(path: str | Path) -> str:
    """Return what messages call a row of a file.

    A "line" counts from 1, a "record" in a JSON list and a "row" in parquet from 0, a "row" in a spreadsheet as
    displayed there.
    """
    return "line" if get_suffix(path) in LINES else "record" if get_suffix(path) == ".json" else "row"


def format_place(path: str | Path, row: int) -> str:
    """Return the place of a row for messages, such as `chats.jsonl: line 3`."""
    return f"{path}: {get_unit(path)} {row}"


class BadRecord(ValueError):
    """A problem of a record, and its fix.

    The reader of the file adds the place, `collected` the column. `kind` is the message without values, for counting:
    BadRecord("split.unknown-name", "is %r; write train", "dev").kind is "is ...; write train".

    Args:
        code: what kind of problem it is, as in `UserError`. It stays when the message changes.
        text: the message, with %s and %r for the values.
        values: quoted in the message, shortened if long.
    """

    def __init__(self, code: str, text: str, *values: object) -> None:
        message = text % tuple(map(_shorten, values)) if values else text
        super().__init__(code, message)
        self.code = code
        self.message = message
        self.pattern = re.sub("%[rs]", "...", text) if values else text
        self.column = ""
        self.problems: Sequence[BadRecord] = [self]

    def __str__(self) -> str:
        return f"{self.column} {self.message}".lstrip()

    def as_line(self) -> str:
        """Return what a command prints after the place: the message, then the code in brackets."""
        return f"{self} [{self.code}]"

    @property
    def kind(self) -> str:
        return f"{self.column} {self.pattern}".lstrip()


def _shorten(value: object) -> object:
    """Return the value, or the beginning of its text if that is long."""
    text = repr(value)
    return value if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}..."


class BadRow(BadRecord):
    """All problems of a record; its code is that of the first.

    Args:
        problems: at least one.
    """

    def __init__(self, problems: Sequence[BadRecord]) -> None:
        super().__init__(problems[0].code, "\n".join(map(str, problems)))
        self.problems = problems


@contextmanager
def collected(problems: list[BadRecord], column: str = "") -> Iterator[None]:
    """Catch a BadRecord raised in the block, and append its problems, with the column that they concern.

    Args:
        problems: the list that grows.
        column: the name that messages begin with, unless a problem has one; "" for none.
    """
    try:
        yield
    except BadRecord as error:
        for problem in error.problems:
            problem.column = problem.column or column
            problems.append(problem)


class Problem(NamedTuple):
    """A row that breaks a rule.

    Attributes:
        path: the file.
        row: counted as `get_unit` says.
        problem: what is wrong with the row, and the fix.
        lost: how many rows are lost with it; 0 for a problem of the whole file.
    """

    path: str | Path
    row: int
    problem: BadRecord
    lost: int


class Damage:
    """The problems of some files.

    Args:
        share: how large a share of the rows may be skipped; a problem of a whole file is then still an error. None: any
            problem is an error.
        named: how many rows a message names per problem; None: all.
        end: the message's last line.

    Attributes:
        findings: the problems so far, in the order in which they were added.
    """

    def __init__(self, share: float | None = None, named: int | None = NAMED, end: str = "") -> None:
        self.share = share
        self.named = named
        self.end = end
        self.findings: list[Problem] = []

    def __bool__(self) -> bool:
        return bool(self.findings)

    def add(self, path: str | Path, row: int, problem: BadRecord, lost: int = 1) -> None:
        """Add a row's problems.

        Args:
            path: the file.
            row: counted as `get_unit` says.
            problem: one problem of the row, or all of them (BadRow).
            lost: how many rows are lost with it; 0 for a problem of the whole file, which is always an error.
        """
        for part in problem.problems:
            self.findings.append(Problem(path, row, part, lost))

    @contextmanager
    def of(self, path: str | Path, row: int) -> Iterator[None]:
        """Add a BadRecord raised in the block, for a row that is lost with it."""
        try:
            yield
        except BadRecord as problem:
            self.add(path, row, problem)

    def rows(self) -> dict[tuple[str | Path, int], Problem]:
        """Return the first problem of each damaged row, by (file, row)."""
        first: dict[tuple[str | Path, int], Problem] = {}
        for finding in self.findings:
            first.setdefault((finding.path, finding.row), finding)
        return first

    def counts(self, paths: Collection[str | Path] | None = None) -> dict[str, int]:
        """Return how many rows are lost per kind of problem; only the first problem of a row counts.

        Args:
            paths: the files to count; None for all.
        """
        counts: Counter[str] = Counter()
        for finding in self.rows().values():
            if paths is None or finding.path in paths:
                counts[finding.problem.kind] += finding.lost
        return dict(counts)

    def check(self, paths: Sequence[str | Path] = (), sound: int = 0) -> None:
        """Check that no more rows are damaged than may be skipped.

        Args:
            paths: the files to count.
            sound: how many of their rows are not damaged.

        Raises:
            UserError: too many rows are damaged, or a whole file is.
        """
        if self.share is None or not all(finding.lost for finding in self.findings):
            self._raise_if_any()
            return
        counts = self.counts(paths)
        damaged = sum(counts.values())
        if damaged > self.share * (damaged + sound):
            files = ", ".join(map(str, paths))
            first = (
                f"{files}: {damaged:,} of {damaged + sound:,} rows are damaged, more than the share of {self.share:g} "
                "that may be skipped. Fix them, or raise --skip-damaged:"
            )
            raise UserError("data.damaged-rows", "\n".join([first, *counted(counts)]))

    def _raise_if_any(self) -> None:
        rows: dict[tuple[str | Path, str], dict[str, list[int]]] = {}  # file, kind -> message -> rows
        for finding in sorted(self.findings, key=lambda finding: finding.lost > 0):
            if self.share is None or not finding.lost:
                messages = rows.setdefault((finding.path, finding.problem.kind), {})
                messages.setdefault(finding.problem.as_line(), []).append(finding.row)
        lines_by_kind = [
            [
                f"{path}: {format_rows(numbers, get_unit(path), self.named)}: {text}"
                for text, numbers in messages.items()
            ]
            for (path, _), messages in rows.items()
        ]
        lines = [*filter(None, chain(*zip_longest(*lines_by_kind)))]  # one line per kind before a second of any
        more = [f"and {len(lines) - SHOWN:,} more messages"] if len(lines) > SHOWN else []
        if lines:
            raise UserError("data.damaged-rows", "\n".join([*lines[:SHOWN], *more, self.end]).rstrip())

    def write_report(self, path: Path) -> None:
        """Write one JSON object per damaged row, with its first problem: file, row, code and reason."""
        entries = (
            {
                "file": str(finding.path),
                get_unit(finding.path): finding.row,
                "code": finding.problem.code,
                "reason": str(finding.problem),
            }
            for finding in self.rows().values()
        )
        write_jsonl(path, entries)


def format_rows(rows: Sequence[int], unit: str, named: int | None = NAMED) -> str:
    """Return `line 3`, or `lines 3, 5 and 7 more`.

    Args:
        rows: their numbers.
        unit: as `get_unit` returns it.
        named: how many are named; None: all.
    """
    rows = sorted(rows)
    more = f" and {len(rows) - named:,} more" if named and len(rows) > named else ""
    return f"{unit}{'s' * (len(rows) > 1)} {', '.join(map(str, rows[:named]))}{more}"


def counted(counts: Mapping[str, int]) -> list[str]:
    """Return one line per reason, the most frequent first."""
    order = sorted(counts, key=lambda reason: -counts[reason])
    more = [f"{'':>8}  and {len(order) - SHOWN:,} more reasons"] if len(order) > SHOWN else []
    return [f"{counts[reason]:>8,}: {reason}" for reason in order[:SHOWN]] + more
