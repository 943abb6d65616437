"""What is drawn of a run, the paper's figures 2-6: its logged metrics and the sweep over its checkpoints, as series.

SFT: training and validation loss, and by the sweep NDCG, Recall and the share of items in the catalog. Rank-GRPO: the
return at ranks 1, 2, 5, 10, 15, 20, validation NDCG, catalog hit ratio, KL to the start, list length, and the sweep.
Judges: reward, answers without a verdict, prompts that train nothing.
The first and the last step that was logged are always there.
"""

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from convrec.errors import UserError
from convrec.runs.folder import METRICS, latest_step, read_config, read_metrics, recipe_of

SWEEP = "sweep.csv"
SWEEP_SETTINGS = "sweep.json"  # beside it: what the steps were evaluated with
SHARE = 0.05  # span of shares that are near 1
ERROR = " se"  # after a metric's name: its standard error
FEW = 4  # runs whose single steps are drawn behind their smoothed curves
REPORTED_RANKS = (1, 2, 5, 10, 15, 20)
Series = Mapping[int, float]  # step -> value


@dataclass(frozen=True)
class Panel:
    """One chart.

    metric: a logged name, or of the sweep `evaluated/...`, whose standard errors are drawn too where they are known.
    smooth: noisy, drawn as a mean over neighbouring steps. span: what the axis covers at the least, because a change
    far below it means nothing and must not look like much.
    """

    metric: str
    title: str
    y_label: str
    smooth: bool = False
    span: float = 0.0


_EVALUATED = (
    Panel("evaluated/ndcg", "NDCG@{k} on {split}, by checkpoint", "NDCG"),
    Panel("evaluated/recall", "Recall@{k} on {split}, by checkpoint", "Recall"),
    Panel("evaluated/in catalog", "In catalog on {split}, by checkpoint", "share of items", span=SHARE),
)
_JUDGE = (
    Panel("reward/score", "Reward, samples", "mean reward", smooth=True),
    Panel("val/score", "Validation reward in training", "mean reward"),
    Panel("reward/no_verdict", "Answers without a verdict, samples", "share", smooth=True),
    Panel("reward/zero_std", "Prompts whose rollouts earn the same", "share", smooth=True),
    Panel("response_length/mean", "Length of an answer, samples", "tokens", smooth=True),
)
PANELS: Mapping[str, tuple[Panel, ...]] = {
    "sft": (
        Panel("train/loss", "Training loss", "nats a token", smooth=True),
        Panel("val/loss", "Validation loss", "nats a token"),
        *_EVALUATED,
    ),
    "rank_grpo": (
        *(Panel(f"rank_grpo/return@{k}", f"Return at rank {k}", "mean return", smooth=True) for k in REPORTED_RANKS),
        Panel("val/ndcg", "Validation NDCG in training (strict)", "NDCG"),
        Panel("rank_grpo/catalog_hit_ratio", "In catalog, samples", "share of items", smooth=True, span=SHARE),
        Panel("actor/kl", "KL to the start", "nats a token", smooth=True),
        Panel("rank_grpo/num_items", "List length, samples", "items", smooth=True, span=1.0),
        *_EVALUATED,
        Panel("evaluated/items per list", "List length on {split}, by checkpoint", "items", span=1.0),
    ),
    "judge_pointwise": (*_JUDGE, Panel("reward/exact_match", "Exact match, samples", "share", smooth=True)),
    "judge_pairwise": (*_JUDGE, Panel("reward/prefers_a", "Prefers A, samples", "share", smooth=True)),
}


@dataclass(frozen=True)
class RunCurves:
    """name: the run's in legends. recipe: a key of PANELS. series: metric -> {step: value}.

    sweep: SWEEP_SETTINGS of the run's sweep, {} for one of a version that wrote none. warnings: for its reader.
    """

    name: str
    recipe: str
    series: Mapping[str, Series]
    k: int | None = None  # of the sweep's NDCG and Recall
    split: str | None = None
    sweep: Mapping[str, Any] = field(default_factory=dict)
    warnings: Sequence[str] = ()

    def panel_title(self, panel: Panel) -> str:
        return panel.title.format(k=self.k, split=self.split)


