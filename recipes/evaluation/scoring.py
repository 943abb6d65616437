"""Responses scored against a split: rows, their summary, files of them, and the comparison of two evaluations."""

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from convrec.errors import UserError
from convrec.files import read_json, write_table
from convrec.generation.answers import Answer
from convrec.lists.metrics import evaluate_row, paired, summarise
from convrec.lists.ranks import Item
from convrec.lists.settings import ListSettings
from recipes.evaluation.beyond_accuracy import (
    MEASURES,
    OF_A_ROW,
    OF_MENTIONS,
    Context,
    Figures,
    Lists,
    add_measures,
    difference,
    means,
    summarise_lists,
)
from recipes.evaluation.split import Split

Scored = list[dict[str, Any]]
OF_MODEL = ("model", "constrained")  # of an evaluation's results; the other ones are baselines and probes
# settings of an evaluation by which the lists of one model get other figures
SCORED_WITH = ("num_items", "ks", "protocols", "matching", "year_tolerance", "fuzzy_cutoff", "delimiter", "limit")
USUAL = 0.9  # share of lists of one length from which on it is what the model was trained for


def score(
    split: Split, responses: Sequence[Sequence[Item | None]], protocol: str, ks: Sequence[int], num_items: int
) -> Scored:
    """metrics.evaluate_row of every row, with `repeats`, catalog items that the list names again, and `recommended`,
    the different catalog rows of its first `num_items` lines."""
    scored, first_row = [], split.matcher.index.items
    for place, items in enumerate(responses):
        seen = split.rows[place]["seen_titles"]
        result = evaluate_row(items, split.truth(place), seen, split.matcher, protocol, ks)
        result["repeats"] = len(result["catalog_rows"]) - len(set(result["catalog_rows"]))
        listed = result.pop("catalog_index")[:num_items]
        result["recommended"] = list(dict.fromkeys(first_row[index] for index in listed if index >= 0))
        scored.append(result)
    return scored


def summary(
    scored: Scored, split: Split, ks: Sequence[int], seed: int, num_items: int, context: Context | None = None
) -> dict[str, Any]:
    """metrics.summarise with repeats_per_list, lists_with_repeats, and what the list-length errors are; with `context`
    also the measures beyond accuracy, of each row too."""
    kept = [row for row in scored if row["num_truth"]]
    beyond: Figures = {}
    if context is not None:
        add_measures(scored, context)
        contexts = [name for name, row in zip(split.prompt_ids, scored, strict=True) if row["num_truth"]]
        beyond = summarise_lists(Lists(kept, context.facts.num_items), contexts, seed)
    return (
        summarise(scored, ks, split.prompt_ids, seed, num_items)
        | beyond
        | {
            "repeats_per_list": sum(row["repeats"] for row in kept) / len(kept),
            "lists_with_repeats": sum(row["repeats"] > 0 for row in kept),
            "short_lists": sum(row["num_items"] < num_items for row in kept),
            "long_lists": sum(row["num_items"] > num_items for row in kept),
            "items_per_list": sum(row["num_items"] for row in kept) / len(kept),
        }
    )


def unlike_lengths(lists: Sequence[Sequence[Item | None]], num_items: int) -> list[str]:
    """A warning when most lists have one length that is not `num_items`."""
    length, times = Counter(map(len, lists)).most_common(1)[0]
    if length == num_items or times <= USUAL * len(lists):
        return []
    return [
        f"{times} of {len(lists)} lists have {length} items, not {num_items}: "
        "if the model was trained for that, say so with --num-items and --ks"
    ]


