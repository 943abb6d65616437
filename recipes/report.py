"""Write an HTML report about one or more runs: gains, test metrics, curves, lists with their hits, settings.

Test metrics and lists come from sweeps: for one run those of its initial model and newest checkpoint, for several runs
those of their newest checkpoints; `--evaluations` names other evaluations instead. Each model is compared with the one
that its run started from; if that one is not in the report, with the first.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from convrec.base.errors import UserError
from convrec.base.options import command
from convrec.base.statistics import FLIPS
from convrec.lists.metrics import paired
from convrec.report.charts import make_charts
from convrec.report.curves import RunCurves, group_by_recipe, label_runs
from convrec.report.page import (
    GainTable,
    explain_missing_measures,
    format_gain,
    format_number,
    make_beyond_accuracy_row,
    make_table_row,
)
from convrec.report.run_summary import build_settings, collect_facts
from convrec.runs.folder import read_config
from recipes.evaluation.baselines import RETRIEVAL
from recipes.evaluation.examples import choose_examples
from recipes.evaluation.references import choose_references
from recipes.evaluation.scoring import FUSED, OF_MODEL, get_comparable_settings, load_metrics, load_rows
from recipes.evaluation.slices import format_metric
from recipes.launch.recipe import RECIPES
from recipes.options.look import ReportOptions
from recipes.plot import check_comparable, read_runs

EXAMPLES = 4
TABLE = "Mean ± standard error (bootstrap over conversations); bold is the best of a metric."
CLOSED_UP = (
    "Protocol {protocol} removes seen items and items outside the catalog from a list, and the others move up: the "
    "7th line of a list may count as rank 5."
)
_CAPTION = (
    "{n} rows, {contexts} conversations. Standard errors by bootstrap over conversations. p: two-sided, for each "
    "metric separately, by {flips:,} sign flips of whole conversations; {least:.4f} is the smallest possible value."
)
Evaluations = Mapping[str, dict[str, Any]]  # name -> metrics.json


def make_gain_tables(
    evaluations: Mapping[str, Path], references: Mapping[str, str], ks: Sequence[int], seed: int
) -> dict[str, GainTable]:
    """Make a table of each model's gains over its reference, paired by row.

    Args:
        evaluations: name -> OUT of `convrec evaluate`.
        references: name -> name of the evaluation to subtract.
        ks: cut-offs of the metrics.
        seed: of the sign flips.

    Returns:
        Name -> table, with one row per metric, in the order of `references`.

    Raises:
        UserError: The rows of an evaluation are gone.
    """
    if not references:
        return {}
    rows_of_models = {name: load_rows(folder) for name, folder in evaluations.items()}
    first, *others = rows_of_models.values()
    in_all = set(first).intersection(*others)
    samples = [sample for sample, row in first.items() if sample in in_all and row["num_truth"]]
    conversations = [first[sample]["prompt_id"] for sample in samples]
    caption = _make_caption(len(samples), len(set(conversations)))
    tables = {}
    for name, reference in references.items():
        before = [rows_of_models[reference][sample] for sample in samples]
        after = [rows_of_models[name][sample] for sample in samples]
        gains = paired(before, after, _list_metrics(ks), conversations, seed)
        tables[name] = _make_gain_table(name, reference, gains, ks, caption)
    return tables


def make_fused_gain_tables(evaluations: Evaluations, ks: Sequence[int]) -> dict[str, GainTable]:
    """Make a table of the gains of each model's fused lists over those of the retrieval, which need no model.

    Args:
        evaluations: name -> metrics.json. Those without fused lists have no table.
        ks: cut-offs of the metrics.

    Returns:
        Name of the fused lists, as in the table of the report -> table, with one row per metric.
    """
    tables = {}
    for name, evaluation in evaluations.items():
        if FUSED not in evaluation:
            continue
        gains = evaluation[FUSED]["paired"]
        fused = evaluation["results"][evaluation["settings"]["protocols"][0]][FUSED]
        caption = _make_caption(gains["n"], fused["num_contexts"])
        tables[f"{name}, {FUSED}"] = _make_gain_table(f"{name}, {FUSED}", RETRIEVAL, gains, ks, caption)
    return tables


def _list_metrics(ks: Sequence[int]) -> list[str]:
    """Return the metrics of a gain table, in its order."""
    return [f"{metric}@{k}" for metric in ("ndcg", "recall") for k in sorted(ks, reverse=True)]


def _make_caption(rows: int, conversations: int) -> str:
    return _CAPTION.format(n=rows, contexts=conversations, flips=FLIPS, least=1 / (1 + FLIPS))


def _make_gain_table(name: str, reference: str, gains: Mapping[str, Any], ks: Sequence[int], caption: str) -> GainTable:
    of_metrics = {format_metric(metric): gains[metric] for metric in _list_metrics(ks)}
    return GainTable(f"{name} minus {reference}", of_metrics, caption)


def report(
    folders: Sequence[Path],
    out: Path,
    evaluations: Mapping[str, Path] | None = None,
    split: str | None = None,
    more: Mapping[str, Any] | None = None,
) -> Path:
    """Write a report about runs, and return its path.

    Args:
        folders: of the runs; may be empty with `more`.
        out: HTML file to write.
        evaluations: name -> OUT of `convrec evaluate`; None: those of the runs' sweeps.
        split: whose sweep to use, if a run has several.
        more: parts of html.write_report that replace those found here.

    Raises:
        UserError: A folder is not a run or an evaluation, or evaluations cannot be compared.
    """
    if out.is_dir():
        raise UserError(
            "report.out-is-folder", f"--out {out}: is a folder. Name a file, such as {out / 'report.html'}."
        )
    runs = read_runs(folders, split) if folders else []
    paths = dict.fromkeys(folder.resolve() for folder in folders)
    folder_of = {run.name: path for run, path in zip(runs, paths, strict=True)}
    parts = _describe_runs(runs, folder_of)
    chosen = dict(evaluations or _newest_evaluations(runs, folder_of))
    metrics = {name: load_metrics(folder) for name, folder in chosen.items()}
    if metrics:
        parts |= _summarise_lists(chosen, metrics)
    elif all(RECIPES[run.recipe].answers == "lists" for run in runs):
        parts["notes"].insert(0, "No evaluation yet: convrec evaluate --model RUN --sweep adds it.")
    from convrec.report.html import write_report  # imports matplotlib, so after all checks

    return write_report(out, parts | dict(more or {}))


def _describe_runs(runs: Sequence[RunCurves], folder_of: Mapping[str, Path]) -> dict[str, Any]:
    """Return the parts of the page about runs: title, summary, notes, charts, settings."""
    labels = label_runs(runs)
    configs = {name: read_config(folder) for name, folder in folder_of.items()}
    charts = {}
    for recipe_runs in group_by_recipe(runs).values():
        methods = dict.fromkeys(run.method for run in recipe_runs)
        charts[", ".join(methods)] = make_charts(recipe_runs)
    return {
        "title": ", ".join(labels.values()) if len(runs) < 4 else f"{len(runs)} runs",
        "summary": {
            labels[run.name]: collect_facts(folder_of[run.name], configs[run.name], run.last_step) for run in runs
        },
        "notes": [warning for run in runs for warning in run.warnings],
        "charts": charts,
        "settings": {labels[run.name]: build_settings(run.recipe, configs[run.name]) for run in runs},
    }


def _newest_evaluations(runs: Sequence[RunCurves], folder_of: Mapping[str, Path]) -> dict[str, Path]:
    """Return the evaluation of each run's newest swept step, and for a single run also that of step 0, by name."""
    newest = {}
    labels = label_runs(runs)
    for run in runs:
        if run.split is None:
            continue
        steps = sorted(run.series["evaluated/ndcg"])
        for step in [steps[0], steps[-1]] if len(runs) == 1 else steps[-1:]:
            folder = folder_of[run.name] / "evaluation" / run.split / f"step_{step:06d}"
            newest[f"{labels[run.name]} (step {step})"] = folder
    return newest


