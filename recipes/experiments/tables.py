"""Tables of all runs: a line for each, means over seeds, parts of the split, pairs of variants."""

import itertools
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from convrec.files import read_json, write_text
from convrec.lists.metrics import paired
from convrec.report.curves import write_csv
from convrec.same_request import differences
from recipes.evaluation.beyond_accuracy import MEASURES, figures_of
from recipes.evaluation.scoring import SCORED_WITH, metrics_of, model_line
from recipes.evaluation.slices import slice_lines
from recipes.experiments.matrix_runs import MatrixRun

# of an evaluation's settings; sha256 is of what the files held
COMPARABLE = ("data", "catalog", "sha256", *SCORED_WITH, "max_tokens", "max_prompt_tokens")
CONSTRAINED = "{} constrained gain"  # a column of table.csv
Values = Mapping[str, Any]
Column = tuple[str, Callable[[Sequence[Values], str], str], str]  # title, cell of a variant's rows, of what


def write_tables(out: Path, runs: Sequence[MatrixRun], like: str) -> None:
    """Write OUT/table.csv and OUT/table.md of all runs evaluated as this one."""
    settings = read_json(metrics_file(out, like))["settings"]
    table, _ = evaluated(runs, out, settings)
    write_csv(out / "table.csv", table)
    write_text(out / "table.md", markdown(table, max(settings["ks"])) + "\n")


def write_comparisons(out: Path, runs: Sequence[MatrixRun], like: str) -> list[str]:
    """Write OUT/slices.csv and OUT/pairs.csv of the same runs, where there is something to be in them. Returns the
    names of the runs."""
    settings = read_json(metrics_file(out, like))["settings"]
    table, left_out = evaluated(runs, out, settings)
    slices = [
        {"run": row["run"], "variant": row["variant"], "seed": row["seed"]} | line
        for row in table
        for line in slice_lines(read_json(metrics_file(out, row["run"])).get("slices", {}))
    ]
    if slices:
        write_csv(out / "slices.csv", slices)
    for name, unlike in left_out.items():
        print(f"warning: {name}: evaluated with other settings, not in the table ({unlike})", file=sys.stderr)
    if compared := pairs(table, out, max(settings["ks"]), settings["catalog_items"]):
        write_csv(out / "pairs.csv", compared)
    return [row["run"] for row in table]


def metrics_file(out: Path, name: str) -> Path:
    return out / "evaluation" / name / "metrics.json"


def evaluated(runs: Sequence[MatrixRun], out: Path, like: Values) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """table.csv's lines, one for each run with an evaluation in OUT; and of the runs evaluated unlike `like`, settings
    of an evaluation, the first one that differs."""
    table, left_out = [], {}
    for run in runs:
        if not metrics_file(out, run.name).exists():
            continue
        metrics = metrics_of(metrics_file(out, run.name).parent)
        own, other = ({key: settings.get(key) for key in COMPARABLE} for settings in (metrics["settings"], like))
        if unlike := differences(own, other):
            left_out[run.name] = unlike[0]
        else:
            table.append(row_of(run, metrics))
    return table, left_out


def row_of(run: MatrixRun, metrics: Values) -> dict[str, Any]:
    """A run's line of table.csv: means, standard errors over conversations, and the paired gain over its start."""
    return {"run": run.name, "variant": run.variant, "seed": run.seed} | model_line(metrics)


def markdown(table: Sequence[Values], k: int) -> str:
    """Variants in order: mean over seeds, standard deviation between seeds, mean gain over the start; of Recall and
    NDCG, then of what was measured beyond accuracy. Last, where there are constrained lists, what they gain over the
    free ones. What is not known (NaN) is an empty cell."""
    accuracy = [f"recall@{k}", f"ndcg@{k}"]
    beyond = [name for name in MEASURES if all(name in row for row in table)]
    tables: list[list[Column]] = [
        [column for name in names for column in ((name, _mean_cell, name), ("gain", _gain_cell, f"{name} gain"))]
        for names in (accuracy, beyond)
    ]
    if any(CONSTRAINED.format(name) in row for row in table for name in accuracy):
        tables.append([(f"{name} constrained minus free", _gain_cell, CONSTRAINED.format(name)) for name in accuracy])
    return "\n\n".join(_markdown_table(table, columns) for columns in tables if columns)


