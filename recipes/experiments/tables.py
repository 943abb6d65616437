"""Tables of all runs: a line for each, means over seeds, parts of the split, pairs of variants."""

import itertools
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from convrec.base.files import read_json, write_text
from convrec.base.same_request import differences
from convrec.lists.metrics import paired
from convrec.report.curves import write_csv
from convrec.runs.folder import METRICS
from convrec.runs.starts import read_starts
from recipes.evaluation.beyond_accuracy import MEASURES, compute_figures
from recipes.evaluation.scoring import OF_MODEL, SCORED_WITH, load_metrics, model_line
from recipes.evaluation.slices import slice_lines
from recipes.experiments.matrix_runs import MatrixRun

# of an evaluation's settings; sha256 is of what the files held
COMPARABLE = ("data", "catalog", "sha256", *SCORED_WITH, "max_tokens", "max_prompt_tokens")
HOURS = "training hours"  # a column of table.csv
Values = Mapping[str, Any]
RowsOfSeed = dict[tuple[str, str], dict[str, Any]]  # (sample, prompt) -> row of an evaluation
Column = tuple[str, Callable[[Sequence[Values], str], str], str]  # title, cell of a variant's rows, of what


def write_tables(out: Path, runs: Sequence[MatrixRun], like: str) -> list[str]:
    """Write OUT/table.csv, .md and .png of the baselines and of all runs evaluated as this one, of these slices.csv and
    pairs.csv too, where there is something to be in them. Returns the names of the runs."""
    from convrec.report.drawing import write_bars  # matplotlib

    metrics = load_metrics(metrics_file(out, like).parent)
    settings = metrics["settings"]
    k = max(metrics["settings"]["ks"])
    of_runs = evaluated(runs, out, settings)
    baselines = [name for name in metrics["results"][settings["protocols"][0]] if name not in OF_MODEL]
    table = [{"run": name, "variant": name, "seed": ""} | model_line(metrics, name) for name in baselines] + of_runs
    write_text(out / "table.md", markdown(table, k) + "\n")
    names = [f"{metric}@{k}{held}" for held in ("", " constrained") for metric in ("recall", "ndcg")]
    write_bars(out / "table.png", table, [name for name in names if any(name in row for row in table)])
    slices = [
        {"run": row["run"], "variant": row["variant"], "seed": row["seed"]} | line
        for row in of_runs
        for line in slice_lines(read_json(metrics_file(out, row["run"])).get("slices", {}))
    ]
    compared = pairs(of_runs, out, k, settings["catalog_items"])
    for name, lines in {"table": table, "slices": slices, "pairs": compared}.items():
        if lines:
            write_csv(out / f"{name}.csv", lines)
    return [row["run"] for row in of_runs]


def metrics_file(out: Path, name: str) -> Path:
    return out / "evaluation" / name / "metrics.json"


def evaluated(runs: Sequence[MatrixRun], out: Path, like: Values) -> list[dict[str, Any]]:
    """table.csv's lines, one for each run with an evaluation in OUT; of a run evaluated unlike `like`, settings of an
    evaluation, a warning says what differs."""
    table = []
    for run in runs:
        if not metrics_file(out, run.name).exists():
            continue
        metrics = load_metrics(metrics_file(out, run.name).parent)
        own, other = ({key: settings.get(key) for key in COMPARABLE} for settings in (metrics["settings"], like))
        if unlike := differences(own, other):
            warning = f"warning: {run.name}: evaluated with other settings, not in the table ({unlike[0]})"
            print(warning, file=sys.stderr)
        else:
            line: dict[str, Any] = {"run": run.name, "variant": run.variant, "seed": run.seed}
            table.append(line | model_line(metrics) | measure_hours(out / run.name))
    return table


def measure_hours(run: Path) -> dict[str, float]:
    """What its training took: each start, from its beginning to what it has logged last. {} where nothing is there."""
    begun = [datetime.fromisoformat(start["time"]).timestamp() for start in read_starts(run)]
    logged = [file.stat().st_mtime for file in (run / METRICS).glob("[0-9]*.jsonl")] if begun else []
    seconds = sum(end - max(time for time in begun if time < end) for end in logged)
    return {HOURS: seconds / 3600} if logged else {}


def markdown(table: Sequence[Values], k: int) -> str:
    """Variants in order: mean over seeds, standard deviation between seeds or of one the standard error, mean gain over
    the start; of Recall and NDCG, then of what was measured beyond accuracy. Last, where there are constrained lists,
    theirs and what they gain over the free ones. What is not known (NaN) is an empty cell."""
    accuracy = [f"recall@{k}", f"ndcg@{k}"]
    beyond = [name for name in MEASURES if all(name in row for row in table)]
    held = [name for name in (f"{name} constrained" for name in accuracy) if any(name in row for row in table)]
    tables = [_mean_and_gain(accuracy, "gain"), _mean_and_gain(beyond, "gain"), _mean_and_gain(held, "minus free")]
    if any(HOURS in row for row in table):
        tables[0].append((HOURS, _mean_cell, HOURS))
    return "\n\n".join(_markdown_table(table, columns) for columns in tables if columns)


