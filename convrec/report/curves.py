"""What is drawn of a run, the paper's figures 2-6: its logged metrics and the sweep over its checkpoints, as series.

SFT: training and validation loss, and by the sweep NDCG, Recall and the share of items in the catalog. Rank-GRPO: the
return at ranks 1, 2, 5, 10, 15, 20, validation NDCG, catalog hit ratio, KL to the start, list length, and the sweep.
Judges: reward, answers without a verdict, prompts that train nothing.
The first and the last step that was logged are always there.
"""

import csv
import io
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from convrec.base.errors import UserError
from convrec.base.files import read_json, write_text
from convrec.report.panels import PANELS
from convrec.runs.folder import METRICS, find_recipe, latest_step, read_config, read_metrics

SWEEP = "sweep.csv"
SWEEP_SETTINGS = "sweep.json"  # beside it: what the steps were evaluated with
ERROR = "_se"  # after a metric's name: its standard error
Series = Mapping[int, float]  # step -> value


@dataclass(frozen=True)
class RunCurves:
    """name: tells the run from others. recipe: a key of PANELS. method: what it trained with, for readers.

    series: metric -> {step: value}; of what has a standard error also metric + ERROR. split, k, sweep: of the run's
    sweep whose split, the largest k, and SWEEP_SETTINGS, where it has one. warnings: for its reader.
    """

    name: str
    recipe: str
    method: str
    series: Mapping[str, Series]
    split: str | None = None
    k: int | None = None
    sweep: Mapping[str, Any] = field(default_factory=dict)
    warnings: Sequence[str] = ()

    @property
    def last_step(self) -> int:
        """The last step that anything was logged at, 0 before the first."""
        return max((step for line in self.series.values() for step in line), default=0)


def label_runs(runs: Sequence[RunCurves]) -> dict[str, str]:
    """name -> what legends and tables call the run: its method, with its name where several runs have that method."""
    methods = Counter(run.method for run in runs)
    return {run.name: run.method if methods[run.method] == 1 else f"{run.method} {run.name}" for run in runs}


def by_recipe(runs: Sequence[RunCurves]) -> dict[str, list[RunCurves]]:
    runs_by_recipe = {recipe: [run for run in runs if run.recipe == recipe] for recipe in PANELS}
    return {recipe: recipe_runs for recipe, recipe_runs in runs_by_recipe.items() if recipe_runs}


def series(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[int, float]]:
    """runs.read_metrics' rows as metric -> {step: value}; what is no finite number is left out."""
    by_name: dict[str, dict[int, float]] = {}
    for row in rows:
        for key, value in row.items():
            if key != "step" and isinstance(value, int | float) and math.isfinite(value):
                by_name.setdefault(key, {})[int(row["step"])] = float(value)
    return by_name


def logged_series(run: Path) -> dict[str, dict[int, float]]:
    """What the run has logged. Raises UserError for a folder without metrics."""
    if not any((run / METRICS).glob("[0-9]*.jsonl")):
        raise UserError(f"{run}: no {METRICS}/*.jsonl; give a run folder (SAVE_PATH of run_sft.sh or run_rank_grpo.sh)")
    logged = series(read_metrics(run))
    if "actor/kl" not in logged and "actor/kl_loss" in logged:
        # verl's own losses log the KL under this name; rank_grpo's kl_loss is another, times the coefficient
        logged["actor/kl"] = logged["actor/kl_loss"]
    return logged


def read_curves(run: Path, name: str | None = None, split: str | None = None, method: str | None = None) -> RunCurves:
    """The curves of a run folder; split: whose sweep, where the run has several (RUN/evaluation/<split>/sweep.csv).

    name, method: as of RunCurves; those of the folder and of the recipe where they are not given.

    Raises UserError for a folder without metrics, a split that was not swept and a sweep that holds nothing.
    """
    logged = logged_series(run)
    recipe = find_recipe(read_config(run))
    if recipe not in PANELS:
        named = recipe or "none in config.yaml"
        raise UserError(f"{run}: no curves are known for its recipe, {named}; known are {', '.join(PANELS)}")
    curves = RunCurves(name or run.name, recipe, method or recipe, logged)
    sweeps = {file.parent.name: file for file in sorted(run.glob(f"evaluation/*/{SWEEP}"))}
    if split and split not in sweeps:
        raise UserError(f"{run}/evaluation/{split}: no {SWEEP}; make it with convrec evaluate --sweep")
    if len(sweeps) > 1 and not split:
        raise UserError(f"{run}/evaluation has sweeps of {', '.join(sweeps)}: choose one with --split")
    return _with_sweep(curves, sweeps[split or next(iter(sweeps))], run) if sweeps else curves


def _with_sweep(curves: RunCurves, file: Path, run: Path) -> RunCurves:
    rows = read_csv(file)
    settings = file.with_name(SWEEP_SETTINGS)
    if not rows or not settings.exists():
        lacking = f"no {SWEEP_SETTINGS} beside it" if rows else "no rows"
        raise UserError(f"{file}: {lacking}; make it again with convrec evaluate --sweep")
    largest = max(int(key.removeprefix("ndcg@")) for key in rows[0] if key.startswith("ndcg@") and " " not in key)
    columns = {metric: f"{metric}@{largest}" for metric in ("ndcg", "recall")}
    columns |= {name: name for name in ("coverage", "popularity_lift")}
    columns |= {f"{metric}{ERROR}": f"{column} se" for metric, column in columns.items()}
    columns |= {key: key for key in ("in catalog", "items per list")}
    swept = {
        f"evaluated/{key}": {int(row["step"]): row[column] for row in rows if math.isfinite(row.get(column, math.nan))}
        for key, column in columns.items()
    }
    steps = [int(row["step"]) for row in rows]
    newest = latest_step(run)
    split = file.parent.name
    warnings = []
    if newest and newest not in steps:
        warnings.append(
            f"{run}: its sweep of {split} ends at step {max(steps)}, without the newest checkpoint, step {newest};"
            " sweep again"
        )
    return replace(
        curves, series={**curves.series, **swept}, split=split, k=largest, sweep=read_json(settings), warnings=warnings
    )


def long_rows(runs: Sequence[RunCurves]) -> list[dict[str, Any]]:
    """run, step, metric, value: every point of every panel, for a spreadsheet or another plot."""
    return [
        {"run": run.name, "metric": panel.metric, "step": step, "value": value}
        for run in runs
        for panel in PANELS[run.recipe]
        for step, value in sorted(run.series.get(panel.metric, {}).items())
    ]


def write_csv(path: Path, table: Sequence[Mapping[str, Any]]) -> None:
    """A row a mapping, columns in order of first appearance; whole or not at all."""
    columns = list(dict.fromkeys(name for row in table for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(table)
    write_text(path, text.getvalue())


def read_csv(path: Path) -> list[dict[str, float]]:
    """The rows of a write_csv file of numbers; empty fields are left out."""
    with path.open(newline="", encoding="utf-8") as file:
        return [{name: float(value) for name, value in row.items() if value} for row in csv.DictReader(file)]
