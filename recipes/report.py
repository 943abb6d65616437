"""One HTML file about a run, or about several side by side: settings, test metrics, curves, lists with their hits.

    python -m recipes.report RUN [RUN ...] --out outputs/report.html

Test metrics and lists come from the sweeps (`python -m recipes.evaluate --model RUN --sweep ...`): of one run its start
and its newest checkpoint, of several their newest checkpoints. `--evaluations NAME=FOLDER ...` names other evaluations
(OUT of recipes.evaluate) instead; a judge has no others. The file needs no network and no other file.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from convrec.errors import UserError
from convrec.report.charts import Chart
from convrec.report.curves import ERROR, PANELS, RunCurves, return_per_rank
from convrec.report.page import table_row, write_report
from convrec.runs.folder import RL_MODEL, SFT_MODEL, read_config, setting
from recipes.evaluation.examples import examples
from recipes.launch.recipe import RECIPES
from recipes.plot import read_runs

EXAMPLES = 4
_RL = {
    "prompts a step": "data.train_batch_size",
    "rollouts a prompt": "actor_rollout_ref.rollout.n",
    "updates a batch (mu)": "actor_rollout_ref.actor.ppo_epochs",
    "learning rate": "actor_rollout_ref.actor.optim.lr",
    "KL coefficient": "actor_rollout_ref.actor.kl_loss_coef",
    "clip low": "actor_rollout_ref.actor.clip_ratio_low",
    "clip high": "actor_rollout_ref.actor.clip_ratio_high",
    "steps": "trainer.total_training_steps",
    "seed": "data.seed",
}
_JUDGE = {
    "start": RL_MODEL,
    "training data": "data.train_files",
    "judge's reward": "reward.custom_reward_function.path",
    **_RL,
}
# setting in the report -> key of the run's config
SETTINGS: Mapping[str, Mapping[str, str]] = {
    "sft": {
        "start": SFT_MODEL,
        "training data": "data.train_files",
        "batch": "data.train_batch_size",
        "learning rate": "optim.lr",
        "steps": "trainer.total_training_steps",
        "seed": "trainer.seed",
    },
    "rank_grpo": {
        "start": RL_MODEL,
        "training data": "data.train_files",
        "algorithm": "algorithm.adv_estimator",
        "policy loss": "actor_rollout_ref.actor.policy_loss.loss_mode",
        "returns": "convrec.reward",
        "preset": "convrec.preset",
        "matching": "convrec.matching",
        "items": "convrec.num_items",
        **_RL,
    },
    "judge_pointwise": _JUDGE,
    "judge_pairwise": _JUDGE,
}


def report(
    folders: Sequence[Path], out: Path, evaluations: Mapping[str, Path] | None = None, split: str | None = None
) -> Path:
    """Write the report of the runs and return its path. Raises UserError for what is no run or no evaluation."""
    runs = read_runs(folders, split)
    of_run = dict(zip((run.name for run in runs), dict.fromkeys(folder.resolve() for folder in folders), strict=True))
    chosen = dict(evaluations or _newest_evaluations(runs, of_run))
    metrics = {name: _metrics(folder) for name, folder in chosen.items()}
    is_judge = any("judge" in one["settings"] for one in metrics.values())
    table, about = _judge_table(metrics) if is_judge else _table(metrics)
    has_judge = any(RECIPES[run.recipe].answers == "verdicts" for run in runs)
    hint = "--judge MODE, then --evaluations NAME=OUT," if has_judge else "--sweep"
    return write_report(
        out,
        title=", ".join(run.name for run in runs) if len(runs) < 4 else f"{len(runs)} runs",
        notes=[
            about or f"No evaluation yet: python -m recipes.evaluate --model RUN {hint} adds it.",
            *(warning for run in runs for warning in run.warnings),
        ],
        table_title="Evaluation",
        settings={run.name: _settings(run, of_run[run.name]) for run in runs},
        table=table,
        charts=_charts(runs),
        examples=examples(chosen, EXAMPLES) if chosen and not is_judge else [],
    )


def _newest_evaluations(runs: Sequence[RunCurves], of_run: Mapping[str, Path]) -> dict[str, Path]:
    """name -> evaluation of each run's newest swept step, of a single run of its step 0 too."""
    found = {}
    for run in runs:
        if run.split is None:
            continue
        steps = sorted(run.series["evaluated/ndcg"])
        for step in [steps[0], steps[-1]] if len(runs) == 1 else steps[-1:]:
            found[f"{run.name}, step {step}"] = of_run[run.name] / "evaluation" / run.split / f"step_{step:06d}"
    return found


def _metrics(folder: Path) -> dict[str, Any]:
    file = folder / "metrics.json"
    if not file.exists():
        raise UserError(f"{folder}: no metrics.json; give the OUT folder of recipes.evaluate")
    metrics = json.loads(file.read_text(encoding="utf-8"))
    metrics["settings"]["protocol"] = next(iter(metrics["settings"].get("protocols", ())), None)
    return metrics


