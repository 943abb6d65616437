"""A split and its catalog as evaluation reads them: checked, with warnings for what looks like another data set's."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from convrec.base.errors import UserError
from convrec.data.damage import REPORT, Damage, counted
from convrec.data.schema import RL_SCHEMA, TRUTH, get_truth
from convrec.data.validation import inspect_table
from convrec.inference.prompts import prompt_id
from convrec.lists.settings import ListSettings, make_matcher
from convrec.titles.catalog import Catalog, load_catalog
from convrec.titles.item import Item, format_item
from convrec.titles.matching import FUZZY, Matcher

FOREIGN_CATALOG = 0.1  # above this share of ground truth outside the catalog there is a warning
WRONG_CATALOG = 0.9  # above this one no figure would mean anything


@dataclass(frozen=True)
class Split:
    """Rows of schema.RL_SCHEMA with what they are scored against."""

    data: str
    rows: list[dict[str, Any]]
    prompt_ids: list[str]  # one a row; equal conversations share theirs
    catalog: Catalog
    matcher: Matcher
    warnings: list[str]
    damaged: Mapping[int, str]  # number of a row of the file that was left out -> reason

    @property
    def prompts(self) -> dict[str, list[dict[str, str]]]:
        """prompt_id -> messages, each distinct prompt once, in the order of the rows."""
        return dict(zip(self.prompt_ids, (row["prompt"] for row in self.rows), strict=True))

    @property
    def numbers(self) -> list[int]:
        """The rows' numbers in the file."""
        in_file = len(self.rows) + len(self.damaged)
        return [number for number in range(in_file) if number not in self.damaged][: len(self.rows)]

    @property
    def reader(self) -> Matcher:
        """By which seen titles are found: `reference` compares them letter by letter, a reader in any case."""
        return Matcher(self.catalog, "exact") if self.matcher.mode == "reference" else self.matcher

    def wanted_rows(self, rows: Iterable[Mapping[str, Any]]) -> list[list[int]]:
        """Of each row Matcher.wanted_rows."""
        return [self.matcher.wanted_rows(get_truth(row)) for row in rows]


def read_split(
    data: str | Path,
    catalog: str | Path,
    settings: ListSettings | None = None,
    limit: int | None = None,
    skip_damaged: float | None = None,
) -> Split:
    """The first `limit` rows of a split, with its catalog and the matcher of the settings (None: the defaults).

    Raises UserError for a table or catalog that cannot be read, a split without any ground truth, and a catalog that
    holds less than a tenth of it: another data set's. Damaged rows (also those with an earlier one's sample_id, by
    which what is stored of rows is found, and with a ground-truth year that is no number) are an error that names them
    all, or, with `skip_damaged`, are left out up to this share of the rows.
    """
    if limit is not None and limit < 1:
        raise UserError(f"--limit {limit}: at least 1 row; leave it out for all of them")
    items = load_catalog(catalog)
    read = read_rows(data, items, skip_damaged)
    rows = read.rows[:limit]
    warnings = read.warnings
    if not any(row[TRUTH] for row in rows):
        raise UserError(f"{data}: no row has ground truth ({TRUTH}); there is nothing to score")
    matcher = make_matcher(items, settings or ListSettings())
    if items.problems:
        warnings.append(f"{catalog}: {len(items.problems)} entries cannot be matched, the first: {items.problems[0]}")
    if matcher.mode in FUZZY and (spellings := items.spellings()):
        warnings.append(f"{catalog}: {len(spellings)} entries in another spelling, the first: {spellings[0]}")
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
    """Sound rows of a file, the numbers of the others with the reason, and warnings.

    ratings: of training rows from `convrec data ratings`, the users and catalog rows of all training ratings, of which
    a row names a few (`read_train_ratings`).
    """

    rows: list[dict[str, Any]]
    damaged: dict[int, str]
    warnings: list[str]
    ratings: tuple[np.ndarray, np.ndarray] | None = None


NO_ROWS = Rows([], {}, [])


def read_rows(path: str | Path, catalog: Catalog, skip_damaged: float | None, scored: bool = True) -> Rows:
    """scored: whether the rows need ids of their own and years that are numbers, which baselines do not."""
    path = Path(path)
    damage = Damage(skip_damaged, named=None)
    report = inspect_table(path, RL_SCHEMA, damage, dated=catalog.dated)
    table = pq.read_table(path, columns=RL_SCHEMA.names)
    unsound = {row for _, row in damage.rows()}
    numbers = [row for row in range(report.rows) if row not in unsound]
    is_sound = np.isin(np.arange(report.rows), numbers)
    # not Table.take, which copies the texts into one array, of 2 GiB at most
    rows = dict(zip(numbers, table.filter(pa.array(is_sound)).to_pylist(), strict=True))
    if scored:
        _find_repeated_ids(path, rows, damage)
        _find_years(path, rows, catalog, damage)
    damaged = {row: str(finding.problem) for (_, row), finding in sorted(damage.rows().items())}
    damage.check([path], report.rows - len(damaged))
    lines = [f"{path}: {len(damaged):,} damaged rows left out, named in {REPORT}:", *counted(damage.counts())]
    warnings = report.warnings + (["\n".join(lines)] if damaged else [])
    return Rows([content for row, content in rows.items() if row not in damaged], damaged, warnings)


def _find_repeated_ids(path: Path, rows: Mapping[int, Mapping[str, Any]], damage: Damage) -> None:
    first: dict[str, int] = {}
    repeated = [row for row, content in rows.items() if first.setdefault(content["sample_id"], row) != row]
    for row in repeated:
        name = rows[repeated[0]]["sample_id"]
        told = f"`sample_id` is that of an earlier row (row {first[name]}, {name!r}); give each row its own"
        damage.add(path, row, told)


def _find_years(path: Path, rows: Mapping[int, Mapping[str, Any]], catalog: Catalog, damage: Damage) -> None:
    wrong = {
        row: f"{title!r}, {year!r}"
        for row, content in rows.items()
        for title, year in content[TRUTH] or []
        if catalog.normalise_year(year) is None
    }
    for row in wrong:
        problem = f"a ground-truth year that is no whole number such as 1999 ({next(iter(wrong.values()))})"
        damage.add(path, row, f"{problem}; write the year, or leave the title out")


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
    text = f"{len(missing)} of {len(truths)} ground truths of {data} are not in {catalog} (the first: {first})"
    if len(missing) > WRONG_CATALOG * len(truths):
        raise UserError(f"{text}: it is another data set's catalog; give the one that belongs to the split")
    return [f"{text}: is it another data set's catalog?"]


def as_items(catalog: Catalog, indices: Sequence[int]) -> list[Item | None]:
    return [Item(catalog.titles[index], catalog.years[index]) for index in indices]  # type: ignore[arg-type]
