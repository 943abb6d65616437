"""Scores of responses to a split: rows, their summary, the comparison of two evaluations, and the files."""

import itertools
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from convrec.base.errors import UserError
from convrec.base.files import write_table
from convrec.base.same_request import differences
from convrec.data.schema import get_truth
from convrec.lists.metrics import evaluate_row, list_metric_names, paired, summarise
from convrec.titles.item import Item
from convrec.titles.matching import Matcher
from recipes.evaluation.beyond_accuracy import MEASURES, MENTION_MEASURES, Figures, add_measures, compute_figures
from recipes.evaluation.measures import Context
from recipes.evaluation.split import Split

Row = dict[str, Any]
Scored = list[Row]
Settings = Mapping[str, Any]  # of an evaluation, as metrics.json has them
# An evaluation's results are those of the model (OF_MODEL), of the fusion, and of baselines.
OF_MODEL = ("model", "constrained")
FUSED = "fused"  # the model's lists, constrained ones if there are any, fused with the retrieval's
# Settings of an evaluation that change the figures of the same model.
SCORED_WITH = ("num_items", "ks", "protocols", "matching", "year_tolerance", "fuzzy_cutoff", "delimiter", "limit")
COUNTS = {  # key of a summary -> column of a table
    "catalog_hit_ratio": "in catalog",
    "items_per_list": "items per list",
    "list_length_errors": "list length errors",
    "distinct_items": "distinct items",
    "repeats_per_list": "repeats per list",
    "n": "n",
}
UNIFORM_LENGTH_SHARE = 0.9  # share of lists of one length: above this share we assume the length of training


def score_responses(
    split: Split, matcher: Matcher, responses: Sequence[Sequence[Item | None]], protocol: str, settings: Settings
) -> Scored:
    """Score each row's list with metrics.evaluate_row.

    Returns:
        Its results, with `repeats`, the number of lines that repeat a catalog item, and `recommended`, the distinct
        catalog rows of the first `num_items` lines.
    """
    scored = []
    first_row = matcher.index.items
    for row, items in zip(split.rows, responses, strict=True):
        result = evaluate_row(items, get_truth(row), row["seen_titles"], matcher, protocol, settings["ks"])
        result["repeats"] = len(result["catalog_rows"]) - len(set(result["catalog_rows"]))
        listed = result.pop("catalog_index")[: settings["num_items"]]
        result["recommended"] = list(dict.fromkeys(first_row[item] for item in listed if item >= 0))
        scored.append(result)
    return scored


def summarise_rows(scored: Scored, split: Split, settings: Settings, context: Context | None = None) -> dict[str, Any]:
    """Summarise scored rows: metrics.summarise, repeats_per_list and items_per_list.

    Args:
        scored: the results of `score_responses`. With `context`, the measures beyond accuracy are added to them in
            place.
        split: the rows, at least one with ground truth.
        settings: of the evaluation.
        context: adds the measures beyond accuracy; None leaves them out.

    Returns:
        Metric -> a number, or a mean with its standard error as {"mean", "se", ...}.
    """
    num_items = settings["num_items"]
    seed = settings["seed"]
    with_truth = [row for row in scored if row["num_truth"]]
    beyond: Figures = {}
    if context is not None:
        add_measures(scored, context)
        contexts = [name for name, row in zip(split.prompt_ids, scored, strict=True) if row["num_truth"]]
        beyond = compute_figures([with_truth], contexts, context.num_items, seed)
    return (
        summarise(scored, settings["ks"], split.prompt_ids, seed, num_items)
        | beyond
        | {
            "repeats_per_list": sum(row["repeats"] for row in with_truth) / len(with_truth),
            "items_per_list": sum(row["num_items"] for row in with_truth) / len(with_truth),
        }
    )


