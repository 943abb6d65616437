"""Whether a table is what its schema says: every broken row is named by its number, with the fix."""

import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from convrec.base.errors import UserError
from convrec.data.arrow_types import batch_as, plain_type
from convrec.data.damage import Damage
from convrec.data.records import parquet_batches
from convrec.data.schema import DEMONSTRATION_SCHEMA, RL_SCHEMA, SFT_SCHEMA, TRUTH, is_demonstration_table, is_like

_YEAR_PATTERN = r"^\s*(1[89]\d\d|20\d\d)\s*$"
_SHOWN = 5  # years that a warning names
_Add = Callable[[pa.Array, str, str], None]  # rows, what is wrong with them, the fix


class TableReport(NamedTuple):
    """What validation found and let pass: rows read, and warnings to print."""

    rows: int
    warnings: list[str]


def validate_rl_table(
    path: str | os.PathLike, *, allow_empty_ground_truth: bool = False, dated: bool = True
) -> TableReport:
    """Check an RL table against a catalog with or without years (`dated`); rows are 0-based.

    Raises UserError naming file, rows and fix, also when no ground truth has a year and the catalog has, or the other
    way about: nothing would ever match. Single ground-truth years that are no year are only warned about. Rows without
    ground truth are an error in training; evaluation, which counts them and leaves them out, allows them.
    """
    damage = Damage()
    report = inspect_table(path, RL_SCHEMA, damage, allow_empty_ground_truth, dated)
    damage.check()
    return report


