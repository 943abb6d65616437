"""A split and its catalog as evaluation reads them: checked, with warnings for what looks like another data set's."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from convrec.data.schema import RL_SCHEMA, TRUTH, Pair, truth_of
from convrec.data.validation import validate_rl_table
from convrec.errors import UserError
from convrec.generation.answers import prompt_id
from convrec.lists.catalog import Catalog, load_catalog
from convrec.lists.matching import Matcher, make_matcher
from convrec.lists.ranks import Item, format_item
from convrec.lists.settings import ListSettings

FOREIGN_CATALOG = 0.1  # share of ground truth outside the catalog from which on it is worth a warning
WRONG_CATALOG = 0.9  # and from which on no figure would mean anything


@dataclass(frozen=True)
class Split:
    """Rows of schema.RL_SCHEMA with what they are scored against."""

    data: str
    rows: list[dict[str, Any]]
    prompt_ids: list[str]  # one a row; equal conversations share theirs
    catalog: Catalog
    matcher: Matcher
    warnings: list[str]

    @property
    def prompts(self) -> dict[str, list[dict[str, str]]]:
        """prompt_id -> messages, each distinct prompt once, in the order of the rows."""
        return dict(zip(self.prompt_ids, (row["prompt"] for row in self.rows), strict=True))

    def truth(self, place: int) -> list[Pair]:
        return truth_of(self.rows[place])


def read_split(
    data: str | Path,
    catalog: str | Path,
    settings: ListSettings | None = None,
    limit: int | None = None,
) -> Split:
    """The first `limit` rows of a split, with its catalog and the matcher of the settings (None: the defaults).

    Raises UserError for a table or catalog that cannot be read, two rows of one sample_id (what is stored of rows is
    found by it), a ground-truth year that is no number, a split without any ground truth, and a catalog that holds less
    than a tenth of it: another data set's.
    """
    if limit is not None and limit < 1:
        raise UserError(f"--limit {limit}: at least 1 row; leave it out for all of them")
    items = load_catalog(catalog)
    report = validate_rl_table(data, allow_empty_ground_truth=True, dated=items.dated)
    rows = pq.read_table(data, columns=RL_SCHEMA.names).to_pylist()
    _require_unique_ids(rows, data)
    rows = rows[:limit]
    if not any(row[TRUTH] for row in rows):
        raise UserError(f"{data}: no row has ground truth ({TRUTH}); there is nothing to score")
    _require_years(rows, items, data)
    matcher = make_matcher(items, settings or ListSettings())
    warnings = [*report.warnings]
    if items.problems:
        warnings.append(f"{catalog}: {len(items.problems)} entries cannot be matched, the first: {items.problems[0]}")
    warnings += _foreign_catalog(rows, matcher, data, catalog)
    return Split(str(data), rows, [prompt_id(row["prompt"]) for row in rows], items, matcher, warnings)


def _require_unique_ids(rows: Sequence[dict[str, Any]], data: str | Path) -> None:
    first: dict[str, int] = {}
    for place, row in enumerate(rows):
        before = first.setdefault(row["sample_id"], place)
        if before != place:
            raise UserError(
                f"{data}: rows {before} and {place} have the same sample_id {row['sample_id']!r}: give each row its own"
            )


def _require_years(rows: Sequence[dict[str, Any]], catalog: Catalog, data: str | Path) -> None:
    bad = [
        f"row {place}: {title!r} has the year {year!r}"
        for place, row in enumerate(rows)
        for title, year in truth_of(row)
        if catalog.year_of(year) is None
    ]
    if bad:
        more = f" and {len(bad) - 5} more" if len(bad) > 5 else ""
        raise UserError(
            f"{data}: {'; '.join(bad[:5])}{more}: a whole number such as 1999 is needed; mend the year, or leave the "
            "title out"
        )


def _foreign_catalog(
    rows: Sequence[dict[str, Any]], matcher: Matcher, data: str | Path, catalog: str | Path
) -> list[str]:
    truths = [
        (title, year)
        for row in rows
        for title, raw_year in truth_of(row)
        if (year := matcher.catalog.year_of(raw_year)) is not None
    ]
    missing = [truth for truth in truths if matcher.identify(*truth).index < 0]
    if len(missing) <= FOREIGN_CATALOG * len(truths):
        return []
    title, year = missing[0]
    first = format_item(title, year)
    text = f"{len(missing)} of {len(truths)} ground truths of {data} are not in {catalog} (the first: {first})"
    if len(missing) > WRONG_CATALOG * len(truths):
        raise UserError(f"{text}: it is another data set's catalog; give the one that belongs to the split")
    return [f"{text}: is it another data set's catalog?"]


def read_training_rows(train: str | Path, catalog: Catalog) -> list[dict[str, Any]]:
    """The training split, for baselines that learn from it."""
    validate_rl_table(train, allow_empty_ground_truth=True, dated=catalog.dated)
    return pq.read_table(train, columns=RL_SCHEMA.names).to_pylist()


def as_items(catalog: Catalog, indices: Sequence[int]) -> list[Item | None]:
    """Catalog rows as the items of a response."""
    return [Item(catalog.titles[index], catalog.years[index]) for index in indices]  # type: ignore[arg-type]
