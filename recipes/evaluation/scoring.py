"""Responses scored against a split: rows, their summary, the comparison of two evaluations, and their files."""

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
from convrec.lists.metrics import evaluate_row, metric_names, paired, summarise
from convrec.titles.item import Item
from convrec.titles.matching import Matcher
from recipes.evaluation.beyond_accuracy import MEASURES, OF_MENTIONS, Figures, add_measures, compute_figures
from recipes.evaluation.measures import Context
from recipes.evaluation.split import Split

Row = dict[str, Any]
Scored = list[Row]
Settings = Mapping[str, Any]  # of an evaluation, as metrics.json has them
OF_MODEL = ("model", "constrained")  # of an evaluation's results; the other ones are baselines, but
FUSED = "fused"  # the lists of the model, constrained where there are such, with those of the retrieval
# settings of an evaluation by which the lists of one model get other figures
SCORED_WITH = ("num_items", "ks", "protocols", "matching", "year_tolerance", "fuzzy_cutoff", "delimiter", "limit")
COUNTS = {  # of a summary -> a column of a table
    "catalog_hit_ratio": "in catalog",
    "items_per_list": "items per list",
    "list_length_errors": "list length errors",
    "distinct_items": "distinct items",
    "repeats_per_list": "repeats per list",
    "n": "n",
}
USUAL = 0.9  # share of lists of one length: above this share we assume the length of training


def score(
    split: Split, matcher: Matcher, responses: Sequence[Sequence[Item | None]], protocol: str, settings: Settings
) -> Scored:
    """metrics.evaluate_row of every row, with `repeats`, catalog items that the list names again, and `recommended`,
    the different catalog rows of its first `num_items` lines."""
    scored = []
    first_row = matcher.index.items
    for row, items in zip(split.rows, responses, strict=True):
        result = evaluate_row(items, get_truth(row), row["seen_titles"], matcher, protocol, settings["ks"])
        result["repeats"] = len(result["catalog_rows"]) - len(set(result["catalog_rows"]))
        listed = result.pop("catalog_index")[: settings["num_items"]]
        result["recommended"] = list(dict.fromkeys(first_row[item] for item in listed if item >= 0))
        scored.append(result)
    return scored


def summary(scored: Scored, split: Split, settings: Settings, context: Context | None = None) -> dict[str, Any]:
    """metrics.summarise with repeats_per_list and items_per_list; with `context` also the measures beyond accuracy, of
    each row too."""
    num_items = settings["num_items"]
    seed = settings["seed"]
    kept = [row for row in scored if row["num_truth"]]
    beyond: Figures = {}
    if context is not None:
        add_measures(scored, context)
        contexts = [name for name, row in zip(split.prompt_ids, scored, strict=True) if row["num_truth"]]
        beyond = compute_figures([kept], contexts, context.num_items, seed)
    return (
        summarise(scored, settings["ks"], split.prompt_ids, seed, num_items)
        | beyond
        | {
            "repeats_per_list": sum(row["repeats"] for row in kept) / len(kept),
            "items_per_list": sum(row["num_items"] for row in kept) / len(kept),
        }
    )


def unlike_lengths(lists: Sequence[Sequence[Item | None]], num_items: int) -> list[str]:
    length, times = Counter(map(len, lists)).most_common(1)[0]
    if length == num_items or times <= USUAL * len(lists):
        return []
    return [
        f"{times} of {len(lists)} lists have {length} items, not {num_items}: "
        "if the model was trained for that, say so with --num-items and --ks"
    ]


def comparable(settings: Settings) -> dict[str, Any]:
    """What two evaluations must have in common, their first protocol included."""
    files = {
        name: f"{Path(settings[name]).name} (SHA-256 {settings['sha256'][name][:12]})" for name in ("data", "catalog")
    }
    alike = ("matching", "num_items", "year_tolerance", "fuzzy_cutoff")
    return {"protocol": settings["protocols"][0]} | files | {name: settings[name] for name in alike}


