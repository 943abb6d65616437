"""Convert preferences and ratings to the judges' parquet (convrec.judges.schema). Rules: docs/how-to/judge-data.md."""

import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from convrec.base.errors import UserError
from convrec.base.files import atomic_write_folder, write_json, write_jsonl, write_text
from convrec.base.options import command
from convrec.judges.criteria import DEFAULTS, FILE, Criteria, format_criteria, read_criteria
from convrec.judges.schema import get_label, judge_schema
from data_prep.judge_data.formats import load_records
from data_prep.judge_data.rows import (
    JudgeRow,
    LeftOut,
    add_swapped_rows,
    balance_order,
    drop_duplicates,
    find_large_group,
    make_pairwise_rows,
    make_pointwise_rows,
    split_rows,
)
from data_prep.options.judge import JudgeOptions
from data_prep.tables import check_out

VALIDATION_SHARE = 0.1  # 0 if everything is test
MAX_EXAMPLES = 3  # places shown per reason for leaving records out; left_out.jsonl has all


def convert(options: JudgeOptions) -> dict[str, Any]:
    """Convert the files and write --out; it appears as a whole or not at all.

    Args:
        options: see `convrec data judge --help`.

    Returns:
        The content of summary.json.

    Raises:
        UserError: Records are damaged, no row is left, or --out exists.
    """
    out = Path(options.out)
    paths = [Path(path) for path in options.inputs]
    check_out(out)
    shares = _read_shares(options.validation_share, options.test_share)
    criteria = read_criteria(options.criteria, options.mode) if options.criteria else DEFAULTS[options.mode]
    chosen, rejected = _comparison_scores(options, criteria)
    records = load_records(paths, options.mode, criteria.scores, options.form)
    if options.mode == "pairwise":
        all_rows, left_out = make_pairwise_rows(records)
    else:
        all_rows, left_out = make_pointwise_rows(records, chosen, rejected)
    rows, duplicates = drop_duplicates([row | {"criteria": criteria} for row in all_rows], options.mode)
    parts, ties = split_rows(rows, options.mode, shares, options.seed)
    left_out += duplicates + ties
    if not any(parts.values()):
        raise UserError(
            "preferences.none-left", f"{', '.join(map(str, paths))}: no row is left: {_describe_left_out(left_out)}"
        )
    if options.mode == "pairwise":
        parts = _order_sides(parts, options)
    summary = {
        "mode": options.mode,
        "inputs": [path.name for path in paths],
        "records": len(records),
        **_count_left_out(left_out),
        "rows": {name: len(part) for name, part in parts.items()},
        "labels": {name: _count(get_label(row, options.mode) for row in part) for name, part in parts.items()},
        "sources": _count(row["source"] for row in rows),
        "warnings": _make_warnings(rows, shares),
        "seed": options.seed,
    }
    with atomic_write_folder(out) as partial:
        _write_splits(partial, parts, options.mode, criteria)
        write_text(partial / FILE, format_criteria(criteria, options.mode))
        write_jsonl(partial / "left_out.jsonl", (entry._asdict() for entry in left_out))
        write_json(partial / "summary.json", summary)
    if left_out:
        print(f"left out: {_describe_left_out(left_out)}", file=sys.stderr)
    return summary


def _comparison_scores(options: JudgeOptions, criteria: Criteria) -> tuple[int, int]:
    """Return the scores of a chosen and a rejected response. Raises UserError for one outside of the criteria."""
    low, high = criteria.scores
    chosen = high if options.chosen_score is None else options.chosen_score
    rejected = low if options.rejected_score is None else options.rejected_score
    if not (low <= chosen <= high and low <= rejected <= high):
        raise UserError(
            "preferences.score-out-of-range",
            f"--chosen-score {chosen}, --rejected-score {rejected}: the criteria's scores are {low}-{high}",
        )
    return chosen, rejected


def _order_sides(parts: Mapping[str, Sequence[JudgeRow]], options: JudgeOptions) -> dict[str, list[JudgeRow]]:
    """Put the better response first in half of the rows of each split; write `train` in both orders if requested."""
    balanced = {name: balance_order(part, options.seed) for name, part in parts.items()}
    if options.both_orders_in_train:
        balanced["train"] = add_swapped_rows(balanced["train"])
    return balanced


def _write_splits(folder: Path, parts: Mapping[str, Sequence[JudgeRow]], mode: str, criteria: Criteria) -> None:
    """Write a file for each split that has rows."""
    for name, part in parts.items():
        if part:
            table = pa.Table.from_pylist(part, judge_schema(mode, criteria))
            pq.write_table(table, folder / f"{name}.parquet")


def _read_shares(validation: float | None, test: float) -> dict[str, float]:
    if validation is None:
        validation = 0.0 if test == 1 else VALIDATION_SHARE
    if min(validation, test) < 0 or validation + test > 1 or (validation + test == 1 and test < 1):
        raise UserError(
            "preferences.shares-too-large",
            f"--validation-share {validation:g} and --test-share {test:g}: leave nothing for train; give shares that "
            "sum to less than 1, or --test-share 1 for a benchmark",
        )
    return {"validation": validation, "test": test}


def _describe_left_out(left_out: Sequence[LeftOut]) -> str:
    """Return `2 identical (in.jsonl: line 3; in.jsonl: line 9), 1 ties (in.jsonl: line 4)`."""
    parts = []
    for kind, count in Counter(entry.kind for entry in left_out).items():
        places = list(dict.fromkeys(entry.place for entry in left_out if entry.kind == kind))
        more = f"; {len(places) - MAX_EXAMPLES} more" * (len(places) > MAX_EXAMPLES)
        parts.append(f"{count} {kind} ({'; '.join(places[:MAX_EXAMPLES])}{more})")
    return ", ".join(parts) or "the files have no record"


def _count_left_out(left_out: Iterable[LeftOut]) -> dict[str, int]:
    counts = Counter(entry.kind for entry in left_out)
    return {f"{kind}_left_out": counts[kind] for kind in ("ties", "identical", "contradictory")}


def _make_warnings(rows: Sequence[JudgeRow], shares: dict[str, float]) -> list[str]:
    group = find_large_group(rows)
    if shares["test"] == 1 or group is None:
        return []
    beginning, count = group
    return [
        f"{count} of {len(rows)} rows have queries with the same beginning and are in one split: {beginning[:60]!r}"
    ]


def _count(values: Iterable[Any]) -> dict[str, int]:
    return {str(value): count for value, count in sorted(Counter(values).items())}


@command(JudgeOptions)
def main(options: JudgeOptions) -> int:
    """Convert preferences or ratings; return the exit status."""
    summary = convert(options)
    print(json.dumps(summary, indent=2, ensure_ascii=False))
    for warning in summary["warnings"]:
        print(f"warning: {warning}", file=sys.stderr)
    return 0