def warn_unexpected_list_length(lists: Sequence[Sequence[Item | None]], num_items: int) -> list[str]:
    """Warn if almost all lists have the same length, and it is not the requested one.

    Args:
        lists: at least one.
        num_items: the requested length.

    Returns:
        One warning, or [].
    """
    length, times = Counter(map(len, lists)).most_common(1)[0]
    if length == num_items or times <= UNIFORM_LENGTH_SHARE * len(lists):
        return []
    return [
        f"{times} of {len(lists)} lists have {length} items, not {num_items}. "
        "If the model was trained for that length, set --num-items and --ks."
    ]


def get_comparable_settings(settings: Settings) -> dict[str, Any]:
    """Return the settings that two evaluations must share to be compared, with the first protocol of each.

    Args:
        settings: as metrics.json has them.

    Returns:
        Name -> value; files as their name and the beginning of their hash.
    """
    files = {
        name: f"{Path(settings[name]).name} (SHA-256 {settings['sha256'][name][:12]})" for name in ("data", "catalog")
    }
    alike = ("matching", "num_items", "year_tolerance", "fuzzy_cutoff")
    return {"protocol": settings["protocols"][0]} | files | {name: settings[name] for name in alike}


def read_earlier_rows(folder: Path, split: Split, settings: Settings) -> list[Row | None]:
    """Read an earlier evaluation's row for each row of the split; None where it has no row of the conversation.

    Args:
        folder: --out of the earlier evaluation.
        split: rows to compare.
        settings: of this evaluation.

    Raises:
        UserError: The folder has no evaluation of lists, was scored with other settings, or shares no row.
    """
    others = load_metrics(folder, "--against ")["settings"]
    if "protocols" not in others:
        raise UserError(
            "evaluation.judge-against-lists", f"--against {folder}: evaluates a judge. Name an evaluation of lists."
        )
    unlike = differences(get_comparable_settings(others), get_comparable_settings(settings))
    if any(k not in others["ks"] for k in settings["ks"]):
        unlike += differences({"ks": others["ks"]}, {"ks": settings["ks"]})
    if unlike:
        raise UserError(
            "evaluation.other-scoring",
            f"--against {folder}: scored with other settings ({', '.join(unlike)}). Evaluate both with the same ones.",
        )
    rows = load_rows(folder, "--against ")
    if others["sha256"].get("train") != settings["sha256"].get("train"):
        for row, name in itertools.product(rows.values(), MENTION_MEASURES):
            row.pop(name, None)  # its mentions were counted in other training rows
    before = [rows.get(row["sample_id"]) for row in split.rows]
    before = [
        row if row and row["num_truth"] and row["prompt_id"] == prompt_id else None
        for row, prompt_id in zip(before, split.prompt_ids, strict=True)
    ]
    if not any(before):
        raise UserError(
            "evaluation.no-common-rows",
            f"--against {folder}: shares no row with {split.data}. Compare evaluations of the same data.",
        )
    return before


def compute_paired_differences(
    before: Sequence[Row | None], after: Sequence[Row], split: Split, settings: Settings
) -> dict[str, Any]:
    """Compare two evaluations, after minus before, on their common rows with ground truth.

    Returns:
        {metric: {"mean", "se", "p"}, "n": number of rows}, and {"mean", "se", "n"} of the measures beyond accuracy that
        both evaluations have.
    """
    both = [
        (earlier, row, prompt_id)
        for earlier, row, prompt_id in zip(before, after, split.prompt_ids, strict=True)
        if earlier is not None and row["num_truth"]
    ]
    rows_before, rows_after, contexts = zip(*both, strict=True)
    seed = settings["seed"]
    figures = paired(rows_before, rows_after, list_metric_names(settings["ks"]), contexts, seed)
    beyond = compute_figures([rows_after], contexts, settings["catalog_items"], seed, minus=[rows_before])
    return {"n": len(contexts), **figures, **beyond}