def _summarise_lists(folders: Mapping[str, Path], metrics: Evaluations) -> dict[str, Any]:
    """Return the parts of the page about lists: gains, the table (baselines first), examples."""
    settings = {name: evaluation["settings"] for name, evaluation in metrics.items()}
    _check_evaluations(folders, settings)
    first = next(iter(settings.values()))
    protocol = first["protocols"][0]  # the report shows the first protocol only
    ks = first["ks"]
    results = {name: evaluation["results"][protocol] for name, evaluation in metrics.items()}
    references = choose_references(settings)
    gains = make_gain_tables(folders, references, ks, first["seed"])
    columns = _table_columns(results)
    table = [make_table_row(name, result, ks) | make_beyond_accuracy_row(result) for name, result in columns.items()]
    summary = next(iter(columns.values()))
    split = Path(first["data"]).name
    about = (
        f"{split}: {summary['n']} rows, {summary['num_contexts']} conversations; protocol {protocol}, matching "
        f"{first['matching']}, greedy lists."
    )
    closed_up = CLOSED_UP.format(protocol=protocol) if protocol in ("paper", "reference") else ""
    return {
        "headline": _headline(gains, references, results, split, max(ks)),
        "gains": [*gains.values(), *make_fused_gain_tables(metrics, ks).values()],
        "table": table,
        "about_table": [
            text for text in (" ".join([about, *explain_missing_measures(summary)]), closed_up, TABLE) if text
        ],
        "examples": choose_examples(folders, references, EXAMPLES),
    }


