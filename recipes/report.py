"""One HTML file about a run, or several side by side: gain, test metrics, curves, lists with their hits, settings.

    python -m recipes.report RUN [RUN ...] --out outputs/report.html

Test metrics and lists come from the sweeps (`python -m recipes.evaluate --model RUN --sweep ...`): of one run its start
and its newest checkpoint, of several their newest checkpoints. `--evaluations NAME=FOLDER ...` names other evaluations
(OUT of recipes.evaluate) instead; a judge has no others. The file needs no network and no other file.
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from convrec.errors import UserError
from convrec.files import read_json
from convrec.report.charts import Chart, GainChart, charts_of
from convrec.report.curves import PANELS, RunCurves, labels_of
from convrec.report.page import COUNTS, beyond_accuracy_row, not_measured, number_text, table_row
from convrec.report.run_summary import facts_of, settings_of
from convrec.runs.folder import read_config
from recipes.evaluation.examples import examples
from recipes.evaluation.gains import gain_charts, rows_of
from recipes.evaluation.scoring import OF_MODEL, beyond_difference, scored_by
from recipes.evaluation.slices import slices_table
from recipes.launch.recipe import RECIPES
from recipes.plot import read_runs

EXAMPLES = 4
TABLE = "Mean ± standard error (bootstrap over conversations); bold is the best of a metric."
CLOSED_UP = (
    "Protocol {protocol} takes items that the user has seen and items outside the catalog out of a list, and the "
    "others close up: the 7th line of a list may count as rank 5."
)


def report(
    folders: Sequence[Path], out: Path, evaluations: Mapping[str, Path] | None = None, split: str | None = None
) -> Path:
    """Write the report of the runs and return its path. Raises UserError for what is no run or no evaluation."""
    if out.is_dir():
        raise UserError(f"--out {out}: a folder is there; name a file, such as {out / 'report.html'}")
    runs = read_runs(folders, split)
    labels = labels_of(runs)
    of_run = dict(zip((run.name for run in runs), dict.fromkeys(folder.resolve() for folder in folders), strict=True))
    configs = {name: read_config(folder) for name, folder in of_run.items()}
    chosen = dict(evaluations or _newest_evaluations(runs, of_run))
    metrics = {name: _metrics(folder) for name, folder in chosen.items()}
    is_judge = any("judge" in evaluation["settings"] for evaluation in metrics.values())
    table, about = _judge_table(metrics) if is_judge else _table(metrics)
    gains = _gains(chosen, metrics) if chosen and not is_judge else []
    if len(chosen) == 2 and gains:
        table.append(_difference(chosen, metrics, gains[0]))
    protocol = "" if is_judge or not metrics else next(iter(metrics.values()))["settings"]["protocol"]
    closed_up = CLOSED_UP.format(protocol=protocol) if protocol in ("paper", "reference") else ""
    has_judge = any(RECIPES[run.recipe].answers == "verdicts" for run in runs)
    from convrec.report.html import write_report  # matplotlib, after what can be refused

    hint = "--judge MODE, then --evaluations NAME=OUT," if has_judge else "--sweep"
    return write_report(
        out,
        title=", ".join(labels.values()) if len(runs) < 4 else f"{len(runs)} runs",
        headline="" if is_judge else _headline(gains, metrics),
        summary={labels[run.name]: facts_of(of_run[run.name], configs[run.name], run.last_step) for run in runs},
        gains=gains,
        notes=[
            *([] if table else [f"No evaluation yet: python -m recipes.evaluate --model RUN {hint} adds it."]),
            *(warning for run in runs for warning in run.warnings),
        ],
        table=table,
        about_table=[text for text in (about, closed_up, TABLE) if text],
        charts=_charts(runs),
        slices={} if is_judge else {name: slices_table(found.get("slices", {})) for name, found in metrics.items()},
        about_lists=closed_up,
        examples=examples(chosen, EXAMPLES) if chosen and not is_judge else [],
        settings={labels[run.name]: settings_of(run.recipe, configs[run.name]) for run in runs},
    )


def _newest_evaluations(runs: Sequence[RunCurves], of_run: Mapping[str, Path]) -> dict[str, Path]:
    """name -> evaluation of each run's newest swept step, of a single run of its step 0 too."""
    newest = {}
    labels = labels_of(runs)
    for run in runs:
        if run.split is None:
            continue
        steps = sorted(run.series["evaluated/ndcg"])
        for step in [steps[0], steps[-1]] if len(runs) == 1 else steps[-1:]:
            newest[f"{labels[run.name]} (step {step})"] = (
                of_run[run.name] / "evaluation" / run.split / f"step_{step:06d}"
            )
    return newest