def read_earlier(folder: Path, split: Split, settings: Settings) -> list[Row | None]:
    """Of each row of the split the row of an earlier evaluation, None where that has none of this conversation.

    settings: this evaluation's. Raises UserError when the other is none, was scored otherwise, or has no such row.
    """
    others = load_metrics(folder, "--against ")["settings"]
    if "protocols" not in others:
        raise UserError(f"--against {folder}: of a judge; give an evaluation of lists")
    unlike = differences(comparable(others), comparable(settings))
    if any(k not in others["ks"] for k in settings["ks"]):
        unlike += differences({"ks": others["ks"]}, {"ks": settings["ks"]})
    if unlike:
        raise UserError(f"--against {folder}: it was scored otherwise: {', '.join(unlike)}; evaluate both alike")
    rows = load_rows(folder, "--against ")
    if others["sha256"].get("train") != settings["sha256"].get("train"):
        for row, name in itertools.product(rows.values(), OF_MENTIONS):
            row.pop(name, None)  # counted in other training rows
    before = [rows.get(row["sample_id"]) for row in split.rows]
    before = [
        row if row and row["num_truth"] and row["prompt_id"] == prompt_id else None
        for row, prompt_id in zip(before, split.prompt_ids, strict=True)
    ]
    if not any(before):
        raise UserError("--against: no row of that evaluation is in this split; compare evaluations of the same data")
    return before


def paired_differences(
    before: Sequence[Row | None], after: Sequence[Row], split: Split, settings: Settings
) -> dict[str, Any]:
    """After minus before on the rows that both have and that have ground truth: {metric: {"mean", "se", "p"}, "n"}, and
    of the measures beyond accuracy that both have {"mean", "se", "n"}."""
    both = [
        (earlier, row, prompt_id)
        for earlier, row, prompt_id in zip(before, after, split.prompt_ids, strict=True)
        if earlier is not None and row["num_truth"]
    ]
    rows_before, rows_after, contexts = zip(*both, strict=True)
    seed = settings["seed"]
    figures = paired(rows_before, rows_after, metric_names(settings["ks"]), contexts, seed)
    beyond = compute_figures([rows_after], contexts, settings["catalog_items"], seed, minus=[rows_before])
    return {"n": len(contexts), **figures, **beyond}


def model_line(metrics: Mapping[str, Any], model: str = "model") -> dict[str, float]:
    """What an evaluation found, as columns of a table: means, standard errors, the paired gain over another evaluation
    where it has one, of constrained lists their own and their gain over the free ones, the paired gain over each
    baseline, counts. model: a baseline, to have its means and counts."""
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
    """rows.parquet: metrics of the first protocol under their names, of further ones with theirs in front; where the
    catalog has ids, `recommended_ids`, those of `recommended`; where a user answered, what was said."""
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
    """metrics.json, null figures as the NaN that they stood for. Raises UserError when there is none, or a damaged one.
    given_as: the option that names the folder."""
    file = folder / "metrics.json"
    if not file.exists():
        raise UserError(f"{given_as}{folder}: no metrics.json; give the --out folder of convrec evaluate")
    try:
        return json.loads(file.read_text(encoding="utf-8"), object_hook=_with_nan)
    except ValueError:
        raise UserError(f"{given_as}{file}: cut off; evaluate that model again") from None


def _with_nan(value: dict[str, Any]) -> dict[str, Any]:
    return {key: math.nan if one is None and key in ("mean", "se", "p") else one for key, one in value.items()}


def load_rows(folder: Path, given_as: str = "", key: str = "sample_id") -> dict[Any, dict[str, Any]]:
    """What a row has at `key` -> row of rows.parquet. Raises UserError when it is gone."""
    path = folder / "rows.parquet"
    if not path.exists():
        raise UserError(f"{given_as}{path}: gone since it was evaluated, or of baselines alone; evaluate again")
    return {row[key]: row for row in pq.read_table(path).to_pylist()}