def read_other(folder: Path, settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """sample_id -> row of an earlier evaluation; `settings` are this one's, as metrics.json has them.

    Raises UserError when it is none or was scored otherwise: by its first protocol, the contents of data and catalog,
    the matcher and the number of items.
    """
    for name in ("metrics.json", "rows.parquet"):
        if not (folder / name).exists():
            raise UserError(f"--against {folder}: no {name}; give the --out folder of an earlier evaluation")
    try:
        others = read_json(folder / "metrics.json")["settings"]
        by_contents = "sha256" in others  # noted since; where it is not, the files' places must be the same
        before, now = (scored_by(settings_of_one, by_contents) for settings_of_one in (others, settings))
        lacking = [k for k in settings["ks"] if k not in others["ks"]]
    except (ValueError, KeyError, TypeError):
        raise UserError(
            f"--against {folder}/metrics.json: cut off, or of another kind of evaluation; evaluate that model again"
        ) from None
    unlike = [f"{name} {before[name]}, this with {now[name]}" for name in now if before[name] != now[name]]
    unlike += [f"ks {others['ks']}, this with {settings['ks']}"] if lacking else []
    if unlike:
        raise UserError(f"--against {folder}: it was scored with {unlike[0]}; evaluate both alike")
    rows = pq.read_table(folder / "rows.parquet").to_pylist()
    if others.get("sha256", {}).get("train") != settings["sha256"].get("train"):
        for row, name in itertools.product(rows, OF_MENTIONS):
            row.pop(name, None)  # counted in other training rows
    return {row["sample_id"]: row for row in rows}


def scored_by(settings: Mapping[str, Any], by_contents: bool) -> dict[str, Any]:
    """What two evaluations must have in common, their first protocol included. Where year_tolerance and fuzzy_cutoff
    were not noted, they had the defaults."""
    lists = ListSettings.of(settings)

    def file(name: str) -> str:
        path = Path(settings[name])
        return f"{path.name} (SHA-256 {settings['sha256'][name][:12]})" if by_contents else str(path.resolve())

    return {
        "protocol": settings["protocols"][0],
        "data": file("data"),
        "catalog": file("catalog"),
        "matching": settings["matching"],
        "num_items": settings["num_items"],
        "year_tolerance": lists.year_tolerance,
        "fuzzy_cutoff": lists.fuzzy_cutoff,
    }


def compare(
    other: Mapping[str, Mapping[str, Any]], split: Split, scored: Scored, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """This evaluation minus the other on the rows both have: {metric: {"mean", "se", "p"}, "n"}, and of the measures
    beyond accuracy that both have {"mean", "se", "n"}. settings: this one's, as metrics.json has them."""
    places = [
        place
        for place, row in enumerate(split.rows)
        if scored[place]["num_truth"] and other.get(row["sample_id"], {}).get("prompt_id") == split.prompt_ids[place]
    ]
    if not places:
        raise UserError("--against: no row of that evaluation is in this split; compare evaluations of the same data")
    before = [other[split.rows[place]["sample_id"]] for place in places]
    return _differences(before, scored, places, split, settings)


def differences_of(before: Scored, after: Scored, split: Split, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The same of two lists for each row of one split, on the rows with ground truth: the second minus the first."""
    places = [place for place, row in enumerate(after) if row["num_truth"]]
    return _differences([before[place] for place in places], after, places, split, settings)


def _differences(
    before: Sequence[Mapping[str, Any]],
    scored: Scored,
    places: Sequence[int],
    split: Split,
    settings: Mapping[str, Any],
) -> dict[str, Any]:
    """The scored rows at the places of the split, minus `before`, which has these alone."""
    after = [scored[place] for place in places]
    contexts, seed = [split.prompt_ids[place] for place in places], settings["seed"]
    differences = paired(before, after, settings["ks"], contexts, seed)
    result: dict[str, Any] = {"n": len(places)}
    result |= {name: {key: of[key] for key in ("mean", "se", "p")} for name, of in differences.items()}
    return result | beyond_difference([before], [after], contexts, settings["catalog_items"], seed)


def model_line(metrics: Mapping[str, Any]) -> dict[str, float]:
    """What an evaluation found of its model, as columns of a table: means, standard errors, and the paired gain over
    another evaluation where it has one."""
    settings, gains = metrics["settings"], metrics.get("paired", {})
    result = metrics["results"][settings["protocols"][0]]["model"]
    line: dict[str, float] = {}
    for name in (*(f"{metric}@{k}" for metric in ("ndcg", "recall") for k in settings["ks"]), *MEASURES):
        for of, words in (
            (result, {"mean": "", "se": " se"}),
            (gains, {"mean": " gain", "se": " gain se", "p": " gain p"}),
        ):
            line |= {f"{name}{word}": of[name][key] for key, word in words.items() if key in of.get(name, ())}
    return line


def constrained_gain(metrics: Mapping[str, Any]) -> dict[str, float]:
    """What an evaluation's constrained lists gain over its free ones, as columns of a table; none without them."""
    if "constrained" not in metrics:
        return {}
    names = [f"{metric}@{k}" for metric in ("ndcg", "recall") for k in metrics["settings"]["ks"]]
    pair = metrics["constrained"]["paired"]
    words = {"mean": "constrained gain", "se": "constrained gain se", "p": "constrained gain p"}
    return {
        f"{name} {word}": pair[name][key]
        for name in (*names, *MEASURES)
        for key, word in words.items()
        if key in pair.get(name, ())
    }


def minus(
    before: Scored, after: Scored, split: Split, metrics: Sequence[str], settings: Mapping[str, Any]
) -> dict[str, Any]:
    """After minus before on the rows with ground truth: {metric: {"mean", "se", "n"}}, also of the measures beyond
    accuracy. Standard errors are over conversations, by their formula."""
    places = [place for place, row in enumerate(after) if row["num_truth"]]
    rows_before, rows_after = ([rows[place] for place in places] for rows in (before, after))
    contexts = [split.prompt_ids[place] for place in places]
    differences = [[b[name] - a[name] for name in metrics] for a, b in zip(rows_before, rows_after, strict=True)]
    figures = means(metrics, np.array(differences), contexts)
    return figures | beyond_difference(
        [rows_before], [rows_after], contexts, settings["catalog_items"], settings["seed"]
    )


def beyond_difference(
    before: Sequence[Sequence[Mapping[str, Any]]],
    after: Sequence[Sequence[Mapping[str, Any]]],
    contexts: Sequence[str],
    num_items: int,
    seed: int = 3407,
) -> Figures:
    """beyond_accuracy.difference of what all have measured; {} where one is of a version that did not. A side has the
    rows of one evaluation or, one for each seed of a training, of several."""
    samples = [rows[0] for rows in (*before, *after) if rows]
    if not all("recommended" in row for row in samples) or not samples:
        return {}
    lacking = [name for name in OF_A_ROW if not all(name in row for row in samples)]
    sides = ([Lists(rows, num_items, lacking) for rows in side] for side in (before, after))
    return difference(next(sides), next(sides), contexts, seed)


def write_rows(path: Path, split: Split, answers: Mapping[str, Answer], scored: Mapping[str, Scored]) -> None:
    """rows.parquet: metrics of the first protocol under their names, of further ones with theirs in front; where the
    catalog has ids, `recommended_ids`, those of `recommended`."""
    first, *others = scored
    ids = split.catalog.item_ids
    table = []
    for place, row in enumerate(split.rows):
        answer = answers[split.prompt_ids[place]]
        record = {
            "sample_id": row["sample_id"],
            "prompt_id": split.prompt_ids[place],
            "text": answer["text"],
            "finish_reason": answer["finish_reason"],
        }
        record |= {name: value for name, value in scored[first][place].items() if name != "catalog_rows"}
        if ids:
            record["recommended_ids"] = [None if ids[row] is None else str(ids[row]) for row in record["recommended"]]
        for protocol in others:
            values = scored[protocol][place].items()
            record |= {f"{protocol}/{name}": value for name, value in values if "@" in name}
        table.append(record)
    write_table(path, pa.Table.from_pylist(table))
