"""Responses scored against a split: rows, their summary, files of them, and the comparison of two evaluations."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from convrec.errors import UserError
from convrec.files import read_json, write_table
from convrec.generation.answers import Answer
from convrec.lists.metrics import evaluate_row, paired, summarise
from convrec.lists.ranks import Item
from convrec.lists.settings import ListSettings
from recipes.evaluation.split import Split

Scored = list[dict[str, Any]]
OF_MODEL = ("model", "constrained")  # of an evaluation's results; the other ones are baselines


def score(split: Split, responses: Sequence[Sequence[Item | None]], protocol: str, ks: Sequence[int]) -> Scored:
    """metrics.evaluate_row of every row, with `repeats`: catalog items that the list names again."""
    scored = []
    for place, items in enumerate(responses):
        seen = split.rows[place]["seen_titles"]
        result = evaluate_row(items, split.truth(place), seen, split.matcher, protocol, ks)
        result["repeats"] = len(result["catalog_rows"]) - len(set(result["catalog_rows"]))
        scored.append(result)
    return scored


def summary(scored: Scored, split: Split, ks: Sequence[int], seed: int, num_items: int) -> dict[str, Any]:
    """metrics.summarise with repeats_per_list, lists_with_repeats, and what the list-length errors are."""
    kept = [row for row in scored if row["num_truth"]]
    return summarise(scored, ks, split.prompt_ids, seed, num_items) | {
        "repeats_per_list": sum(row["repeats"] for row in kept) / len(kept),
        "lists_with_repeats": sum(row["repeats"] > 0 for row in kept),
        "short_lists": sum(row["num_items"] < num_items for row in kept),
        "long_lists": sum(row["num_items"] > num_items for row in kept),
        "items_per_list": sum(row["num_items"] for row in kept) / len(kept),
    }


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
        before, now = (_scored_by(settings_of_one, by_contents) for settings_of_one in (others, settings))
        lacking = [k for k in settings["ks"] if k not in others["ks"]]
    except (ValueError, KeyError, TypeError):
        raise UserError(
            f"--against {folder}/metrics.json: cut off, or of another kind of evaluation; evaluate that model again"
        ) from None
    unlike = [f"{name} {before[name]}, this with {now[name]}" for name in now if before[name] != now[name]]
    unlike += [f"ks {others['ks']}, this with {settings['ks']}"] if lacking else []
    if unlike:
        raise UserError(f"--against {folder}: it was scored with {unlike[0]}; evaluate both alike")
    return {row["sample_id"]: row for row in pq.read_table(folder / "rows.parquet").to_pylist()}


def _scored_by(settings: Mapping[str, Any], by_contents: bool) -> dict[str, Any]:
    """What two evaluations must have in common. Where year_tolerance and fuzzy_cutoff were not noted, they had the
    defaults."""
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
    other: Mapping[str, Mapping[str, Any]], split: Split, scored: Scored, ks: Sequence[int], seed: int
) -> dict[str, Any]:
    """This evaluation minus the other on the rows both have: {metric: {"mean", "se", "p"}, "n"}."""
    places = [
        place
        for place, row in enumerate(split.rows)
        if scored[place]["num_truth"] and other.get(row["sample_id"], {}).get("prompt_id") == split.prompt_ids[place]
    ]
    if not places:
        raise UserError("--against: no row of that evaluation is in this split; compare evaluations of the same data")
    names = [f"{metric}@{k}" for metric in ("recall", "ndcg") for k in ks]
    before = [{name: other[split.rows[place]["sample_id"]][name] for name in names} for place in places]
    after = [{name: scored[place][name] for name in names} for place in places]
    differences = paired(before, after, ks, [split.prompt_ids[place] for place in places], seed)
    return {"n": len(places)} | _without_rows(differences)


def differences_of(before: Scored, after: Scored, split: Split, ks: Sequence[int], seed: int) -> dict[str, Any]:
    """The same of two lists for each row of one split: the second minus the first."""
    n = sum(row["num_truth"] > 0 for row in before)
    return {"n": n} | _without_rows(paired(before, after, ks, split.prompt_ids, seed))


def _without_rows(differences: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {name: {key: of_metric[key] for key in ("mean", "se", "p")} for name, of_metric in differences.items()}


def constrained_gain(metrics: Mapping[str, Any]) -> dict[str, float]:
    """What an evaluation's constrained lists gain over its free ones, as columns of a table; none without them."""
    if "constrained" not in metrics:
        return {}
    names = [f"{metric}@{k}" for metric in ("ndcg", "recall") for k in metrics["settings"]["ks"]]
    pair = metrics["constrained"]["paired"]
    columns = (("constrained gain", "mean"), ("constrained gain se", "se"), ("constrained gain p", "p"))
    return {f"{name} {column}": pair[name][key] for name in names for column, key in columns}


def write_rows(path: Path, split: Split, answers: Mapping[str, Answer], scored: Mapping[str, Scored]) -> None:
    """rows.parquet: metrics of the first protocol under their names, of further ones with theirs in front."""
    first, *others = scored
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
        for protocol in others:
            values = scored[protocol][place].items()
            record |= {f"{protocol}/{name}": value for name, value in values if "@" in name}
        table.append(record)
    write_table(path, pa.Table.from_pylist(table))