def series(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[int, float]]:
    """runs.read_metrics' rows as metric -> {step: value}; what is no finite number is left out."""
    found: dict[str, dict[int, float]] = {}
    for row in rows:
        for key, value in row.items():
            if key != "step" and isinstance(value, int | float) and math.isfinite(value):
                found.setdefault(key, {})[int(row["step"])] = float(value)
    return found


def return_per_rank(metrics: Mapping[str, Series]) -> dict[str, Series]:
    """The curves "rank 1", "rank 2", ... that a run has logged."""
    names = {k: f"rank_grpo/return@{k}" for k in REPORTED_RANKS}
    return {f"rank {k}": metrics[name] for k, name in names.items() if name in metrics}


def read_curves(run: Path, name: str | None = None, split: str | None = None) -> RunCurves:
    """The curves of a run folder; split: whose sweep, where the run has several (RUN/evaluation/<split>/sweep.csv).

    Raises UserError for a folder without metrics, a split that was not swept and a sweep that holds nothing.
    """
    if not any((run / METRICS).glob("[0-9]*.jsonl")):
        raise UserError(f"{run}: no {METRICS}/*.jsonl; give a run folder (SAVE_PATH of run_sft.sh or run_rank_grpo.sh)")
    found = series(read_metrics(run))
    if "actor/kl" not in found and "actor/kl_loss" in found:
        # verl's own losses log the KL under this name; rank_grpo's kl_loss is another, times the coefficient
        found["actor/kl"] = found["actor/kl_loss"]
    sweeps = {file.parent.name: file for file in sorted(run.glob(f"evaluation/*/{SWEEP}"))}
    if split and split not in sweeps:
        raise UserError(f"{run}/evaluation/{split}: no {SWEEP}; make it with recipes.evaluate --sweep")
    if len(sweeps) > 1 and not split:
        raise UserError(f"{run}/evaluation has sweeps of {', '.join(sweeps)}: choose one with --split")
    chosen = split or next(iter(sweeps), None)
    largest, settings, warnings = None, {}, []
    if chosen:
        rows = read_csv(sweeps[chosen])
        if not rows:
            raise UserError(f"{sweeps[chosen]}: no rows; make it again with recipes.evaluate --sweep")
        if (file := sweeps[chosen].with_name(SWEEP_SETTINGS)).exists():
            settings = json.loads(file.read_text(encoding="utf-8"))
        largest = max(int(key.removeprefix("ndcg@")) for key in rows[0] if key.startswith("ndcg@") and " " not in key)
        columns = {f"{name}{se}": f"{name}@{largest}{se}" for name in ("ndcg", "recall") for se in ("", ERROR)}
        columns |= {key: key for key in ("in catalog", "items per list")}
        for key, column in columns.items():
            values = {int(row["step"]): row.get(column, math.nan) for row in rows}
            found[f"evaluated/{key}"] = {step: value for step, value in values.items() if math.isfinite(value)}
        steps, newest = [int(row["step"]) for row in rows], latest_step(run)
        if newest and newest not in steps:
            warnings.append(
                f"{run}: its sweep of {chosen} ends at step {max(steps)}, without the newest checkpoint, step {newest};"
                " sweep again"
            )
    recipe = recipe_of(read_config(run)) if (run / "config.yaml").exists() else _most_likely_recipe(found)
    if recipe not in PANELS:
        raise UserError(f"{run}: no curves are known for its recipe, {recipe}; known are {', '.join(PANELS)}")
    return RunCurves(name or run.name, recipe, found, largest, chosen, settings, warnings)


def _most_likely_recipe(found: Mapping[str, Series]) -> str:
    """The one of which the most curves are there."""
    return max(PANELS, key=lambda recipe: sum(panel.metric in found for panel in PANELS[recipe]))


