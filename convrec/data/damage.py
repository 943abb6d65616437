"""Damaged rows of files: collected, then told all at once, or left out up to a share, counted and reported."""

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
SHOWN = 20  # different reasons of one message
NAMED = 5  # rows that one of them names
LONGEST_VALUE = 300  # characters of one that is quoted in a message
COMPRESSIONS = (".gz", ".zst")
LINES = (".jsonl", ".ndjson", ".csv", ".tsv", ".txt", ".dat", ".data", ".item", ".inter")  # MovieLens, RecBole


def get_suffix(path: str | Path) -> str:
    """The end of a file's name that says what is in it: `.jsonl` of chats.JSONL.gz."""
    name = Path(path).name.lower().removesuffix(get_compression(path))
    return Path(name).suffix


def get_compression(path: str | Path) -> str:
    """`.gz` or `.zst`; "" for a file that is not compressed."""
    suffix = Path(path).suffix.lower()
    return suffix if suffix in COMPRESSIONS else ""


@cache
def get_unit(path: str | Path) -> str:
    """What the rows of a file are called.

    A "line" counts from 1, a "record" of a JSON list and a "row" of parquet from 0, that of a spreadsheet as it shows.
    """
    return "line" if get_suffix(path) in LINES else "record" if get_suffix(path) == ".json" else "row"


def format_place(path: str | Path, row: int) -> str:
    """`chats.jsonl: line 3`."""
    return f"{path}: {get_unit(path)} {row}"


class BadRecord(ValueError):
    """What is wrong with a record, and the fix; who reads the file knows its place, `collected` says of which column.

    `kind` is the same without the values, to count by: BadRecord("is %r; write train", "dev").kind is "is ...; write
    train".
    """

    def __init__(self, text: str, *values: object) -> None:
        super().__init__(text % tuple(map(_brief, values)) if values else text)
        self.pattern = re.sub("%[rs]", "...", text) if values else text
        self.column = ""
        self.problems: Sequence[BadRecord] = [self]

    def __str__(self) -> str:
        return f"{self.column} {super().__str__()}".lstrip()

    @property
    def kind(self) -> str:
        return f"{self.column} {self.pattern}".lstrip()


def _brief(value: object) -> object:
    """The value; of one that is long the beginning, as text."""
    text = repr(value)
    return value if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}..."


class BadRow(BadRecord):
    """All that is wrong with a record."""

    def __init__(self, problems: Sequence[BadRecord]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = problems


@contextmanager
def collected(problems: list[BadRecord], column: str = "") -> Iterator[None]:
    """A BadRecord that is raised within goes to `problems`; it is about this column."""
    try:
        yield
    except BadRecord as problem:
        for one in problem.problems:
            one.column = one.column or column
            problems.append(one)


class Problem(NamedTuple):
    """A row that breaks a rule; `lost`: how many rows are lost with it, 0 for what spoils the whole file."""

    path: str | Path
    row: int
    problem: BadRecord
    lost: int


class Damage:
    """What was found in some files.

    share None: any finding is an error. Else up to this share of the rows is left out, and only what spoils a whole
    file is an error. named: rows that a message names of those with the same problem, None: all. end: its last line.
    """

    def __init__(self, share: float | None = None, named: int | None = NAMED, end: str = "") -> None:
        self.share = share
        self.named = named
        self.end = end
        self.findings: list[Problem] = []

    def __bool__(self) -> bool:
        return bool(self.findings)

    def add(self, path: str | Path, row: int, problem: BadRecord | str, lost: int = 1) -> None:
        problem = BadRecord(problem) if isinstance(problem, str) else problem
        for one in problem.problems:
            self.findings.append(Problem(path, row, one, lost))

    @contextmanager
    def of(self, path: str | Path, row: int) -> Iterator[None]:
        """A BadRecord that is raised within is added."""
        try:
            yield
        except BadRecord as problem:
            self.add(path, row, problem)

    def rows(self) -> dict[tuple[str | Path, int], Problem]:
        """(file, row) -> the first that was found there."""
        first: dict[tuple[str | Path, int], Problem] = {}
        for finding in self.findings:
            first.setdefault((finding.path, finding.row), finding)
        return first

    def counts(self, paths: Collection[str | Path] | None = None) -> dict[str, int]:
        """Rows that are lost, of these files or of all, by kind of problem."""
        counts: Counter[str] = Counter()
        for finding in self.rows().values():
            if paths is None or finding.path in paths:
                counts[finding.problem.kind] += finding.lost
        return dict(counts)

    def check(self, paths: Sequence[str | Path] = (), sound: int = 0) -> None:
        """Raises UserError when more rows of `paths` are damaged than may be left out; `sound`: how many are not."""
        if self.share is None or not all(finding.lost for finding in self.findings):
            self._raise_if_any()
            return
        counts = self.counts(paths)
        damaged = sum(counts.values())
        if damaged > self.share * (damaged + sound):
            where = ", ".join(map(str, paths))
            first = (
                f"{where}: {damaged:,} of {damaged + sound:,} rows are damaged, more than the share of {self.share:g} "
                "that may be left out; fix them, or give a higher --skip-damaged:"
            )
            raise UserError("\n".join([first, *counted(counts)]))

    def _raise_if_any(self) -> None:
        found: dict[tuple[str | Path, str], dict[str, list[int]]] = {}  # file, kind -> message -> rows
        for finding in sorted(self.findings, key=lambda finding: finding.lost > 0):
            if self.share is None or not finding.lost:
                messages = found.setdefault((finding.path, finding.problem.kind), {})
                messages.setdefault(str(finding.problem), []).append(finding.row)
        told = [
            [f"{path}: {named_rows(rows, get_unit(path), self.named)}: {text}" for text, rows in messages.items()]
            for (path, _), messages in found.items()
        ]
        lines = [*filter(None, chain(*zip_longest(*told)))]  # one of every kind before a second of any
        more = [f"and {len(lines) - SHOWN:,} more such messages"] if len(lines) > SHOWN else []
        if lines:
            raise UserError("\n".join([*lines[:SHOWN], *more, self.end]).rstrip())

    def write_report(self, path: Path) -> None:
        """A JSON object a row."""
        found = (
            {"file": str(finding.path), get_unit(finding.path): finding.row, "reason": str(finding.problem)}
            for finding in self.rows().values()
        )
        write_jsonl(path, found)


def named_rows(rows: Sequence[int], unit: str, named: int | None = NAMED) -> str:
    """`line 3`, or `lines 3, 5 and 7 more`."""
    rows = sorted(rows)
    more = f" and {len(rows) - named:,} more" if named and len(rows) > named else ""
    return f"{unit}{'s' * (len(rows) > 1)} {', '.join(map(str, rows[:named]))}{more}"


def counted(counts: Mapping[str, int]) -> list[str]:
    """A line for each reason, the most frequent first."""
    order = sorted(counts, key=lambda reason: -counts[reason])
    more = [f"{'':>8}  and {len(order) - SHOWN:,} more reasons"] if len(order) > SHOWN else []
    return [f"{counts[reason]:>8,}: {reason}" for reason in order[:SHOWN]] + more
