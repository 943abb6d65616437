"""A study's results, small enough to keep: what each conversation's list got, and the curves. No models, no texts.

    python -m benchmarks.studies.ranks.kept keep outputs/rank_study benchmarks/studies/ranks/results/sample
    python -m benchmarks.studies.ranks.kept restore benchmarks/studies/ranks/results/sample outputs/rank_study

A study takes longer than a lent machine may live: what is kept is restored on the next one, where the other runs are
trained (`convrec matrix --only`) and all of them compared (study.py --as-far-as-it-is). It also shows more than a
table of means does. A folder of results has

rows.parquet     a row a conversation; a column `<folder of evaluations>/<evaluation>:<metric>` each, of constrained
                 lists `<folder>_constrained/...`, and restored there
curves.parquet   run, step, metric (the name that it was logged by), value
beyond.json      evaluation -> coverage and what else is not accuracy
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from benchmarks.studies.ranks.runs import BEYOND_FILE, beyond_accuracy
from convrec.base.errors import UserError
from convrec.base.files import read_json, write_json, write_table, write_text
from convrec.runs.folder import METRICS, read_metrics

KEYS = ["sample_id", "prompt_id"]
VALUES = [*(f"recall@{k}" for k in (5, 10, 15, 20)), "ndcg@20", "repeats", "num_truth"]
CURVES = (
    "actor/kl",
    "actor/kl_loss",
    "actor/entropy",
    "rank_grpo/duplicates",
    "rank_grpo/num_items",
    "rank_grpo/no_hit",
    "rank_grpo/repaired",
    "rank_grpo/zero_std/all",
    "rank_grpo/zero_std/all_ranks",
    "val/ndcg",
    "val/recall",
)
COLUMNS = ["run", "step", "metric", "value"]  # of curves.parquet
FOLDERS = ("evaluation", "evaluation_constrained", "equal_kl")


def keep(out: Path, kept: Path) -> None:
    """Add a study's results to those that are stored.

    Args:
        out: folder of the study.
        kept: folder of the stored results, which is created if it does not exist.

    Raises:
        UserError: nothing is evaluated yet, or the stored results are from other conversations.
    """
    rows = _read(kept / "rows.parquet")
    for file in sorted(file for folder in FOLDERS for file in (out / folder).glob("*/rows*.parquet")):
        further = file.stem.removeprefix("rows")  # "", "_constrained"
        name = f"{file.parent.parent.name}{further}/{file.parent.name}"
        table = pd.read_parquet(file, columns=[*KEYS, *VALUES])
        if not rows.empty and not table[KEYS].equals(rows[KEYS]):
            raise UserError(
                "study.other-conversations", f"{file}: other conversations than those of {kept / 'rows.parquet'}"
            )
        values = table[VALUES].astype("float64").rename(columns={metric: f"{name}:{metric}" for metric in VALUES})
        known = table[KEYS] if rows.empty else rows.drop(columns=values.columns, errors="ignore")
        rows = pd.concat([known, values], axis=1)
    if rows.empty:
        raise UserError("study.nothing-evaluated", f"{out}: nothing is evaluated yet")
    evaluated = sorted(file.parent.name for file in (out / "evaluation").glob("*/rows.parquet"))
    logged = [
        {"run": run, "step": entry["step"], "metric": metric, "value": entry[metric]}
        for run in evaluated
        for entry in read_metrics(out / run)
        for metric in CURVES
        if metric in entry
    ]
    before, new = _read(kept / "curves.parquet"), pd.DataFrame(logged, columns=COLUMNS)
    if not before.empty:
        new = pd.concat([before[~before["run"].isin(new["run"])], new], ignore_index=True)
    curves = new.astype({"value": "float32"})
    found = {name: beyond for name in evaluated if (beyond := beyond_accuracy(out / "evaluation" / name))}
    kept.mkdir(parents=True, exist_ok=True)
    write_json(kept / BEYOND_FILE, dict(sorted((_beyond(kept) | found).items())))
    write_table(kept / "rows.parquet", pa.Table.from_pandas(rows, preserve_index=False))
    write_table(kept / "curves.parquet", pa.Table.from_pandas(curves, preserve_index=False))


def restore(kept: Path, out: Path) -> None:
    """Write stored results as a study writes them, for runs.py.

    Args:
        kept: folder of the stored results.
        out: folder of the study; what it has already stays.

    Raises:
        UserError: there are no stored results.
    """
    rows, curves = _read(kept / "rows.parquet"), _read(kept / "curves.parquet")
    if rows.empty:
        raise UserError("study.missing-rows", f"{kept / 'rows.parquet'}: no such file. Write it with keep.")
    for name in dict.fromkeys(column.split(":")[0] for column in rows.columns if ":" in column):
        file = out / name / "rows.parquet"
        if not file.exists():
            of_one = rows[[*KEYS, *(f"{name}:{metric}" for metric in VALUES)]]
            table = of_one.rename(columns=lambda column: column.rpartition(":")[2])
            file.parent.mkdir(parents=True, exist_ok=True)
            write_table(file, pa.Table.from_pandas(table, preserve_index=False))
    for name, beyond in _beyond(kept).items():
        file = out / "evaluation" / name / BEYOND_FILE
        if not file.exists():
            write_json(file, beyond)
    for run, of_run in curves.groupby("run"):
        if not (out / str(run) / METRICS).exists():
            steps: dict[int, dict[str, Any]] = {}
            for step, metric, value in of_run[["step", "metric", "value"]].itertuples(index=False):
                steps.setdefault(int(step), {})[metric] = float(value)
            lines = [json.dumps({"step": step, "data": data}) for step, data in steps.items()]
            (out / str(run) / METRICS).mkdir(parents=True)
            write_text(out / str(run) / METRICS / "0001.jsonl", "\n".join(lines) + "\n")


def _read(file: Path) -> pd.DataFrame:
    return pd.read_parquet(file) if file.exists() else pd.DataFrame()


def _beyond(kept: Path) -> dict[str, Any]:
    file = kept / BEYOND_FILE
    return dict(read_json(file)) if file.exists() else {}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=["keep", "restore"])
    parser.add_argument("source", type=Path, help="OUT of the study, or its kept results")
    parser.add_argument("target", type=Path, help="the other one")
    options = parser.parse_args()
    try:
        (keep if options.what == "keep" else restore)(options.source, options.target)
    except UserError as error:
        print(error.as_line(), file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