def smoothed(points: Sequence[tuple[int, float]], window: int) -> list[tuple[int, float]]:
    """Each point the mean of about `window` ones around it, of fewer where less lies before or after it.

    The first point stays itself, so that a steep start is drawn where it is and not later, as a trailing mean draws it.
    """
    values = [value for _, value in points]
    out = []
    for index, (step, _) in enumerate(points):
        reach = min(index, window // 2)
        around = values[index - reach : index + reach + 1]
        out.append((step, sum(around) / len(around)))
    return out


def window_of(points: Sequence[Any]) -> int:
    """Over how many steps a noisy curve is averaged."""
    return max(1, len(points) // 12)


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
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(text.getvalue(), encoding="utf-8")
    partial.replace(path)


def read_csv(path: Path) -> list[dict[str, float]]:
    """The rows of a write_csv file of numbers; empty fields are left out."""
    with path.open(newline="", encoding="utf-8") as file:
        return [{name: float(value) for name, value in row.items() if value} for row in csv.DictReader(file)]


def write_png(path: Path, runs: Sequence[RunCurves]) -> None:
    """The panels of runs of one recipe, each with something to draw, a line a run; whole or not at all."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.lines import Line2D

    panels = [panel for panel in PANELS[runs[0].recipe] if any(run.series.get(panel.metric) for run in runs)]
    last = max(max(run.series[panel.metric]) for run in runs for panel in panels if run.series.get(panel.metric))
    columns = min(3, len(panels))
    rows = math.ceil(len(panels) / columns)
    legend_rows = math.ceil(len(runs) / columns) if len(runs) > 1 else 0
    height = 3.1 * rows + 0.22 * legend_rows  # inches
    figure, axes = plt.subplots(rows, columns, figsize=(4.6 * columns, height), squeeze=False)
    for axis in axes.flat[len(panels) :]:
        axis.axis("off")
    for panel, axis in zip(panels, axes.flat, strict=False):
        for index, run in enumerate(runs):
            points = sorted(run.series.get(panel.metric, {}).items())
            if not points:
                continue
            window = window_of(points) if panel.smooth else 1
            if errors := run.series.get(panel.metric + ERROR, {}):
                bars = [errors.get(step, 0.0) for step, _ in points]
                axis.errorbar(
                    *zip(*points, strict=True), bars, fmt="none", ecolor=f"C{index % 10}", alpha=0.5, capsize=2
                )
            if window > 1 and len(runs) <= FEW:
                axis.plot(*zip(*points, strict=True), color=f"C{index % 10}", alpha=0.2, linewidth=0.8)
            marker = "o" if len(points) <= 25 and window == 1 else None
            drawn = zip(*smoothed(points, window), strict=True)
            axis.plot(*drawn, **_style(index), linewidth=1.6, marker=marker, markersize=3.5)
        shown = next(run for run in runs if run.series.get(panel.metric))
        axis.set_title(shown.panel_title(panel), fontsize=10)
        axis.set_xlim(-0.03 * last, 1.03 * last or 1)  # one scale of steps for all panels, with step 0
        axis.set_xlabel("step", fontsize=9)
        has_errors = any(run.series.get(panel.metric + ERROR) for run in runs)
        axis.set_ylabel(panel.y_label + (" ± standard error" if has_errors else ""), fontsize=9)
        low, high = axis.get_ylim()
        axis.set_ylim(min(low, high - panel.span), high + 0.05 * panel.span)
        axis.tick_params(labelsize=8)
        axis.grid(alpha=0.3)
    if legend_rows:
        handles = [Line2D([], [], **_style(index), label=run.name) for index, run in enumerate(runs)]
        figure.legend(handles=handles, loc="lower center", ncols=columns, fontsize=9, frameon=False)
    figure.tight_layout(rect=(0, (0.22 * legend_rows + 0.1) / height if legend_rows else 0, 1, 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    figure.savefig(partial, dpi=130, format="png")
    plt.close(figure)
    partial.replace(path)


def _style(index: int) -> dict[str, Any]:
    """The look of run `index`: ten colours, then the same ones dashed, dotted and dash-dotted."""
    return {"color": f"C{index % 10}", "linestyle": ("-", "--", ":", "-.")[index // 10 % 4]}