def _markdown_table(table: Sequence[Values], columns: Sequence[Column]) -> str:
    lines = ["| variant | seeds | " + " | ".join(title for title, _, _ in columns) + " |"]
    lines.append("|---" * (2 + len(columns)) + "|")
    for variant in dict.fromkeys(row["variant"] for row in table):
        rows = [row for row in table if row["variant"] == variant]
        cells = [variant, str(len(rows)), *(cell(rows, name) for _, cell, name in columns)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _mean_cell(rows: Sequence[Values], name: str) -> str:
    """Mean over the seeds and the standard deviation between them."""
    values = [row[name] for row in rows]
    if math.isnan(mean := np.mean(values)):
        return ""
    return f"{mean:.4f}" + (f" (sd {np.std(values, ddof=1):.4f})" if len(values) > 1 else "")


def _gain_cell(rows: Sequence[Values], name: str) -> str:
    """Mean over the seeds that have it, and the standard error of each."""
    rows = [row for row in rows if name in row]
    if not rows or math.isnan(mean := np.mean([row[name] for row in rows])):
        return ""
    errors = "/".join(f"{row[f'{name} se']:.4f}" for row in rows)
    return f"{mean:+.4f} (se of each {errors})"


def pairs(table: Sequence[Values], out: Path, k: int, num_items: int) -> list[dict[str, Any]]:
    """Each two variants with the same seeds, or of which the earlier has one, as a start: the later minus the earlier.

    Conversation by conversation, a conversation's value being its mean over the seeds; se and p are over conversations.
    A row that one seed lacks is left out. Differences between seeds are not in them: table.md has those. num_items:
    different items of the catalog.
    """
    names = (f"recall@{k}", f"ndcg@{k}")
    seeds: dict[str, list[str]] = {}
    sides: dict[str, list[dict[tuple[str, str], dict[str, Any]]]] = {}  # of a variant: its rows, seed by seed
    for line in table:
        rows = pq.read_table(out / "evaluation" / line["run"] / "rows.parquet").to_pylist()
        seeds.setdefault(line["variant"], []).append(line["seed"])
        sides.setdefault(line["variant"], []).append({(row["sample_id"], row["prompt_id"]): row for row in rows})
    compared = []
    for first, second in itertools.combinations(seeds, 2):
        if set(seeds[first]) != set(seeds[second]) and len(seeds[first]) > 1:
            continue
        both = [*sides[first], *sides[second]]
        shared = [key for key in both[0] if all(key in rows for rows in both)]
        shared = [key for key in shared if not math.isnan(both[0][key][names[0]])]  # rows with ground truth
        before, after = ([[rows[key] for key in shared] for rows in sides[variant]] for variant in (first, second))
        contexts = [prompt for _, prompt in shared]
        found = paired(_means(before, names), _means(after, names), [k], contexts)
        pair: dict[str, Any] = {"variant": second, "minus": first, "seeds": len(seeds[second])}
        for name in names:
            pair |= {f"{name} {what}": found[name][what] for what in ("mean", "se", "p")}
        for name, difference in figures_of(after, contexts, num_items, minus=before).items():
            pair |= {f"{name} {what}": difference[what] for what in ("mean", "se")}
        compared.append(pair)
    return compared


def _means(rows_of_seeds: Sequence[Sequence[Values]], names: Sequence[str]) -> list[dict[str, float]]:
    return [
        {name: float(np.mean([row[name] for row in rows])) for name in names}
        for rows in zip(*rows_of_seeds, strict=True)
    ]
