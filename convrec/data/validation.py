"""Whether a table is what its schema says: every broken row is named by its number, with the mend."""

import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from convrec.data.schema import (
    DEMONSTRATION_SCHEMA,
    RL_SCHEMA,
    SFT_SCHEMA,
    TRUTH,
    is_demonstration_table,
)
from convrec.errors import UserError

_YEAR_PATTERN = r"^\s*(1[89]\d\d|20\d\d)\s*$"
_SHOWN = 5  # rows that a message names


class TableReport(NamedTuple):
    """What validation found and let pass: rows read, and warnings to print."""

    rows: int
    warnings: list[str]


def validate_rl_table(
    path: str | os.PathLike, *, allow_empty_ground_truth: bool = False, dated: bool = True
) -> TableReport:
    """Check an RL table against a catalog with or without years (`dated`); rows are 0-based.

    Raises UserError naming file, rows and mend, also when no ground truth has a year and the catalog has, or the other
    way about: nothing would ever match. Single ground-truth years that are no year are only warned about. Rows without
    ground truth are an error in training; evaluation, which counts them and leaves them out, allows them.
    """
    return _validate_conversations(path, RL_SCHEMA, allow_empty_ground_truth, dated)


def validate_sft_table(path: str | os.PathLike) -> TableReport:
    """Check an SFT table: the RL columns and one non-empty assistant message. Ground truth may be empty here, and its
    years are not looked at: SFT reads neither. A table of other demonstrations, without titles, has neither
    `seen_titles` nor ground truth.
    """
    if is_demonstration_table(path):
        return _validate_demonstrations(path)
    return _validate_conversations(path, SFT_SCHEMA, allow_empty_ground_truth=True, dated=None)


def _validate_conversations(
    path: str | os.PathLike, schema: pa.Schema, allow_empty_ground_truth: bool, dated: bool | None
) -> TableReport:
    found = _Findings(path)
    bad_years: list[str] = []
    rows = num_pairs = without_year = 0
    for batch in _read_batches(path, schema):
        _check_message(found, rows, batch["prompt"], "prompt", "user")
        if "completion" in schema.names:
            _check_message(found, rows, batch["completion"], "completion", "assistant")
        for name in ("seen_titles", "sample_id"):
            found.add(f"`{name}` is null", rows, pc.is_null(batch[name]), "write an empty list or a stable id")
        found.add(
            "`seen_titles` holds a null",
            rows,
            _rows_with(batch["seen_titles"], pc.is_null(batch["seen_titles"].flatten())),
            "leave out titles that are not known",
        )
        truth = batch[TRUTH]
        if not allow_empty_ground_truth:
            found.add(
                "no ground truth",
                rows,
                pc.equal(pc.fill_null(pc.list_value_length(truth), 0), 0),
                "no response to such a row can earn a reward: drop these rows from the training file",
            )
        pairs = truth.flatten()
        not_pair = pc.not_equal(pc.fill_null(pc.list_value_length(pairs), 0), 2)
        found.add("ground truth that is no [title, year] pair", rows, _rows_with(truth, not_pair), "write pairs")
        if pc.any(not_pair).as_py():
            rows += batch.num_rows
            continue
        title_and_year = pairs.flatten()
        titles, years = title_and_year[0::2], title_and_year[1::2]
        blank = pc.fill_null(pc.equal(pc.utf8_length(pc.utf8_trim_whitespace(titles)), 0), True)
        found.add("a ground truth without a title", rows, _rows_with(truth, blank), "leave the pair out")
        has_year = pc.fill_null(pc.not_equal(years, ""), False)
        num_pairs += len(years)
        without_year += len(years) - (pc.sum(has_year).as_py() or 0)
        if dated is False:
            mend = 'write [title, ""], or give the catalog its years'
            problem = "a ground truth with a year, but the catalog has no years"
            found.add(problem, rows, _rows_with(truth, has_year), mend)
        is_year = pc.fill_null(pc.match_substring_regex(years, _YEAR_PATTERN), False)
        parents = pc.list_parent_indices(truth)
        for index in _true_rows(pc.invert(is_year)) if dated else ():
            bad_years.append(
                f"row {rows + parents[index].as_py()}: {titles[index].as_py()!r}, {years[index].as_py()!r}"
            )
        rows += batch.num_rows
    found.raise_if_any()
    _require_rows(path, rows)
    if dated and 0 < num_pairs == without_year:
        raise UserError(
            f"{path}: no ground truth has a year, but the catalog has years: nothing would ever match; write "
            '[title, "YYYY"], or take the catalog of these data (its years null in every row)'
        )
    return TableReport(rows, _summary(path, "a ground-truth year that is no year", bad_years))


def _validate_demonstrations(path: str | os.PathLike) -> TableReport:
    found = _Findings(path)
    rows = 0
    for batch in _read_batches(path, DEMONSTRATION_SCHEMA):
        _check_message(found, rows, batch["prompt"], "prompt", "user")
        _check_message(found, rows, batch["completion"], "completion", "assistant")
        rows += batch.num_rows
    found.raise_if_any()
    _require_rows(path, rows)
    return TableReport(rows, [])