def validate_sft_table(path: str | os.PathLike) -> TableReport:
    """Check an SFT table: the RL columns and one non-empty assistant message. Ground truth may be empty here, and its
    years are not looked at: SFT reads neither. A table of other demonstrations, without titles, has neither
    `seen_titles` nor ground truth.
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
    """The same for a caller that leaves the broken rows out, which go to `damage`. dated None: years are not looked at.
    Raises UserError for what is wrong with the whole table."""
    path = Path(path)
    rows = _check_columns(path, schema)
    num_pairs = without_year = 0
    bad_years: list[str] = []

    def add(rows: pa.Array, problem: str, fix: str) -> None:
        for row in rows.to_pylist():
            damage.add(path, row, f"{problem}; {fix}")

    for stored_batch, numbers in parquet_batches(path, damage, schema.names):
        batch = batch_as(stored_batch, schema)
        _check_message(add, numbers, batch["prompt"], "prompt", "user")
        if "completion" in schema.names:
            _check_message(add, numbers, batch["completion"], "completion", "assistant")
        if TRUTH not in schema.names:
            continue
        for name in ("seen_titles", "sample_id"):
            add(numbers.filter(pc.is_null(batch[name])), f"`{name}` is null", "write an empty list or a stable id")
        null_titles = numbers.filter(_rows_with(batch["seen_titles"], pc.is_null(batch["seen_titles"].flatten())))
        add(null_titles, "`seen_titles` holds a null", "leave out titles that are not known")
        truth = batch[TRUTH]
        if not allow_empty_ground_truth:
            is_empty = pc.equal(pc.fill_null(pc.list_value_length(truth), 0), 0)
            fix = "no response to such a row can earn a reward: drop these rows from the training file"
            add(numbers.filter(is_empty), "no ground truth", fix)
        no_pairs = _rows_with(truth, pc.not_equal(pc.fill_null(pc.list_value_length(truth.flatten()), 0), 2))
        add(numbers.filter(no_pairs), "ground truth that is no [title, year] pair", "write pairs")
        truth = truth.filter(pc.invert(no_pairs))
        numbers = numbers.filter(pc.invert(no_pairs))
        title_and_year = truth.flatten().flatten()
        titles = title_and_year[0::2]
        years = title_and_year[1::2]
        without_title = numbers.filter(_rows_with(truth, _is_blank(titles)))
        add(without_title, "a ground truth without a title", "leave the pair out")
        has_year = pc.fill_null(pc.not_equal(years, ""), False)
        num_pairs += len(years)
        without_year += len(years) - (pc.sum(has_year).as_py() or 0)
        if dated is False:
            problem = "a ground truth with a year, but the catalog has no years"
            fix = 'write [title, ""], or give the catalog its years'
            add(numbers.filter(_rows_with(truth, has_year)), problem, fix)
        is_year = pc.fill_null(pc.match_substring_regex(years, _YEAR_PATTERN), False)
        parents = pc.list_parent_indices(truth)
        for index in pc.indices_nonzero(pc.invert(is_year)).to_pylist() if dated else ():
            row = numbers[parents[index].as_py()].as_py()
            bad_years.append(f"row {row}: {titles[index].as_py()!r}, {years[index].as_py()!r}")
    if dated and 0 < num_pairs == without_year and not damage:
        raise UserError(
            f"{path}: no ground truth has a year, but the catalog has years: nothing would ever match; write "
            '[title, "YYYY"], or take the catalog of these data (its years null in every row)'
        )
    more = f" and {len(bad_years) - _SHOWN} more" if len(bad_years) > _SHOWN else ""
    warning = f"{path}: a ground-truth year that is no year: {'; '.join(bad_years[:_SHOWN])}{more}"
    return TableReport(rows, [warning] if bad_years else [])


def _check_message(add: _Add, numbers: pa.Array, messages: pa.ListArray, column: str, role: str) -> None:
    wrong_count = pc.not_equal(pc.fill_null(pc.list_value_length(messages), 0), 1)
    flat = messages.flatten()
    roles = pc.struct_field(flat, "role")
    contents = pc.struct_field(flat, "content")
    wrong_role = _rows_with(messages, pc.fill_null(pc.not_equal(roles, role), True))
    fix = f'write [{{"role": "{role}", "content": ...}}]'
    add(numbers.filter(pc.or_(wrong_count, wrong_role)), f"`{column}` is not exactly one {role} message", fix)
    add(numbers.filter(_rows_with(messages, _is_blank(contents))), f"`{column}` has no text", "drop these rows")


def _check_columns(path: Path, schema: pa.Schema) -> int:
    """The rows of a table that has `schema`'s columns. Raises UserError for anything that is not such a table."""
    made_by = (
        "make it with `convrec data sample` (embedded data), `convrec data reddit-v2` (the released download) or "
        "`convrec data own` (data of your own), or set TRAIN_FILE, VAL_FILE, CATALOG_FILE"
    )
    fix = "rename or add them (docs/reference/files.md); `convrec data reddit-v2` makes stable ids"
    present, rows = check_parquet_columns(path, schema.names, made_by, fix)
    for name in schema.names:
        if not is_like(plain_type(present.field(name).type), schema.field(name).type, null=True):
            raise UserError(
                f"{path}: column {name} is {present.field(name).type}, "
                f"not {schema.field(name).type}; write it in that type"
            )
    return rows


def check_parquet_columns(path: Path, needed: Collection[str], made_by: str, fix: str) -> tuple[pa.Schema, int]:
    """The columns and the number of rows of a parquet file that has those needed and a row. Raises UserError, of a file
    that is not there with `made_by`, of a column with `fix`."""
    try:
        with pq.ParquetFile(path) as file:
            present = file.schema_arrow
            rows = file.metadata.num_rows
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; {made_by}") from None
    except (pa.ArrowInvalid, OSError) as error:
        raise UserError(f"{path}: not readable as parquet ({error}); write it again") from error
    if missing := [name for name in needed if name not in present.names]:
        raise UserError(f"{path}: no column {', '.join(missing)}; it has {', '.join(present.names)}; {fix}")
    if not rows:
        raise UserError(f"{path}: no rows; check how the file was written")
    return present, rows


def _is_blank(texts: pa.Array) -> pa.Array:
    return pc.fill_null(pc.equal(pc.utf8_length(pc.utf8_trim_whitespace(texts)), 0), True)


def _rows_with(lists: pa.ListArray, broken_values: pa.Array) -> pa.Array:
    """Boolean per row of `lists`: whether one of its flattened values is broken."""
    broken_rows = set(pc.list_parent_indices(lists).filter(broken_values).to_pylist())
    return pa.array([row in broken_rows for row in range(len(lists))], pa.bool_())
