"""Check tables against their schema: every invalid row is reported with its number and the fix."""

import os
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from convrec.base.errors import UserError
from convrec.data.arrow_types import cast_batch, to_plain_type
from convrec.data.damage import BadRecord, Damage
from convrec.data.records import parquet_batches
from convrec.data.schema import DEMONSTRATION_SCHEMA, RL_SCHEMA, SFT_SCHEMA, TRUTH, is_demonstration_table, is_like

_YEAR_PATTERN = r"^\s*(1[89]\d\d|20\d\d)\s*$"
_MAX_YEARS = 5  # in a warning
_Add = Callable[[pa.Array, BadRecord], None]  # rows, and their problem


class TableReport(NamedTuple):
    """The number of rows of a valid table, and warnings to print."""

    rows: int
    warnings: list[str]


def validate_rl_table(
    path: str | os.PathLike, *, allow_empty_ground_truth: bool = False, dated: bool = True
) -> TableReport:
    """Check an RL table; rows count from 0.

    Args:
        path: the table.
        allow_empty_ground_truth: whether rows may lack ground truth: evaluation counts and skips them, training cannot.
        dated: whether the catalog has years.

    Returns:
        The number of rows, and warnings about single ground-truth years that are not years.

    Raises:
        UserError: rows or columns are invalid, or only one of catalog and ground truth has years, so that nothing
            would ever match.
    """
    damage = Damage()
    report = inspect_table(path, RL_SCHEMA, damage, allow_empty_ground_truth, dated)
    damage.check()
    return report


def validate_sft_table(path: str | os.PathLike) -> TableReport:
    """Check an SFT table: the RL columns plus one non-empty assistant message.

    Ground truth may be empty and its years are not checked, because SFT reads neither. Demonstrations without titles
    have neither `seen_titles` nor ground truth.

    Raises:
        UserError: rows or columns are invalid.
    """
    damage = Damage()
    report = inspect_table(path, DEMONSTRATION_SCHEMA if is_demonstration_table(path) else SFT_SCHEMA, damage)
    damage.check()
    return report


def inspect_table(
    path: str | os.PathLike,
    schema: pa.Schema,
    damage: Damage,
    allow_empty_ground_truth: bool = True,
    dated: bool | None = None,
) -> TableReport:
    """Check a table and collect its invalid rows, for a caller that may skip them.

    Args:
        path: the table.
        schema: the columns that it needs.
        damage: collects invalid rows.
        allow_empty_ground_truth: whether rows may lack ground truth.
        dated: whether the catalog has years; None: years are not checked.

    Returns:
        The number of rows, and warnings.

    Raises:
        UserError: the whole table is invalid.
    """
    path = Path(path)
    rows = _check_columns(path, schema)
    years = _TruthYears()

    def add(rows: pa.Array, problem: BadRecord) -> None:
        for row in rows.to_pylist():
            damage.add(path, row, problem)

    for stored_batch, numbers in parquet_batches(path, damage, schema.names):
        batch = cast_batch(stored_batch, schema)
        _check_message(add, numbers, batch["prompt"], "prompt", "user")
        if "completion" in schema.names:
            _check_message(add, numbers, batch["completion"], "completion", "assistant")
        if TRUTH in schema.names:
            _check_titles_and_ids(add, numbers, batch)
            if not allow_empty_ground_truth:
                _check_truth_exists(add, numbers, batch[TRUTH])
            _check_truth(add, numbers, batch[TRUTH], dated, years)
    if dated and 0 < years.num_pairs == years.num_empty and not damage:
        raise UserError(
            "table.missing-years",
            f"{path}: no ground truth has a year, but the catalog has years, so nothing would ever match. Write "
            '[title, "YYYY"], or use the catalog of this data (years null in every row)',
        )
    return TableReport(rows, years.describe_invalid(path))


@dataclass
class _TruthYears:
    """The years of a table's ground truth.

    Attributes:
        num_pairs: number of pairs of a title and a year.
        num_empty: number of pairs without a year.
        invalid: years that are none, if the catalog has years; each with its row and title.
    """

    num_pairs: int = 0
    num_empty: int = 0
    invalid: list[str] = field(default_factory=list)

    def describe_invalid(self, path: Path) -> list[str]:
        """Return a warning about invalid years, if there are any."""
        if not self.invalid:
            return []
        num_left_out = len(self.invalid) - _MAX_YEARS
        more = f" and {num_left_out} more" if num_left_out > 0 else ""
        return [f"{path}: invalid ground-truth years: {'; '.join(self.invalid[:_MAX_YEARS])}{more}"]


def _check_titles_and_ids(add: _Add, numbers: pa.Array, batch: pa.RecordBatch) -> None:
    for name in ("seen_titles", "sample_id"):
        problem = BadRecord("table.null", f"`{name}` is null; write an empty list or a stable id")
        add(numbers.filter(pc.is_null(batch[name])), problem)
    has_null_title = _find_rows(batch["seen_titles"], pc.is_null(batch["seen_titles"].flatten()))
    problem = BadRecord("table.null-title", "`seen_titles` contains null; omit unknown titles")
    add(numbers.filter(has_null_title), problem)


def _check_truth_exists(add: _Add, numbers: pa.Array, truth: pa.ListArray) -> None:
    is_empty = pc.equal(pc.fill_null(pc.list_value_length(truth), 0), 0)
    problem = BadRecord(
        "table.no-ground-truth",
        "no ground truth; no response to such a row can earn a reward: drop these rows from the training file",
    )
    add(numbers.filter(is_empty), problem)