def make_model_line(metrics: Mapping[str, Any], model: str = "model") -> dict[str, float]:
    """Flatten an evaluation's results into one row of a table.

    Args:
        metrics: content of metrics.json.
        model: name of the result; for a baseline, only means, standard errors and counts.

    Returns:
        Column -> value: means and standard errors, the paired gain over `--against`, constrained lists and their gain
        over free ones, the paired gain over each baseline, and counts.
    """
    settings = metrics["settings"]
    results = metrics["results"][settings["protocols"][0]]
    names = [*(f"{metric}@{k}" for metric in ("ndcg", "recall") for k in settings["ks"]), *MEASURES]
    kinds = {"": results[model]}
    if model == "model":
        kinds |= {" gain": metrics.get("paired", {}), " constrained": results.get("constrained", {})}
        kinds |= {" constrained gain": metrics.get("constrained", {}).get("paired", {})}
        kinds |= {f" minus {name}": figures for name, figures in metrics.get("minus", {}).items()}
    line: dict[str, float] = {}
    for (kind, figures), name in itertools.product(kinds.items(), names):
        words = {"mean": "", "se": " se", "p": " p"} if name in figures else {}
        line |= {f"{name}{kind}{word}": figures[name][key] for key, word in words.items() if key in figures[name]}
    return line | {column: results[model][name] for name, column in COUNTS.items()}


def write_rows(path: Path, split: Split, answers: Sequence[Row], scored: Mapping[str, Scored]) -> None:
    """Write rows.parquet.

    Metrics of the first protocol stand under their names, those of further protocols as `protocol/metric`. If the
    catalog has ids, `recommended_ids` are those of `recommended`; if a user answered, `dialogue` has the turns.

    Args:
        path: the file, which is replaced.
        split: the rows.
        answers: one per row, with its text.
        scored: protocol -> scores, one per row; the first protocol is the main one.
    """
    first, *others = scored
    ids = split.catalog.item_ids
    table = []
    for index, (prompt_id, row, answer) in enumerate(zip(split.prompt_ids, split.rows, answers, strict=True)):
        record = {"sample_id": row["sample_id"], "prompt_id": prompt_id}
        record |= {name: answer[name] for name in ("text", "finish_reason", "dialogue") if name in answer}
        record |= {name: value for name, value in scored[first][index].items() if name != "catalog_rows"}
        if ids:
            record["recommended_ids"] = [
                None if ids[item] is None else str(ids[item]) for item in record["recommended"]
            ]
        for protocol in others:
            values = scored[protocol][index].items()
            record |= {f"{protocol}/{name}": value for name, value in values if "@" in name}
        table.append(record)
    write_table(path, pa.Table.from_pylist(table))


def load_metrics(folder: Path, given_as: str = "") -> dict[str, Any]:
    """Load metrics.json, with null figures as NaN.

    Args:
        folder: --out of an evaluation.
        given_as: start of error messages, the option that names the folder and a space.

    Raises:
        UserError: The file is missing or damaged.
    """
    file = folder / "metrics.json"
    if not file.exists():
        raise UserError(
            "evaluation.missing-metrics", f"{given_as}{folder}: no metrics.json. Name the --out of convrec evaluate."
        )
    try:
        return json.loads(file.read_text(encoding="utf-8"), object_hook=_with_nan)
    except ValueError:
        raise UserError(
            "evaluation.damaged-metrics", f"{given_as}{file}: not valid JSON. Evaluate the model again."
        ) from None


def _with_nan(value: dict[str, Any]) -> dict[str, Any]:
    return {key: math.nan if item is None and key in ("mean", "se", "p") else item for key, item in value.items()}


def load_rows(folder: Path, given_as: str = "", key: str = "sample_id") -> dict[Any, dict[str, Any]]:
    """Load the rows of an evaluation.

    Args:
        folder: --out of the evaluation.
        given_as: start of error messages; see `load_metrics`.
        key: the column that names a row.

    Returns:
        Value of `key` -> row.

    Raises:
        UserError: the file is missing.
    """
    path = folder / "rows.parquet"
    if not path.exists():
        raise UserError(
            "evaluation.missing-rows",
            f"{given_as}{path}: gone since the evaluation, or that evaluated baselines only. Evaluate a model again.",
        )
    return {row[key]: row for row in pq.read_table(path).to_pylist()}
