"""Conversations for a report: the best and the worst of an evaluation, or the largest gains and losses between two."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from convrec.data.schema import RL_SCHEMA, TRUTH, conversation_text, truth_of
from convrec.errors import UserError
from convrec.lists.catalog import load_catalog
from convrec.lists.matching import make_matcher
from convrec.lists.settings import ListSettings
from convrec.report.page import Example, mark_list
from recipes.evaluation.scoring import metrics_of, rows_of

Row = dict[str, Any]


def examples(evaluations: Mapping[str, str | Path], count: int = 3) -> list[Example]:
    """`count` conversations with the lists of each evaluation (name -> OUT folder of recipes.evaluate, same split).

    One evaluation: by NDCG at its largest k, from the best to the worst in even steps. Several: by the gain of the last
    over the first, from the largest gain to the largest loss, so that what got worse is shown too; then, where they are
    others, the best and the worst of the last.
    """
    folders = {name: Path(folder) for name, folder in evaluations.items()}
    settings_of = {name: metrics_of(folder)["settings"] for name, folder in folders.items()}
    settings = list(settings_of.values())[-1]
    ndcg = f"ndcg@{max(settings['ks'])}"
    scored = {name: rows_of(folder) for name, folder in folders.items()}
    data = Path(settings["data"])
    if not data.exists():
        raise UserError(f"{data}: gone since it was evaluated (or named from another folder); evaluate again")
    split = {row["sample_id"]: row for row in pq.read_table(data, columns=RL_SCHEMA.names).to_pylist()}
    matcher = make_matcher(load_catalog(settings["catalog"]), ListSettings.of(settings))

    first, *_, last = (*scored.values(),) * 2
    if gone := next((sample for sample in last if sample not in split), None):
        raise UserError(f"{data}: without {gone}, so it is not what was evaluated; evaluate again")
    in_all = [sample for sample in last if split[sample][TRUTH] and all(sample in rows for rows in scored.values())]
    latest = {sample: last[sample][ndcg] for sample in in_all}
    gains = {
        sample: value - first[sample][ndcg] for sample, value in latest.items() if max(value, first[sample][ndcg]) > 0
    }
    at = ndcg.replace("ndcg", "NDCG")
    if len(scored) > 1:
        labels = _choose(gains, split, count, ("the largest gain", "the largest loss"), f"{at} {{:+.2f}}")
        of = f" of {list(scored)[-1]}"
        for sample, label in _choose(latest, split, 2, (f"the best{of}", f"the worst{of}"), f"{at} {{:.2f}}").items():
            labels[sample] = f"{labels[sample]}; {label}" if sample in labels else label
    else:
        labels = _choose(latest, split, count, ("the best", "the worst"), f"{at} {{:.2f}}")
    shown = []
    for sample, label in labels.items():
        truth, seen = truth_of(split[sample]), split[sample]["seen_titles"] or []
        lists = {}
        for name, rows in scored.items():
            own = ListSettings.of(settings_of[name])
            lists[name] = mark_list(rows[sample]["text"], matcher, truth, seen, own.num_items, own.delimiter)
        dialogue = last[sample].get("dialogue") or ""
        shown.append(Example(conversation_text(split[sample]) + dialogue, truth, lists, label))
    return shown


def _choose(
    values: Mapping[str, float], split: Mapping[str, Row], count: int, ends: tuple[str, str], value_text: str
) -> dict[str, str]:
    """sample_id -> label of `count` samples, from the highest value to the lowest in even steps."""
    # among equals the one with more to find: a miss of five titles says more than a miss of one
    ordered = sorted(values, key=lambda sample: (-values[sample], len(split[sample][TRUTH]), sample))
    steps = [round(step * (len(ordered) - 1) / max(1, count - 1)) for step in range(count)] if ordered else []
    names = {0: ends[0], len(ordered) - 1: ends[1]}
    return {
        (sample := ordered[index]): f"{names.get(index, 'in between')} ({value_text.format(values[sample])})"
        for index in dict.fromkeys(steps)
    }
