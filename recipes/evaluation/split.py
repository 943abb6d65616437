"""Reading of a split and its catalog for evaluation, with checks that the two belong together."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from convrec.base.errors import UserError
from convrec.data.damage import REPORT, BadRecord, Damage, counted
from convrec.data.schema import RL_SCHEMA, TRUTH, get_truth
from convrec.data.validation import inspect_table
from convrec.inference.prompts import prompt_id
from convrec.lists.settings import ListSettings, make_matcher
from convrec.titles.catalog import Catalog, load_catalog
from convrec.titles.item import Item, format_item
from convrec.titles.matching import FUZZY, Matcher

FOREIGN_CATALOG = 0.1  # above this share of ground truth outside the catalog: a warning
WRONG_CATALOG = 0.9  # above this share: an error, since no figure would mean anything


@dataclass(frozen=True)
class Split:
    """Rows of schema.RL_SCHEMA, with the catalog and the matcher that score them.

    Attributes:
        data: the split's file.
        rows: the undamaged rows that were read.
        prompt_ids: one per row; equal conversations share one.
        catalog: of the split.
        matcher: of the catalog; the first protocol's.
        warnings: about the files; later checks add theirs.
        damaged: number in the file of each row that was left out -> reason.
    """

    data: str
    rows: list[dict[str, Any]]
    prompt_ids: list[str]
    catalog: Catalog
    matcher: Matcher
    warnings: list[str]
    damaged: Mapping[int, BadRecord]

    @property
    def prompts(self) -> dict[str, list[dict[str, str]]]:
        """Messages by prompt id, each distinct prompt once, in the order of the rows."""
        return dict(zip(self.prompt_ids, (row["prompt"] for row in self.rows), strict=True))

    @property
    def numbers(self) -> list[int]:
        """The rows' numbers in the file."""
        in_file = len(self.rows) + len(self.damaged)
        return [number for number in range(in_file) if number not in self.damaged][: len(self.rows)]

    @cached_property
    def reader(self) -> Matcher:
        """Matcher for seen titles; exact instead of `reference`, which would compare them case-sensitively.

        Cached, because callers ask for it in every row, and a matcher indexes the whole catalog.
        """
        return Matcher(self.catalog, "exact") if self.matcher.mode == "reference" else self.matcher

    def find_relevant_rows(self, rows: Iterable[Mapping[str, Any]]) -> list[list[int]]:
        """Return Matcher.find_relevant_rows of each row's ground truth."""
        return [self.matcher.find_relevant_rows(get_truth(row)) for row in rows]


def read_split(
    data: str | Path,
    catalog: str | Path,
    settings: ListSettings | None = None,
    limit: int | None = None,
    skip_damaged: float | None = None,
) -> Split:
    """Read a split with its catalog and matcher.

    Damaged rows include those with the sample_id of an earlier row, which is the key of stored results, and those
    with a ground-truth year that is not a number.

    Args:
        data: the split's file.
        catalog: the catalog's file.
        settings: of lists and matching; None: the defaults.
        limit: number of rows to read; None: all.
        skip_damaged: largest share of damaged rows to leave out; None: a damaged row is an error.

    Raises:
        UserError: A file cannot be read, rows are damaged (the message names them all), no row has ground truth, or
            the catalog holds less than a tenth of it.
    """
    if limit is not None and limit < 1:
        raise UserError("evaluation.invalid-limit", f"--limit {limit}: must be at least 1. Leave it out for all rows.")
    items = load_catalog(catalog)
    read = read_rows(data, items, skip_damaged)
    rows = read.rows[:limit]
    warnings = read.warnings
    if not any(row[TRUTH] for row in rows):
        raise UserError(
            "evaluation.no-ground-truth",
            f"{data}: no row has ground truth ({TRUTH}), so nothing can be scored. Name a split with ground truth.",
        )
    matcher = make_matcher(items, settings or ListSettings())
    if items.problems:
        warnings.append(f"{catalog}: {len(items.problems)} items cannot be matched; the first: {items.problems[0]}")
    if matcher.mode in FUZZY and (spellings := items.spellings()):
        warnings.append(
            f"{catalog}: {len(spellings)} items are another spelling of an earlier one; the first: {spellings[0]}"
        )
    warnings += _foreign_catalog(rows, matcher, data, catalog)
    return Split(
        data=str(data),
        rows=rows,
        prompt_ids=[prompt_id(row["prompt"]) for row in rows],
        catalog=items,
        matcher=matcher,
        warnings=warnings,
        damaged=read.damaged,
    )


