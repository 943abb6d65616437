"""Preferences and ratings -> the judges' parquet (convrec.judges.schema). Forms and rules: docs/how-to/judges.md."""

import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from convrec.errors import UserError
from convrec.files import folder_written_whole, write_json, write_jsonl, write_text
from convrec.judges.criteria import DEFAULTS, FILE, criteria_text, read_criteria
from convrec.judges.schema import judge_schema, label_of
from convrec.options import command
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


def convert(
    mode: str,
    inputs: Sequence[str | os.PathLike],
    out: str | os.PathLike,
    *,
    chosen_score: int | None = None,
    rejected_score: int | None = None,
    validation_share: float | None = None,
    test_share: float = 0.1,
    both_orders_in_train: bool = False,
    form: str | None = None,
    criteria: str | os.PathLike | None = None,
    seed: int = 3407,
) -> dict[str, Any]:
    """Write OUT whole or not at all and return its summary. Raises UserError for bad records or when OUT exists.

    chosen_score, rejected_score: None for the highest and the lowest. form: a key of FORMATS, None: as the columns
    tell. criteria: a YAML file, None: the defaults.
    """
    folder, paths = Path(out), [Path(path) for path in inputs]
    check_out(folder)
    shares = _shares(validation_share, test_share)
    judged_by = read_criteria(criteria, mode) if criteria else DEFAULTS[mode]
    low, high = judged_by.scores
    chosen = high if chosen_score is None else chosen_score
    rejected = low if rejected_score is None else rejected_score
    if not (low <= chosen <= high and low <= rejected <= high):
        raise UserError(f"--chosen-score {chosen}, --rejected-score {rejected}: the criteria's scores are {low}-{high}")
    records = load(paths, mode, judged_by.scores, form)
    rows, left_out = pairwise_rows(records) if mode == "pairwise" else pointwise_rows(records, chosen, rejected)
    rows, duplicates = without_duplicates([row | {"criteria": judged_by} for row in rows], mode)
    left_out += duplicates
    parts, ties = split_rows(rows, mode, shares, seed)
    left_out += ties
    if not any(parts.values()):
        raise UserError(f"{', '.join(map(str, paths))}: no row is left: {_told(left_out)}")
    if mode == "pairwise":
        parts = {name: balance_order(part, seed) for name, part in parts.items()}
        if both_orders_in_train:
            parts["train"] = both_orders(parts["train"])
    counts = Counter(one.kind for one in left_out)
    summary = {
        "mode": mode,
        "inputs": [path.name for path in paths],
        "records": len(records),
        "ties_left_out": counts["ties"],
        "identical_left_out": counts["identical"],
        "contradictory_left_out": counts["contradictory"],
        "rows": {name: len(part) for name, part in parts.items()},
        "labels": {name: _count(label_of(row, mode) for row in part) for name, part in parts.items()},
        "sources": _count(row["source"] for row in rows),
        "warnings": _warnings(rows, shares),
        "seed": seed,
    }
    with folder_written_whole(folder) as partial:
        for name, part in parts.items():
            if part:
                table = pa.Table.from_pylist(part, judge_schema(mode, judged_by))
                pq.write_table(table, partial / f"{name}.parquet")
        write_text(partial / FILE, criteria_text(judged_by, mode))
        write_jsonl(partial / "left_out.jsonl", (one._asdict() for one in left_out))
        write_json(partial / "summary.json", summary)
    if left_out:
        print(f"left out: {_told(left_out)}", file=sys.stderr)
    return summary


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


def _warnings(rows: Sequence[JudgeRow], shares: dict[str, float]) -> list[str]:
    if shares["test"] == 1 or (group := large_group(rows)) is None:
        return []
    return [f"{group[1]} of {len(rows)} rows have a query that begins alike and are in one split: {group[0][:60]!r}"]


def _count(values: Iterable[Any]) -> dict[str, int]:
    return {str(value): count for value, count in sorted(Counter(values).items())}


@command(JudgeOptions)
def main(options: JudgeOptions) -> int:
    summary = convert(**asdict(options))
    print(json.dumps(summary, indent=2, ensure_ascii=False))
    for warning in summary["warnings"]:
        print(f"warning: {warning}", file=sys.stderr)
    return 0
