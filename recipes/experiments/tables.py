"""Tables of a matrix: one line per run, means over seeds, slices of the split, and variants compared in pairs."""

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
from recipes.evaluation.scoring import OF_MODEL, SCORED_WITH, load_metrics, make_model_line
from recipes.evaluation.slices import make_slice_lines
from recipes.experiments.matrix_runs import MatrixRun

# Settings that two evaluations must share to stand in one table; sha256 is the digest of the files' contents.
COMPARABLE = ("data", "catalog", "sha256", *SCORED_WITH, "max_tokens", "max_prompt_tokens")
HOURS = "training hours"  # a column of table.csv
Values = Mapping[str, Any]
SeedRows = dict[tuple[str, str], dict[str, Any]]  # (sample, prompt) -> row of an evaluation
Column = tuple[str, Callable[[Sequence[Values], str], str], str]  # title, formatter of a variant's rows, value's name


def write_tables(out: Path, runs: Sequence[MatrixRun], like: str) -> list[str]:
    """Write table.csv, table.md and table.png, and slices.csv and pairs.csv if they would have rows.

    Args:
        out: the matrix's folder.
        runs: all runs of the matrix.
        like: name of a run: the tables hold its baselines and the runs evaluated with the same settings.

    Returns:
        The names of the runs in the tables.
    """
    from convrec.report.drawing import write_bars  # matplotlib

    metrics = load_metrics(metrics_file(out, like).parent)
    settings = metrics["settings"]
    k = max(metrics["settings"]["ks"])
    run_rows = read_evaluations(runs, out, settings)
    baselines = [name for name in metrics["results"][settings["protocols"][0]] if name not in OF_MODEL]
    table = [
        {"run": name, "variant": name, "seed": ""} | make_model_line(metrics, name) for name in baselines
    ] + run_rows
    write_text(out / "table.md", format_markdown(table, k) + "\n")
    names = [f"{metric}@{k}{suffix}" for suffix in ("", " constrained") for metric in ("recall", "ndcg")]
    write_bars(out / "table.png", table, [name for name in names if any(name in row for row in table)])
    slices = [
        {"run": row["run"], "variant": row["variant"], "seed": row["seed"]} | line
        for row in run_rows
        for line in make_slice_lines(read_json(metrics_file(out, row["run"])).get("slices", {}))
    ]
    pairs = compare_variants(run_rows, out, k, settings["catalog_items"])
    for name, lines in {"table": table, "slices": slices, "pairs": pairs}.items():
        if lines:
            write_csv(out / f"{name}.csv", lines)
    return [row["run"] for row in run_rows]


def metrics_file(out: Path, name: str) -> Path:
    """Return the path of a run's metrics.json in the matrix's folder.

    Args:
        out: folder of the matrix.
        name: of the run.
    """
    return out / "evaluation" / name / "metrics.json"


def read_evaluations(runs: Sequence[MatrixRun], out: Path, like: Values) -> list[dict[str, Any]]:
    """Return a line of table.csv for each run with an evaluation in OUT.

    A run evaluated with other settings is left out with a warning.

    Args:
        runs: all runs of the matrix.
        out: the matrix's folder.
        like: settings of an evaluation; see COMPARABLE.
    """
    table = []
    for run in runs:
        if not metrics_file(out, run.name).exists():
            continue
        metrics = load_metrics(metrics_file(out, run.name).parent)
        own, other = ({key: settings.get(key) for key in COMPARABLE} for settings in (metrics["settings"], like))
        if changes := differences(own, other):
            warning = f"warning: {run.name}: not in the table, because it was evaluated with other settings"
            print(f"{warning} ({changes[0]})", file=sys.stderr)
        else:
            line: dict[str, Any] = {"run": run.name, "variant": run.variant, "seed": run.seed}
            table.append(line | make_model_line(metrics) | measure_hours(out / run.name))
    return table


def measure_hours(run: Path) -> dict[str, float]:
    """Measure the hours of a training run: from each start to the last metric that it logged.

    Args:
        run: the run's folder.

    Returns:
        {HOURS: hours}; {} if the run has no log.
    """
    start_times = [datetime.fromisoformat(start["time"]).timestamp() for start in read_starts(run)]
    end_times = [file.stat().st_mtime for file in (run / METRICS).glob("[0-9]*.jsonl")] if start_times else []
    seconds = sum(end - max(time for time in start_times if time < end) for end in end_times)
    return {HOURS: seconds / 3600} if end_times else {}


def format_markdown(table: Sequence[Values], k: int) -> str:
    """Format the tables of table.md, with one line per variant.

    The first has Recall@k, NDCG@k and hours, the second the measures beyond accuracy, the third the constrained lists
    and their gain over the free ones. A cell has the mean over seeds with the standard deviation between them (one
    seed: its standard error), or the mean gain over the start. NaN is an empty cell.

    Args:
        table: one entry per run.
        k: of Recall and NDCG, one of the evaluation's --ks.
    """
    accuracy = [f"recall@{k}", f"ndcg@{k}"]
    beyond = [name for name in MEASURES if all(name in row for row in table)]
    constrained = [name for name in (f"{name} constrained" for name in accuracy) if any(name in row for row in table)]
    tables = [
        _make_mean_and_gain_columns(accuracy, "gain"),
        _make_mean_and_gain_columns(beyond, "gain"),
        _make_mean_and_gain_columns(constrained, "minus free"),
    ]
    if any(HOURS in row for row in table):
        tables[0].append((HOURS, _format_mean, HOURS))
    return "\n\n".join(_format_table(table, columns) for columns in tables if columns)


