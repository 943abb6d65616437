"""Preferences and ratings -> the judges' parquet (convrec.judges.schema). Formats: docs/how-to/judge-data.md."""

import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from convrec.base.errors import UserError
from convrec.base.files import folder_written_whole, write_json, write_jsonl, write_text
from convrec.base.options import command
from convrec.judges.criteria import DEFAULTS, FILE, Criteria, criteria_text, read_criteria
from convrec.judges.schema import get_label, judge_schema
from data_prep.judge_data.formats import load
from data_prep.judge_data.rows import (
    JudgeRow,
    LeftOut,
    balance_order,
    both_orders,
    large_group,
    pairwise_rows,
    pointwise_rows,
    split_rows,
    without_duplicates,
)
from data_prep.options.judge import JudgeOptions
from data_prep.tables import check_out

VALIDATION_SHARE = 0.1  # but where everything is test
NAMED = 3  # of what is left out for one reason, on the screen; left_out.jsonl names all


def convert(options: JudgeOptions) -> dict[str, Any]:
    """Write OUT whole or not at all and return its summary. Raises UserError for bad records or when OUT exists."""
    out = Path(options.out)
    paths = [Path(path) for path in options.inputs]
    check_out(out)
    shares = _shares(options.validation_share, options.test_share)
    criteria = read_criteria(options.criteria, options.mode) if options.criteria else DEFAULTS[options.mode]
    chosen, rejected = _comparison_scores(options, criteria)
    records = load(paths, options.mode, criteria.scores, options.form)
    if options.mode == "pairwise":
        all_rows, left_out = pairwise_rows(records)
    else:
        all_rows, left_out = pointwise_rows(records, chosen, rejected)
    rows, duplicates = without_duplicates([row | {"criteria": criteria} for row in all_rows], options.mode)
    parts, ties = split_rows(rows, options.mode, shares, options.seed)
    left_out += duplicates + ties
    if not any(parts.values()):
        raise UserError(f"{', '.join(map(str, paths))}: no row is left: {_told(left_out)}")
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
        "warnings": _warnings(rows, shares),
        "seed": options.seed,
    }
    with folder_written_whole(out) as partial:
        _write_splits(partial, parts, options.mode, criteria)
        write_text(partial / FILE, criteria_text(criteria, options.mode))
        write_jsonl(partial / "left_out.jsonl", (one._asdict() for one in left_out))
        write_json(partial / "summary.json", summary)
    if left_out:
        print(f"left out: {_told(left_out)}", file=sys.stderr)
    return summary


def _comparison_scores(options: JudgeOptions, criteria: Criteria) -> tuple[int, int]:
    """(score of a chosen response, score of a rejected one). Raises UserError for one outside of the criteria."""
    low, high = criteria.scores
    chosen = high if options.chosen_score is None else options.chosen_score
    rejected = low if options.rejected_score is None else options.rejected_score
    if not (low <= chosen <= high and low <= rejected <= high):
        raise UserError(f"--chosen-score {chosen}, --rejected-score {rejected}: the criteria's scores are {low}-{high}")
    return chosen, rejected


def _order_sides(parts: Mapping[str, Sequence[JudgeRow]], options: JudgeOptions) -> dict[str, list[JudgeRow]]:
    """The splits with the better response as A in half of the rows; `train` in both orders, where that is asked for."""
    balanced = {name: balance_order(part, options.seed) for name, part in parts.items()}
    if options.both_orders_in_train:
        balanced["train"] = both_orders(balanced["train"])
    return balanced


def _write_splits(folder: Path, parts: Mapping[str, Sequence[JudgeRow]], mode: str, criteria: Criteria) -> None:
    """Write a file for each split that has rows."""
    for name, part in parts.items():
        if part:
            table = pa.Table.from_pylist(part, judge_schema(mode, criteria))
            pq.write_table(table, folder / f"{name}.parquet")


def _shares(validation: float | None, test: float) -> dict[str, float]:
    if validation is None:
        validation = 0.0 if test == 1 else VALIDATION_SHARE
    if min(validation, test) < 0 or validation + test > 1 or (validation + test == 1 and test < 1):
        raise UserError(
            "--validation-share and --test-share: together less than 1, so that something is left to train on, or "
            "--test-share 1 for a benchmark"
        )
    return {"validation": validation, "test": test}


def _told(left_out: Sequence[LeftOut]) -> str:
    """`2 identical (in.jsonl: line 3; in.jsonl: line 9), 1 ties (in.jsonl: line 4)`."""
    told = []
    for kind, count in Counter(one.kind for one in left_out).items():
        places = list(dict.fromkeys(one.place for one in left_out if one.kind == kind))
        more = f"; {len(places) - NAMED} more" * (len(places) > NAMED)
        told.append(f"{count} {kind} ({'; '.join(places[:NAMED])}{more})")
    return ", ".join(told) or "there was none"


def _count_left_out(left_out: Iterable[LeftOut]) -> dict[str, int]:
    counts = Counter(one.kind for one in left_out)
    return {f"{kind}_left_out": counts[kind] for kind in ("ties", "identical", "contradictory")}


def _warnings(rows: Sequence[JudgeRow], shares: dict[str, float]) -> list[str]:
    group = large_group(rows)
    if shares["test"] == 1 or group is None:
        return []
    beginning, count = group
    return [f"{count} of {len(rows)} rows have a query that begins alike and are in one split: {beginning[:60]!r}"]


def _count(values: Iterable[Any]) -> dict[str, int]:
    return {str(value): count for value, count in sorted(Counter(values).items())}


@command(JudgeOptions)
def main(options: JudgeOptions) -> int:
    summary = convert(options)
    print(json.dumps(summary, indent=2, ensure_ascii=False))
    for warning in summary["warnings"]:
        print(f"warning: {warning}", file=sys.stderr)
    return 0