def _mean_and_gain(names: Sequence[str], gain_title: str) -> list[Column]:
    """Two columns for each of the metrics."""
    columns: list[Column] = []
    for name in names:
        columns.append((name, _mean_cell, name))
        columns.append((gain_title, _gain_cell, f"{name} gain"))
    return columns


def _markdown_table(table: Sequence[Values], columns: Sequence[Column]) -> str:
    lines = ["| variant | seeds | " + " | ".join(title for title, _, _ in columns) + " |"]
    lines.append("|---" * (2 + len(columns)) + "|")
    for variant in dict.fromkeys(row["variant"] for row in table):
        rows = [row for row in table if row["variant"] == variant]
        seeds = str(len(rows)) if rows[0]["seed"] else ""
        cells = [cell(rows, name) for _, cell, name in columns]
        lines.append("| " + " | ".join([variant, seeds, *cells]) + " |")
    return "\n".join(lines)


def _mean_cell(rows: Sequence[Values], name: str) -> str:
    """Mean over the seeds that have it and the standard deviation between them; of one its standard error."""
    values = [row[name] for row in rows if name in row]
    mean = float(np.mean(values)) if values else math.nan
    if math.isnan(mean):
        return ""
    errors = [f" ±{row[f'{name} se']:.4f}" for row in rows if row.get(f"{name} se", math.nan) >= 0]
    return f"{mean:.4f}" + (f" (sd {np.std(values, ddof=1):.4f})" if len(values) > 1 else "".join(errors))


def _gain_cell(rows: Sequence[Values], name: str) -> str:
    """Mean over the seeds that have it, and the standard error of each."""
    rows = [row for row in rows if name in row]
    mean = float(np.mean([row[name] for row in rows])) if rows else math.nan
    if math.isnan(mean):
        return ""
    errors = "/".join(f"{row[f'{name} se']:.4f}" for row in rows)
    return f"{mean:+.4f} (se of each {errors})"


def pairs(table: Sequence[Values], out: Path, k: int, num_items: int) -> list[dict[str, Any]]:
    """Each two variants with the same seeds, or of which the earlier has one, as a start: the later minus the earlier.

    Conversation by conversation, a conversation's value being its mean over the seeds; se and p are over conversations.
    A row that one seed lacks is left out. Differences between seeds are not in them: table.md has those. num_items:
    different items of the catalog.
    """
    seeds: dict[str, list[str]] = {}
    sides: dict[str, list[RowsOfSeed]] = {}  # of a variant: its rows, seed by seed
    for line in table:
        rows = pq.read_table(out / "evaluation" / line["run"] / "rows.parquet").to_pylist()
        seeds.setdefault(line["variant"], []).append(line["seed"])
        sides.setdefault(line["variant"], []).append({(row["sample_id"], row["prompt_id"]): row for row in rows})
    compared = []
    for first, second in itertools.combinations(seeds, 2):
        if set(seeds[first]) != set(seeds[second]) and len(seeds[first]) > 1:
            continue
        pair = {"variant": second, "minus": first, "seeds": len(seeds[second])}
        compared.append(pair | _compare(sides[first], sides[second], k, num_items))
    return compared


def _compare(first: Sequence[RowsOfSeed], second: Sequence[RowsOfSeed], k: int, num_items: int) -> dict[str, float]:
    """`<metric> mean`, `se` and `p` of the second variant minus the first, on the rows that all seeds have."""
    names = (f"recall@{k}", f"ndcg@{k}")
    all_sides = [*first, *second]
    shared = [
        key
        for key, row in all_sides[0].items()
        if all(key in rows for rows in all_sides) and not math.isnan(row[names[0]])  # rows with ground truth
    ]
    before = [[rows[key] for key in shared] for rows in first]
    after = [[rows[key] for key in shared] for rows in second]
    contexts = [prompt for _, prompt in shared]
    figures = paired(_means(before, names), _means(after, names), names, contexts)
    figures |= compute_figures(after, contexts, num_items, minus=before)
    return {
        f"{name} {what}": figure[what]
        for name, figure in figures.items()
        for what in ("mean", "se", "p")
        if what in figure
    }


def _means(rows_of_seeds: Sequence[Sequence[Values]], names: Sequence[str]) -> list[dict[str, float]]:
    return [
        {name: float(np.mean([row[name] for row in rows])) for name in names}
        for rows in zip(*rows_of_seeds, strict=True)
    ]