def _check_evaluations(folders: Mapping[str, Path], settings: Evaluations) -> None:
    """Raise UserError for evaluations without lists, and for those that cannot be compared."""
    for name, folder in folders.items():
        if "judge" in settings[name]:
            raise UserError(
                "report.judge-evaluation",
                f"{folder}: evaluates a judge, whose table convrec evaluate --judge prints. Name evaluations of lists.",
            )
        if settings[name]["model"] is None:
            raise UserError(
                "report.baselines-only", f"{folder}: evaluates baselines only. Name an evaluation of a model."
            )
    facts = {
        name: get_comparable_settings(of) | {"ks": of["ks"], "limit": of["limit"]} for name, of in settings.items()
    }
    check_comparable(facts, "evaluated", "Evaluate all with the same settings.")
    train_hashes = {of["sha256"]["train"] for of in settings.values() if "train" in of["sha256"]}
    if len(train_hashes) > 1:
        raise UserError(
            "report.different-training-files",
            f"{', '.join(settings)}: novelty and popularity are computed from different training files. Evaluate all "
            "with the same --train.",
        )


def _table_columns(results: Evaluations) -> dict[str, dict[str, Any]]:
    """Return the results to compare, by name: baselines, then each model's free, constrained and fused lists."""
    columns: dict[str, dict[str, Any]] = {}
    for by_model in results.values():
        columns |= {name: result for name, result in by_model.items() if name not in OF_MODEL and name != FUSED}
    for name, by_model in results.items():
        columns[name] = by_model["model"]
        columns |= {f"{name}, {of}": by_model[of] for of in ("constrained", FUSED) if of in by_model}
    return columns


def _headline(
    gains: Mapping[str, GainTable], references: Mapping[str, str], results: Evaluations, split: str, k: int
) -> str:
    """Return NDCG at the largest k.

    It is the gain of the last model if each one was started from the one before, and the value of a single model; ""
    for several models with the same reference.
    """
    if not references:
        ((name, result),) = results.items()
        ndcg = result["model"][f"ndcg@{k}"]
        return f"{name}, {split}: NDCG@{k} {format_number(ndcg['mean'])} ±{format_number(ndcg['se'])}"
    last_models = [name for name in references if name not in references.values()]
    if len(last_models) != 1:
        return ""
    table = gains[last_models[0]]
    gain = table.gains[f"NDCG@{k}"]
    change = f"{format_gain(gain)}, p\u00a0=\u00a0{format_number(gain['p'])}"
    return f"{table.title}, {split}: NDCG@{k} {change}"


@command(ReportOptions)
def main(options: ReportOptions) -> int:
    """Write a report; return the exit status."""
    print(report(options.runs, options.out, options.evaluations, options.split))
    return 0