def _table(metrics: Mapping[str, dict[str, Any]]) -> tuple[list[dict[str, Any]], str]:
    """The table's columns, baselines first, and a sentence about what was scored."""
    if not metrics:
        return [], ""
    # further protocols are not shown
    first = _common_settings(metrics, ("data", "catalog", "matching", "ks", "num_items", "limit", "protocol"))
    protocol = first["protocol"]
    columns: dict[str, dict[str, Any]] = {}
    for one in metrics.values():
        columns |= {name: some for name, some in one["results"][protocol].items() if name != "model"}
    columns |= {name: one["results"][protocol]["model"] for name, one in metrics.items()}
    summary = next(iter(columns.values()))
    about = (
        f"{first['data']}: {summary['n']} rows, {summary['num_contexts']} conversations; protocol {protocol}, "
        f"matching {first['matching']}, greedy lists."
    )
    return [table_row(name, _with_nan(some), first["ks"]) for name, some in columns.items()], about


def _judge_table(metrics: Mapping[str, dict[str, Any]]) -> tuple[list[dict[str, Any]], str]:
    """The same of judges, with the best of all constant answers last."""
    first = _common_settings(metrics, ("judge", "data", "limit"))
    results = {name: _with_nan(one["results"]) for name, one in metrics.items()}
    columns: list[dict[str, Any]] = [
        {"model": name, **{key: (some["mean"], some["se"]) for key, some in summary.items() if _has_error(some)}}
        for name, summary in results.items()
    ]
    summary = next(iter(results.values()))
    columns.append({"model": "always the same", **summary["baseline"]})
    return columns, f"{first['data']}: {summary['n']} rows, {summary['num_contexts']} queries; {first['judge']} judge."


def _has_error(value: Any) -> bool:
    return isinstance(value, Mapping) and "se" in value


def _common_settings(metrics: Mapping[str, dict[str, Any]], alike: Sequence[str]) -> dict[str, Any]:
    """The first evaluation's settings. Raises UserError when another differs in what must be alike."""
    first = next(iter(metrics.values()))["settings"]
    for name, one in metrics.items():
        if different := [key for key in alike if one["settings"].get(key) != first.get(key)]:
            raise UserError(
                f"{name}: evaluated with {different[0]} {one['settings'].get(different[0])}, another with "
                f"{first.get(different[0])}; evaluate all alike"
            )
    return first


def _with_nan(summary: Mapping[str, Any]) -> dict[str, Any]:
    """JSON's null back to what it stood for."""
    return {
        key: {k: float("nan") if v is None else v for k, v in value.items()} if isinstance(value, dict) else value
        for key, value in summary.items()
    }


def _settings(run: RunCurves, folder: Path) -> dict[str, Any]:
    config = read_config(folder)
    found = {name: setting(config, key) for name, key in SETTINGS[run.recipe].items()}
    steps = [max(values) for values in run.series.values() if values]
    return {name: value for name, value in found.items() if value is not None} | {"steps made": max(steps, default=0)}


def _charts(runs: Sequence[RunCurves]) -> list[Chart]:
    """A chart a panel, a line a run; the returns of a recipe's only run are one chart, a line a rank."""
    charts = []
    for recipe, panels in PANELS.items():
        some = [run for run in runs if run.recipe == recipe]
        returns = return_per_rank(some[0].series) if len(some) == 1 else {}
        if returns:
            charts.append(Chart("Return per rank", "mean return", returns, ordered=True, smooth=True, from_zero=True))
        for panel in panels:
            lines = {run.name: run.series.get(panel.metric, {}) for run in some}
            if not any(lines.values()) or (returns and "/return@" in panel.metric):
                continue
            shown = next(run for run in some if lines[run.name])
            errors = {run.name: run.series.get(panel.metric + ERROR, {}) for run in some}
            title = shown.panel_title(panel)
            charts.append(Chart(title, panel.y_label, lines, smooth=panel.smooth, span=panel.span, errors=errors))
    return charts


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m recipes.report", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run folder (SAVE_PATH)")
    parser.add_argument("--out", type=Path, default=Path("outputs/report.html"))
    parser.add_argument("--evaluations", nargs="+", metavar="NAME=FOLDER", help="in place of the runs' sweeps")
    parser.add_argument("--split", help="whose sweep to show, where a run has several")
    options = parser.parse_args(arguments)
    pairs = [text.partition("=") for text in options.evaluations or ()]
    try:
        if bad := [name for name, sign, _ in pairs if not sign]:
            raise UserError(f"--evaluations {bad[0]}: expected NAME=FOLDER")
        named = {name: Path(folder) for name, _, folder in pairs}
        print(report(options.runs, options.out, named, options.split))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
