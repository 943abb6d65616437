"""The curves of a run, as in the paper's figures 2-6: its logged metrics and the sweep over its checkpoints, as series.

SFT: training and validation loss; from the sweep NDCG, Recall and the share of items in the catalog. Rank-GRPO: the
return at ranks 1, 2, 5, 10, 15, 20, validation NDCG, catalog hit ratio, KL to the initial model, list length, and the
sweep. Judges: reward, answers without a verdict, prompts that train nothing.
The first and the last logged step are always included.
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
SWEEP_SETTINGS = "sweep.json"  # next to SWEEP: the settings that the steps were evaluated with
ERROR = "_se"  # suffix of a metric's name: its standard error
Series = Mapping[int, float]  # step -> value


@dataclass(frozen=True)
class RunCurves:
    """The curves of one run.

    Attributes:
        name: what distinguishes the run from others.
        recipe: a key of PANELS.
        method: what it was trained with, for readers.
        series: metric -> {step: value}; metric + ERROR -> its standard errors, where it has them.
        split: the split of the run's sweep; None without a sweep.
        k: the largest k of the sweep; None without a sweep.
        sweep: the content of SWEEP_SETTINGS; empty without a sweep.
        warnings: sentences for the reader.
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
        """The last step with a logged value; 0 when there is none."""
        return max((step for line in self.series.values() for step in line), default=0)


def label_runs(runs: Sequence[RunCurves]) -> dict[str, str]:
    """Return name -> what legends and tables call the run: its method, and its name where several share that method."""
    methods = Counter(run.method for run in runs)
    return {run.name: run.method if methods[run.method] == 1 else f"{run.method} {run.name}" for run in runs}


def group_by_recipe(runs: Sequence[RunCurves]) -> dict[str, list[RunCurves]]:
    """Group runs by recipe, in the order of PANELS; recipes without a run are left out."""
    runs_by_recipe = {recipe: [run for run in runs if run.recipe == recipe] for recipe in PANELS}
    return {recipe: recipe_runs for recipe, recipe_runs in runs_by_recipe.items() if recipe_runs}


def series(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[int, float]]:
    """Turn the rows of runs.read_metrics into metric -> {step: value}, without values that are not finite numbers."""
    by_name: dict[str, dict[int, float]] = {}
    for row in rows:
        for key, value in row.items():
            if key != "step" and isinstance(value, int | float) and math.isfinite(value):
                by_name.setdefault(key, {})[int(row["step"])] = float(value)
    return by_name


def read_logged_series(run: Path) -> dict[str, dict[int, float]]:
    """Read what the run has logged, as metric -> {step: value}.

    Raises:
        UserError: The folder has no metrics.
    """
    if not any((run / METRICS).glob("[0-9]*.jsonl")):
        raise UserError(
            "report.no-metrics",
            f"{run}: no {METRICS}/*.jsonl; give a run folder (SAVE_PATH of run_sft.sh or run_rank_grpo.sh)",
        )
    logged = series(read_metrics(run))
    if "actor/kl" not in logged and "actor/kl_loss" in logged:
        # verl's own losses log the KL under this name; rank_grpo's kl_loss is the KL times its coefficient
        logged["actor/kl"] = logged["actor/kl_loss"]
    return logged


def read_curves(run: Path, name: str | None = None, split: str | None = None, method: str | None = None) -> RunCurves:
    """Read the curves of a run folder.

    Args:
        run: the run folder.
        name: as in RunCurves; by default the name of the folder.
        split: which sweep to read (RUN/evaluation/<split>/sweep.csv); needed when the run has several.
        method: as in RunCurves; by default the recipe.

    Raises:
        UserError: The folder has no metrics or an unknown recipe, the split was not swept or must be given, or the
            sweep is empty.
    """
    logged = read_logged_series(run)
    recipe = find_recipe(read_config(run))
    if recipe not in PANELS:
        problem = f"no curves for its recipe {recipe}" if recipe else "config.yaml names no recipe"
        raise UserError("report.unknown-recipe", f"{run}: {problem}; known recipes are {', '.join(PANELS)}")
    curves = RunCurves(name or run.name, recipe, method or recipe, logged)
    sweeps = {file.parent.name: file for file in sorted(run.glob(f"evaluation/*/{SWEEP}"))}
    if split and split not in sweeps:
        raise UserError(
            "report.no-sweep", f"{run}/evaluation/{split}: no {SWEEP}; make it with convrec evaluate --sweep"
        )
    if len(sweeps) > 1 and not split:
        raise UserError(
            "report.ambiguous-sweep", f"{run}/evaluation has sweeps of {', '.join(sweeps)}: choose one with --split"
        )
    return _add_sweep(curves, sweeps[split or next(iter(sweeps))], run) if sweeps else curves


def _add_sweep(curves: RunCurves, file: Path, run: Path) -> RunCurves:
    rows = read_csv(file)
    settings = file.with_name(SWEEP_SETTINGS)
    if not rows or not settings.exists():
        problem = f"no {SWEEP_SETTINGS} next to it" if rows else "no rows"
        raise UserError("report.damaged-sweep", f"{file}: {problem}; make it again with convrec evaluate --sweep")
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
            f"{run}: its sweep of {split} ends at step {max(steps)}, but the newest checkpoint is step {newest};"
            " run the sweep again"
        )
    return replace(
        curves, series={**curves.series, **swept}, split=split, k=largest, sweep=read_json(settings), warnings=warnings
    )


def make_long_rows(runs: Sequence[RunCurves]) -> list[dict[str, Any]]:
    """Make a row (run, metric, step, value) for every point of every panel, for a spreadsheet or another plot."""
    return [
        {"run": run.name, "metric": panel.metric, "step": step, "value": value}
        for run in runs
        for panel in PANELS[run.recipe]
        for step, value in sorted(run.series.get(panel.metric, {}).items())
    ]


def write_csv(path: Path, table: Sequence[Mapping[str, Any]]) -> None:
    """Write a row for each mapping; the file appears only when complete.

    Args:
        path: the file.
        table: column -> value for each row. Columns are in order of first appearance; a row without one gets an empty
            field.
    """
    columns = list(dict.fromkeys(name for row in table for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(table)
    write_text(path, text.getvalue())


def read_csv(path: Path) -> list[dict[str, float]]:
    """Read the rows of a file of numbers that write_csv wrote; empty fields are left out."""
    with path.open(newline="", encoding="utf-8") as file:
        return [{name: float(value) for name, value in row.items() if value} for row in csv.DictReader(file)]