class _Findings:
    """Rows that break a rule, collected over the batches of one file, so that one error names them all."""

    def __init__(self, path: str | os.PathLike):
        self.path = path
        self.rows_by_problem: dict[tuple[str, str], list[int]] = {}

    def add(self, problem: str, offset: int, broken: pa.Array, mend: str) -> None:
        rows = [offset + row for row in _true_rows(broken)]
        if rows:
            self.rows_by_problem.setdefault((problem, mend), []).extend(rows)

    def raise_if_any(self) -> None:
        if self.rows_by_problem:
            raise UserError(
                "\n".join(
                    f"{self.path}: {_name_rows(rows)}: {problem}; {mend}"
                    for (problem, mend), rows in self.rows_by_problem.items()
                )
            )


def _check_message(found: _Findings, offset: int, messages: pa.ListArray, column: str, role: str) -> None:
    """One message of the given role with non-blank content a row."""
    wrong_count = pc.not_equal(pc.fill_null(pc.list_value_length(messages), 0), 1)
    problem, mend = f"`{column}` is not exactly one {role} message", f'write [{{"role": "{role}", "content": ...}}]'
    found.add(problem, offset, wrong_count, mend)
    flat = messages.flatten()
    roles, contents = pc.struct_field(flat, "role"), pc.struct_field(flat, "content")
    wrong_role = pc.fill_null(pc.not_equal(roles, role), True)
    found.add(problem, offset, pc.and_(_rows_with(messages, wrong_role), pc.invert(wrong_count)), mend)
    blank = pc.fill_null(pc.equal(pc.utf8_length(pc.utf8_trim_whitespace(contents)), 0), True)
    found.add(f"`{column}` has no text", offset, _rows_with(messages, blank), "drop these rows")


def _read_batches(path: str | os.PathLike, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Batches of `schema`'s columns. Raises UserError for anything that is not such a table."""
    try:
        file = pq.ParquetFile(path)
    except FileNotFoundError:
        raise UserError(
            f"{path}: no such file; make it with `python -m data_prep.sample` (embedded data), `data_prep.reddit_v2` "
            "(the released download) or `data_prep.own` (data of your own), or set TRAIN_FILE, VAL_FILE, CATALOG_FILE"
        ) from None
    except (pa.ArrowInvalid, OSError) as error:
        raise UserError(f"{path}: not readable as parquet ({error}); write it again") from error
    with file:
        present = file.schema_arrow
        missing = [name for name in schema.names if name not in present.names]
        if missing:
            hint = (
                "make a stable id with `python -m data_prep.reddit_v2`"
                if missing == ["sample_id"]
                else "rename or add them (README, data)"
            )
            raise UserError(f"{path}: no column {', '.join(missing)}; it has {', '.join(present.names)}; {hint}")
        for name in schema.names:
            if not _compatible(present.field(name).type, schema.field(name).type):
                raise UserError(
                    f"{path}: column {name} is {present.field(name).type}, "
                    f"not {schema.field(name).type}; write it in that type"
                )
        yield from file.iter_batches(batch_size=8192, columns=schema.names)


def _compatible(present: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether `present` is `wanted`, of strings, up to large/plain offsets and the order of struct fields."""
    if pa.types.is_struct(wanted):
        return pa.types.is_struct(present) and all(
            present.get_field_index(field.name) >= 0 and _compatible(present.field(field.name).type, field.type)
            for field in wanted
        )
    if pa.types.is_list(wanted):
        is_list = pa.types.is_list(present) or pa.types.is_large_list(present)
        return is_list and _compatible(present.value_type, wanted.value_type)
    return pa.types.is_string(present) or pa.types.is_large_string(present)


def _rows_with(lists: pa.ListArray, broken_values: pa.Array) -> pa.Array:
    """Boolean per row of `lists`: whether one of its flattened values is broken."""
    broken_rows = set(pc.list_parent_indices(lists).filter(broken_values).to_pylist())
    return pa.array([row in broken_rows for row in range(len(lists))], pa.bool_())


def _true_rows(mask: pa.Array) -> list[int]:
    return pc.indices_nonzero(mask).to_pylist()


def _name_rows(rows: Sequence[int]) -> str:
    rows = sorted(rows)
    more = f" and {len(rows) - _SHOWN} more" if len(rows) > _SHOWN else ""
    return f"row{'s' if len(rows) > 1 else ''} {', '.join(map(str, rows[:_SHOWN]))}{more}"


def _summary(path: str | os.PathLike, problem: str, cases: list[str]) -> list[str]:
    if not cases:
        return []
    more = f" and {len(cases) - _SHOWN} more" if len(cases) > _SHOWN else ""
    return [f"{path}: {problem}: {'; '.join(cases[:_SHOWN])}{more}"]


def _require_rows(path: str | os.PathLike, rows: int) -> None:
    if rows == 0:
        raise UserError(f"{path}: no rows; check how the file was written")