def _gains(evaluations: Mapping[str, Path], metrics: Mapping[str, dict[str, Any]]) -> list[GainChart]:
    settings = next(iter(metrics.values()))["settings"]
    return gain_charts(evaluations, settings["ks"], settings["seed"])


def _headline(gains: Sequence[GainChart], metrics: Mapping[str, dict[str, Any]]) -> str:
    """NDCG at the largest k: how much is gained of two evaluations, the value of a single one, "" of more."""
    if len(metrics) not in (1, 2):
        return ""
    name, first = next(iter(metrics.items()))
    settings = first["settings"]
    k, split = max(settings["ks"]), Path(settings["data"]).name
    if gains:
        gain = gains[0].gains[f"NDCG@{k}"]
        return (
            f"{gains[0].title}, {split}: NDCG@{k} {gain.mean:+.4f} ± {number_text(gain.se)}, p\u00a0=\u00a0{gain.p:.4f}"
        )
    ndcg = _with_nan(first["results"][settings["protocol"]]["model"])[f"ndcg@{k}"]
    return f"{name}, {split}: NDCG@{k} {ndcg['mean']:.4f} ± {number_text(ndcg['se'])}"


def _metrics(folder: Path) -> dict[str, Any]:
    file = folder / "metrics.json"
    if not file.exists():
        raise UserError(f"{folder}: no metrics.json; give the OUT folder of recipes.evaluate")
    metrics = read_json(file)
    if metrics["settings"].get("model", folder) is None:
        raise UserError(f"{folder}: baselines alone, without a model's lists; give an evaluation of a model")
    metrics["settings"]["protocol"] = next(iter(metrics["settings"].get("protocols", ())), None)
    return metrics


def _table(metrics: Mapping[str, dict[str, Any]]) -> tuple[list[dict[str, Any]], str]:
    """The table's columns, baselines first, and a sentence about what was scored."""
    if not metrics:
        return [], ""
    every = [evaluation["settings"] for evaluation in metrics.values()]
    by_contents = all("sha256" in settings for settings in every)
    _check_alike(metrics, lambda of: scored_by(of, by_contents) | {"ks": of["ks"], "limit": of.get("limit")})
    if len({hashes["train"] for of in every if "train" in (hashes := of.get("sha256") or {})}) > 1:
        raise UserError(
            f"{', '.join(metrics)}: novelty and popularity are of different training files; evaluate all with one "
            "--train"
        )
    first = every[0]
    protocol = first["protocol"]  # further ones are not shown
    columns: dict[str, dict[str, Any]] = {}
    for evaluation in metrics.values():
        columns |= {name: result for name, result in evaluation["results"][protocol].items() if name not in OF_MODEL}
    for name, evaluation in metrics.items():
        label_of = {"model": name, "constrained": f"{name}, constrained"}
        results = evaluation["results"][protocol]
        columns |= {label_of[of_model]: results[of_model] for of_model in OF_MODEL if of_model in results}
    summary = next(iter(columns.values()))
    about = (
        f"{Path(first['data']).name}: {summary['n']} rows, {summary['num_contexts']} conversations; protocol "
        f"{protocol}, matching {first['matching']}, greedy lists."
    )
    about = " ".join([about, *not_measured(summary)])
    results = {name: _with_nan(result) for name, result in columns.items()}
    rows = [table_row(name, result, first["ks"]) | beyond_accuracy_row(result) for name, result in results.items()]
    return rows, about


