"""One table of all runs: a line for each, means over seeds, parts of the split, pairs of variants."""

import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from convrec.files import read_json, write_text
from convrec.report.curves import write_csv
from recipes.evaluation.beyond_accuracy import MEASURES
from recipes.evaluation.scoring import SCORED_WITH, model_line
from recipes.evaluation.slices import slice_lines
from recipes.experiments.matrix_file import Run
from recipes.experiments.pairs import pairs

# of an evaluation's settings; sha256 is of what the files held
COMPARABLE = ("data", "catalog", "sha256", *SCORED_WITH, "max_tokens", "max_prompt_tokens")
CONSTRAINED = "{} constrained gain"  # a column of table.csv
Column = tuple[str, Callable[[Sequence[Mapping[str, Any]], str], str], str]  # title, cell of a variant's rows, of what


def row_of(run: Run, metrics: Mapping[str, Any]) -> dict[str, Any]:
    """A run's line of table.csv: means, standard errors over conversations, and the paired gain over its start."""
    return {"run": run.name, "variant": run.variant, "seed": run.variables["SEED"]} | model_line(metrics)


def markdown(table: Sequence[Mapping[str, Any]], k: int) -> str:
    """Variants in order: mean over seeds, standard deviation between seeds, mean gain over the start; of Recall and
    NDCG, then of what was measured beyond accuracy. Last, where there are constrained lists, what they gain over the
    free ones. What is not known (NaN) is an empty cell."""
    accuracy = [f"recall@{k}", f"ndcg@{k}"]
    beyond = [name for name in MEASURES if all(name in row for row in table)]
    tables = [[column for name in names for column in _with_gain(name)] for names in (accuracy, beyond)]
    if any(CONSTRAINED.format(name) in row for row in table for name in accuracy):
        tables.append([(f"{name} constrained minus free", _gain_cell, CONSTRAINED.format(name)) for name in accuracy])
    return "\n\n".join(_markdown_table(table, columns) for columns in tables if columns)


def _with_gain(name: str) -> list[Column]:
    return [(name, _mean_cell, name), ("gain", _gain_cell, f"{name} gain")]


def _markdown_table(table: Sequence[Mapping[str, Any]], columns: Sequence[Column]) -> str:
    lines = ["| variant | seeds | " + " | ".join(title for title, _, _ in columns) + " |"]
    lines.append("|---" * (2 + len(columns)) + "|")
    for variant in dict.fromkeys(row["variant"] for row in table):
        rows = [row for row in table if row["variant"] == variant]
        cells = [variant, str(len(rows)), *(cell(rows, name) for _, cell, name in columns)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _mean_cell(rows: Sequence[Mapping[str, Any]], name: str) -> str:
    """Mean over the seeds and the standard deviation between them."""
    values = [row[name] for row in rows]
    if math.isnan(mean := np.mean(values)):
        return ""
    return f"{mean:.4f}" + (f" (sd {np.std(values, ddof=1):.4f})" if len(values) > 1 else "")


def _gain_cell(rows: Sequence[Mapping[str, Any]], name: str) -> str:
    """Mean over the seeds that have it, and the standard error of each."""
    rows = [row for row in rows if name in row]
    if not rows or math.isnan(mean := np.mean([row[name] for row in rows])):
        return ""
    errors = "/".join(f"{row[f'{name} se']:.4f}" for row in rows)
    return f"{mean:+.4f} (se of each {errors})"


def evaluated(runs: Sequence[Run], out: Path, like: Mapping[str, Any]) -> tuple[list[dict[str, Any]], list[str]]:
    """table.csv's lines, one for each run with an evaluation in OUT; and the runs left out, evaluated unlike `like`.

    like: settings of an evaluation.
    """
    table, left_out = [], []
    for run in runs:
        file = out / "evaluation" / run.name / "metrics.json"
        if not file.exists():
            continue
        metrics = json.loads(file.read_text(encoding="utf-8"), object_hook=_with_nan)
        if any(metrics["settings"].get(key) != like.get(key) for key in COMPARABLE):
            left_out.append(run.name)
        else:
            table.append(row_of(run, metrics))
    return table, left_out


def _with_nan(value: dict[str, Any]) -> dict[str, Any]:
    """JSON's null back to what it stood for."""
    return {key: math.nan if inner is None and key in ("mean", "se", "p") else inner for key, inner in value.items()}


def write_tables(out: Path, runs: Sequence[Run], like: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Write OUT/table.csv and OUT/table.md of all runs evaluated as `like`; returns table.csv's lines."""
    table, _ = evaluated(runs, out, like)
    write_csv(out / "table.csv", table)
    write_text(out / "table.md", markdown(table, max(like["ks"])) + "\n")
    return table


def write_comparisons(out: Path, runs: Sequence[Run], like: Mapping[str, Any]) -> None:
    """Write OUT/slices.csv and OUT/pairs.csv of the same runs, where there is something to be in them."""
    table, left_out = evaluated(runs, out, like)
    of_slices = [
        {"run": row["run"], "variant": row["variant"], "seed": row["seed"]} | line
        for row in table
        for line in slice_lines(read_json(out / "evaluation" / row["run"] / "metrics.json").get("slices", {}))
    ]
    if of_slices:
        write_csv(out / "slices.csv", of_slices)
    if left_out:
        print(f"warning: {', '.join(left_out)}: evaluated with other settings, not in the table", file=sys.stderr)
    if differences := pairs(table, out, max(like["ks"]), like["catalog_items"]):
        write_csv(out / "pairs.csv", differences)