def _check_truth(add: _Add, numbers: pa.Array, truth: pa.ListArray, dated: bool | None, years: _TruthYears) -> None:
    """Check ground truths, and add their years to those of the table."""
    has_other_length = _find_rows(truth, pc.not_equal(pc.fill_null(pc.list_value_length(truth.flatten()), 0), 2))
    problem = BadRecord("table.not-a-pair", "a ground truth is not a [title, year] pair; write pairs")
    add(numbers.filter(has_other_length), problem)
    truth = truth.filter(pc.invert(has_other_length))
    numbers = numbers.filter(pc.invert(has_other_length))

    title_and_year = truth.flatten().flatten()
    titles = title_and_year[0::2]
    found_years = title_and_year[1::2]
    problem = BadRecord("table.no-title", "a ground truth has no title; remove the pair")
    add(numbers.filter(_find_rows(truth, _is_blank(titles))), problem)

    has_year = pc.fill_null(pc.not_equal(found_years, ""), False)
    years.num_pairs += len(found_years)
    years.num_empty += len(found_years) - (pc.sum(has_year).as_py() or 0)
    if dated is False:
        problem = BadRecord(
            "table.unexpected-year",
            'a ground truth has a year, but the catalog has no years; write [title, ""], or add years to the catalog',
        )
        add(numbers.filter(_find_rows(truth, has_year)), problem)
    if dated:
        is_year = pc.fill_null(pc.match_substring_regex(found_years, _YEAR_PATTERN), False)
        parents = pc.list_parent_indices(truth)
        for pair in pc.indices_nonzero(pc.invert(is_year)).to_pylist():
            row = numbers[parents[pair].as_py()].as_py()
            years.invalid.append(f"row {row}: {titles[pair].as_py()!r}, {found_years[pair].as_py()!r}")


def _check_message(add: _Add, numbers: pa.Array, messages: pa.ListArray, column: str, role: str) -> None:
    wrong_count = pc.not_equal(pc.fill_null(pc.list_value_length(messages), 0), 1)
    flat = messages.flatten()
    roles = pc.struct_field(flat, "role")
    contents = pc.struct_field(flat, "content")
    wrong_role = _find_rows(messages, pc.fill_null(pc.not_equal(roles, role), True))
    not_one = BadRecord(
        "table.not-one-message",
        f'`{column}` is not exactly one {role} message; write [{{"role": "{role}", "content": ...}}]',
    )
    add(numbers.filter(pc.or_(wrong_count, wrong_role)), not_one)
    blank = BadRecord("table.no-text", f"`{column}` has no text; drop these rows")
    add(numbers.filter(_find_rows(messages, _is_blank(contents))), blank)


def _check_columns(path: Path, schema: pa.Schema) -> int:
    """Check that a table has the columns of `schema`, and return its number of rows."""
    how_to_make = (
        "make it with `convrec data sample` (embedded data), `convrec data reddit-v2` (the released download) or "
        "`convrec data own` (your own data), or set TRAIN_FILE, VAL_FILE, CATALOG_FILE"
    )
    fix = "rename or add them (docs/reference/files.md); `convrec data reddit-v2` makes stable ids"
    columns, rows = check_parquet_columns(path, schema.names, how_to_make, fix)
    for name in schema.names:
        if not is_like(to_plain_type(columns.field(name).type), schema.field(name).type, null=True):
            raise UserError(
                "table.wrong-column-type",
                f"{path}: column {name} is {columns.field(name).type}, expected {schema.field(name).type}",
            )
    return rows


def check_parquet_columns(path: Path, needed: Collection[str], how_to_make: str, fix: str) -> tuple[pa.Schema, int]:
    """Check that a parquet file has the needed columns and at least one row.

    Args:
        path: the file.
        needed: names of the columns.
        how_to_make: what to do about a missing file, for the error message.
        fix: what to do about a missing column, for the error message.

    Returns:
        Its schema and number of rows.

    Raises:
        UserError: the file is missing, unreadable or empty, or lacks a column.
    """
    try:
        with pq.ParquetFile(path) as file:
            schema = file.schema_arrow
            rows = file.metadata.num_rows
    except FileNotFoundError:
        raise UserError("table.missing-file", f"{path}: no such file; {how_to_make}") from None
    except (pa.ArrowInvalid, OSError) as error:
        raise UserError(
            "table.unreadable-parquet", f"{path}: not readable as parquet ({error}). Write it again"
        ) from error
    if missing := [name for name in needed if name not in schema.names]:
        raise UserError(
            "table.missing-column", f"{path}: no column {', '.join(missing)}; it has {', '.join(schema.names)}; {fix}"
        )
    if not rows:
        raise UserError("table.no-rows", f"{path}: no rows; check how the file was written")
    return schema, rows


def _is_blank(texts: pa.Array) -> pa.Array:
    return pc.fill_null(pc.equal(pc.utf8_length(pc.utf8_trim_whitespace(texts)), 0), True)


def _find_rows(lists: pa.ListArray, is_invalid: pa.Array) -> pa.Array:
    """Return a boolean per row of `lists`: whether one of its flattened values is invalid."""
    invalid_rows = set(pc.list_parent_indices(lists).filter(is_invalid).to_pylist())
    return pa.array([row in invalid_rows for row in range(len(lists))], pa.bool_())