def _difference(
    evaluations: Mapping[str, Path], metrics: Mapping[str, dict[str, Any]], gain: GainChart
) -> dict[str, Any]:
    """The table's column of the second evaluation minus the first: paired row by row, counts without an error."""
    (reference, before), (name, after) = ((name, rows_of(folder)) for name, folder in evaluations.items())
    samples = [sample for sample, row in before.items() if sample in after and row["num_truth"]]
    of_before, of_after = ([rows[sample] for sample in samples] for rows in (before, after))
    conversations = [before[sample]["prompt_id"] for sample in samples]
    settings = next(iter(metrics.values()))["settings"]
    figures = beyond_difference([of_before], [of_after], conversations, settings.get("catalog_items", 0))
    first, second = (found["results"][settings["protocol"]]["model"] for found in metrics.values())
    counts = {metric: _signed(second[key] - first[key]) for key, metric in COUNTS.items()}
    paired = {metric: (one.mean, one.se) for metric, one in gain.gains.items()} | beyond_accuracy_row(figures)
    signed = {metric: (_signed(mean), error) for metric, (mean, error) in paired.items()}
    return {"model": f"{name} minus {reference}", **signed, **counts}


def _signed(value: float) -> str:
    return f"{'+' if value > 0 else ''}{number_text(value)}"


def _judge_table(metrics: Mapping[str, dict[str, Any]]) -> tuple[list[dict[str, Any]], str]:
    """The same of judges, with the best of all constant answers last."""
    first = next(iter(metrics.values()))["settings"]
    _check_alike(metrics, lambda of: {name: of.get(name) for name in ("judge", "data", "limit", "sha256")})
    results = {name: _with_nan(evaluation["results"]) for name, evaluation in metrics.items()}
    columns: list[dict[str, Any]] = [
        {"model": name, **{key: (value["mean"], value["se"]) for key, value in summary.items() if _has_error(value)}}
        for name, summary in results.items()
    ]
    summary = next(iter(results.values()))
    columns.append({"model": "always the same", **summary["baseline"]})
    return columns, f"{first['data']}: {summary['n']} rows, {summary['num_contexts']} queries; {first['judge']} judge."


def _has_error(value: Any) -> bool:
    return isinstance(value, Mapping) and "se" in value


def _check_alike(metrics: Mapping[str, dict[str, Any]], compared: Callable[[Any], Mapping[str, Any]]) -> None:
    """Raise UserError when an evaluation differs from the first in what `compared` takes from its settings."""
    name_of_first, *_ = metrics
    first = compared(metrics[name_of_first]["settings"])
    for name, evaluation in metrics.items():
        other = compared(evaluation["settings"])
        if different := next((key for key in first if other[key] != first[key]), None):
            raise UserError(
                f"{name}: evaluated with {different} {other[different]}, {name_of_first} with {first[different]}; "
                "evaluate all alike"
            )


def _with_nan(summary: Mapping[str, Any]) -> dict[str, Any]:
    """JSON's null back to what it stood for."""
    return {
        key: {k: float("nan") if v is None else v for k, v in value.items()} if isinstance(value, dict) else value
        for key, value in summary.items()
    }


def _charts(runs: Sequence[RunCurves]) -> dict[str, list[Chart]]:
    """The charts of each recipe's runs under the names of their methods."""
    charts = {}
    for recipe in PANELS:
        if of_recipe := [run for run in runs if run.recipe == recipe]:
            charts[", ".join(dict.fromkeys(run.method for run in of_recipe))] = charts_of(of_recipe)
    return charts


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m recipes.report", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run folder (SAVE_PATH)")
    parser.add_argument("--out", type=Path, default=Path("outputs/report.html"), help="file to write (%(default)s)")
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