class Rows(NamedTuple):
    """The undamaged rows of a file.

    Attributes:
        rows: their contents.
        damaged: number of each damaged row -> its first problem.
        warnings: about the file.
        ratings: users and catalog rows of all training ratings, of which the rows hold only a part
            (`read_train_ratings`); None unless the file is the training split of `convrec data ratings`.
    """

    rows: list[dict[str, Any]]
    damaged: dict[int, BadRecord]
    warnings: list[str]
    ratings: tuple[np.ndarray, np.ndarray] | None = None


NO_ROWS = Rows([], {}, [])


def read_rows(path: str | Path, catalog: Catalog, skip_damaged: float | None, scored: bool = True) -> Rows:
    """Read the undamaged rows of a file.

    Args:
        path: file with RL_SCHEMA.
        catalog: decides whether titles have years.
        skip_damaged: largest share of damaged rows to leave out; None: a damaged row is an error.
        scored: whether rows need unique ids and numeric years; training rows of baselines do not.

    Raises:
        UserError: The file cannot be read, or too many rows are damaged.
    """
    path = Path(path)
    damage = Damage(skip_damaged, named=None)
    report = inspect_table(path, RL_SCHEMA, damage, dated=catalog.dated)
    table = pq.read_table(path, columns=RL_SCHEMA.names)
    unsound = {row for _, row in damage.rows()}
    numbers = [row for row in range(report.rows) if row not in unsound]
    is_sound = np.isin(np.arange(report.rows), numbers)
    # Table.take would copy the texts into one array, which is limited to 2 GiB
    rows = dict(zip(numbers, table.filter(pa.array(is_sound)).to_pylist(), strict=True))
    if scored:
        _find_repeated_ids(path, rows, damage)
        _find_years(path, rows, catalog, damage)
    damaged = {row: finding.problem for (_, row), finding in sorted(damage.rows().items())}
    damage.check([path], report.rows - len(damaged))
    lines = [f"{path}: {len(damaged):,} damaged rows left out, named in {REPORT}:", *counted(damage.counts())]
    warnings = report.warnings + (["\n".join(lines)] if damaged else [])
    return Rows([content for row, content in rows.items() if row not in damaged], damaged, warnings)


def _find_repeated_ids(path: Path, rows: Mapping[int, Mapping[str, Any]], damage: Damage) -> None:
    first: dict[str, int] = {}
    repeated = [row for row, content in rows.items() if first.setdefault(content["sample_id"], row) != row]
    for row in repeated:
        name = rows[repeated[0]]["sample_id"]
        problem = f"`sample_id` is that of an earlier row (row {first[name]}, {name!r}); give each row its own"
        damage.add(path, row, BadRecord("evaluation.repeated-id", problem))


def _find_years(path: Path, rows: Mapping[int, Mapping[str, Any]], catalog: Catalog, damage: Damage) -> None:
    wrong = {
        row: f"{title!r}, {year!r}"
        for row, content in rows.items()
        for title, year in content[TRUTH] or []
        if catalog.normalise_year(year) is None
    }
    for row in wrong:
        problem = (
            f"a ground-truth year is not a whole number such as 1999 ({next(iter(wrong.values()))}); write the year, "
            "or drop the title"
        )
        damage.add(path, row, BadRecord("evaluation.invalid-year", problem))


def _foreign_catalog(
    rows: Sequence[dict[str, Any]], matcher: Matcher, data: str | Path, catalog: str | Path
) -> list[str]:
    pairs = [pair for row in rows for pair in get_truth(row)]
    dated = [(title, matcher.catalog.normalise_year(raw_year)) for title, raw_year in pairs]
    truths = [(title, year) for title, year in dated if year is not None]
    missing = [truth for truth in truths if matcher.identify(*truth).index < 0]
    if len(missing) <= FOREIGN_CATALOG * len(truths):
        return []
    title, year = missing[0]
    first = format_item(title, year)
    text = f"{data}: {len(missing)} of {len(truths)} ground truths are not in {catalog} (the first: {first})"
    if len(missing) > WRONG_CATALOG * len(truths):
        raise UserError(
            "evaluation.wrong-catalog", f"{text}, so it is another data set's catalog. Name the one of this split."
        )
    return [f"{text}. Is it another data set's catalog?"]


def to_items(catalog: Catalog, indices: Sequence[int]) -> list[Item | None]:
    """Convert catalog rows to items.

    Args:
        catalog: the catalog.
        indices: rows that have a year, if the catalog has years; -1 is not allowed.
    """
    return [Item(catalog.titles[index], catalog.years[index]) for index in indices]  # type: ignore[arg-type]