def _make_mean_and_gain_columns(names: Sequence[str], gain_title: str) -> list[Column]:
    columns: list[Column] = []
    for name in names:
        columns.append((name, _format_mean, name))
        columns.append((gain_title, _format_gain, f"{name} gain"))
    return columns


def _format_table(table: Sequence[Values], columns: Sequence[Column]) -> str:
    lines = ["| variant | seeds | " + " | ".join(title for title, _, _ in columns) + " |"]
    lines.append("|---" * (2 + len(columns)) + "|")
    for variant in dict.fromkeys(row["variant"] for row in table):
        rows = [row for row in table if row["variant"] == variant]
        seeds = str(len(rows)) if rows[0]["seed"] else ""
        cells = [format_cell(rows, name) for _, format_cell, name in columns]
        lines.append("| " + " | ".join([variant, seeds, *cells]) + " |")
    return "\n".join(lines)


def _format_mean(rows: Sequence[Values], name: str) -> str:
    """Format the mean over the seeds that have the value, with their standard deviation or the one standard error."""
    values = [row[name] for row in rows if name in row]
    mean = float(np.mean(values)) if values else math.nan
    if math.isnan(mean):
        return ""
    errors = [f" ±{row[f'{name} se']:.4f}" for row in rows if row.get(f"{name} se", math.nan) >= 0]
    return f"{mean:.4f}" + (f" (sd {np.std(values, ddof=1):.4f})" if len(values) > 1 else "".join(errors))


def _format_gain(rows: Sequence[Values], name: str) -> str:
    """Format the mean over the seeds that have the value, with the standard error of each."""
    rows = [row for row in rows if name in row]
    mean = float(np.mean([row[name] for row in rows])) if rows else math.nan
    if math.isnan(mean):
        return ""
    errors = "/".join(f"{row[f'{name} se']:.4f}" for row in rows)
    return f"{mean:+.4f} (se of each {errors})"


def compare_variants(table: Sequence[Values], out: Path, k: int, num_items: int) -> list[dict[str, Any]]:
    """Compare variants in pairs, the later minus the earlier, conversation by conversation.

    A pair has the same seeds, or its earlier variant has one seed, as a start has. A conversation's value is its mean
    over the seeds; se and p are over conversations, so they do not contain the differences between seeds: table.md has
    those. Only rows that every seed has are compared.

    Args:
        table: the lines of `read_evaluations`.
        out: the matrix's folder.
        k: depth of Recall@k and NDCG@k.
        num_items: number of different items in the catalog.

    Returns:
        A line of pairs.csv for each pair.
    """
    seeds: dict[str, list[str]] = {}
    seed_rows: dict[str, list[SeedRows]] = {}  # variant -> rows of each seed
    for line in table:
        rows = pq.read_table(out / "evaluation" / line["run"] / "rows.parquet").to_pylist()
        seeds.setdefault(line["variant"], []).append(line["seed"])
        seed_rows.setdefault(line["variant"], []).append({(row["sample_id"], row["prompt_id"]): row for row in rows})
    lines = []
    for first, second in itertools.combinations(seeds, 2):
        if set(seeds[first]) != set(seeds[second]) and len(seeds[first]) > 1:
            continue
        pair = {"variant": second, "minus": first, "seeds": len(seeds[second])}
        lines.append(pair | _compare(seed_rows[first], seed_rows[second], k, num_items))
    return lines


def _compare(first: Sequence[SeedRows], second: Sequence[SeedRows], k: int, num_items: int) -> dict[str, float]:
    """Return `<metric> mean`, `se` and `p` of the second variant minus the first, on the rows that all seeds have."""
    names = (f"recall@{k}", f"ndcg@{k}")
    all_seeds = [*first, *second]
    shared = [
        key
        for key, row in all_seeds[0].items()
        if all(key in rows for rows in all_seeds) and not math.isnan(row[names[0]])  # rows with ground truth
    ]
    before = [[rows[key] for key in shared] for rows in first]
    after = [[rows[key] for key in shared] for rows in second]
    contexts = [prompt for _, prompt in shared]
    figures = paired(_compute_means(before, names), _compute_means(after, names), names, contexts)
    figures |= compute_figures(after, contexts, num_items, minus=before)
    return {
        f"{name} {statistic}": figure[statistic]
        for name, figure in figures.items()
        for statistic in ("mean", "se", "p")
        if statistic in figure
    }


def _compute_means(seed_rows: Sequence[Sequence[Values]], names: Sequence[str]) -> list[dict[str, float]]:
    return [
        {name: float(np.mean([row[name] for row in rows])) for name in names} for rows in zip(*seed_rows, strict=True)
    ]
