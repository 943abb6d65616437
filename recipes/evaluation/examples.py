"""Conversations for a report: the best and the worst of an evaluation, or the largest gains and losses between two."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from convrec.catalog import load_catalog
from convrec.errors import UserError
from convrec.matching import Matcher
from convrec.report import Example, mark_list
from convrec.schema import RL_SCHEMA, split_prompt
from recipes.evaluation.split import TRUTH

Row = dict[str, Any]


def examples(evaluations: Mapping[str, str | Path], count: int = 3) -> list[Example]:
    """`count` conversations with the lists of each evaluation (name -> OUT folder of recipes.evaluate, same split).

    One evaluation: by NDCG at its largest k, from the best to the worst in even steps. Several: by the gain of the last
    over the first, from the largest gain to the largest loss, so that what got worse is shown too.
    """
    folders = {name: Path(folder) for name, folder in evaluations.items()}
    settings = json.loads((list(folders.values())[-1] / "metrics.json").read_text())["settings"]
    ndcg = f"ndcg@{max(settings['ks'])}"
    scored = {name: _rows(folder / "rows.parquet") for name, folder in folders.items()}
    split = _rows(settings["data"], RL_SCHEMA.names)
    matcher = Matcher(load_catalog(settings["catalog"]), settings["matching"])

    first, *_, last = (*scored.values(),) * 2
    if len(scored) > 1:
        values = {
            sample: last[sample][ndcg] - first[sample][ndcg]
            for sample in last
            if sample in first and split[sample][TRUTH] and max(last[sample][ndcg], first[sample][ndcg]) > 0
        }
        best, worst, what = "the largest gain", "the largest loss", "{:+.2f}"
    else:
        values = {sample: row[ndcg] for sample, row in last.items() if split[sample][TRUTH]}
        best, worst, what = "the best", "the worst", "{:.2f}"
    # among equals the one with more to find: a miss of five titles says more than a miss of one
    ordered = sorted(values, key=lambda sample: (-values[sample], len(split[sample][TRUTH]), sample))
    places = [round(index * (len(ordered) - 1) / max(1, count - 1)) for index in range(count)] if ordered else []
    chosen = []
    for place in dict.fromkeys(places):
        sample = ordered[place]
        label = {0: best, len(ordered) - 1: worst}.get(place, "in between")
        label += f" ({ndcg.replace('ndcg', 'NDCG')} {what.format(values[sample])})"
        chosen.append(
            _example(split[sample], {name: rows[sample] for name, rows in scored.items()}, matcher, settings, label)
        )
    return chosen


def _example(row: Row, sides: Mapping[str, Row], matcher: Matcher, settings: Mapping[str, Any], label: str) -> Example:
    truth = [(title, year) for title, year in row[TRUTH]]
    lists = {
        name: mark_list(side["text"], matcher, truth, row["seen_titles"] or [], settings["num_items"])
        for name, side in sides.items()
    }
    return Example(split_prompt(row["prompt"][0]["content"])[1], truth, lists, label)


def _rows(path: str | Path, columns: Sequence[str] | None = None) -> dict[str, Row]:
    if not Path(path).exists():
        raise UserError(f"{path}: gone since it was evaluated (or named from another folder); evaluate again")
    return {row["sample_id"]: row for row in pq.read_table(path, columns=columns).to_pylist()}
