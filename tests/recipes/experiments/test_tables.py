"""The table's numbers."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from recipes.experiments.matrix_file import Run
from recipes.experiments.tables import evaluated, markdown, row_of

NAMES = ("recall@5", "ndcg@5")


def run_of(name: str, variant: str) -> Run:
    return Run(name, variant, "rank_grpo", None, {"SEED": "1"})


def metrics_of(value: float, gain: float | None = None, **settings: Any) -> dict[str, Any]:
    model: dict[str, Any] = {name: {"mean": value, "se": 0.01} for name in NAMES}
    model |= {"catalog_hit_ratio": 1.0, "repeats_per_list": 0.0, "distinct_items": 3}
    model |= {"items_per_list": 5.0, "list_length_errors": 0, "n": 2}
    found: dict[str, Any] = {
        "settings": {"protocols": ["paper"], "ks": [5]} | settings,
        "results": {"paper": {"model": model}},
    }
    if gain is not None:
        found["paired"] = {name: {"mean": gain, "se": 0.02, "p": 0.5} for name in NAMES}
    return found


def test_the_table_is_of_means_over_seeds_and_gains_over_the_start() -> None:
    table = [
        row_of(run_of("sft", "sft"), metrics_of(0.1, None)),
        row_of(run_of("a-s1", "a"), metrics_of(0.2, 0.1)),
        row_of(run_of("a-s2", "a"), metrics_of(0.3, 0.2)),
    ]
    # a: mean (0.2 + 0.3) / 2, sd sqrt(2 * 0.05^2 / 1) = 0.0707, gain (0.1 + 0.2) / 2
    assert markdown(table, 5).splitlines()[2:] == [
        "| sft | 1 | 0.1000 |  | 0.1000 |  |",
        "| a | 2 | 0.2500 (sd 0.0707) | +0.1500 (se of each 0.0200/0.0200) | "
        "0.2500 (sd 0.0707) | +0.1500 (se of each 0.0200/0.0200) |",
    ]


def test_what_is_not_known_is_an_empty_cell() -> None:
    table = []
    for seed in "12":
        metrics = metrics_of(0.5, 0.1)
        metrics["results"]["paper"]["model"]["novelty"] = {"mean": math.nan, "se": math.nan}
        metrics["paired"]["novelty"] = {"mean": math.nan, "se": math.nan}
        table.append(row_of(run_of(f"a-s{seed}", "a"), metrics))
    text = markdown(table, 5)
    assert "nan" not in text
    assert text.splitlines()[-3:] == ["| variant | seeds | novelty | gain |", "|---|---|---|---|", "| a | 2 |  |  |"]


def test_what_constrained_lists_gain_is_a_table_of_its_own() -> None:
    table = [row_of(run_of("sft", "sft"), metrics_of(0.1))]  # evaluated without them
    for gain in (0.1, 0.2):
        metrics = metrics_of(0.5)
        metrics["constrained"] = {"paired": {name: {"mean": gain, "se": 0.03, "p": 0.5} for name in NAMES}}
        table.append(row_of(run_of(f"a-{gain}", "a"), metrics))
    assert markdown(table[:1], 5).count("variant") == 1
    assert markdown(table, 5).split("\n\n")[-1].splitlines() == [
        "| variant | seeds | recall@5 constrained minus free | ndcg@5 constrained minus free |",
        "|---|---|---|---|",
        "| sft | 1 |  |  |",
        # (0.1 + 0.2) / 2
        "| a | 2 | +0.1500 (se of each 0.0300/0.0300) | +0.1500 (se of each 0.0300/0.0300) |",
    ]


@pytest.mark.parametrize(
    ("name", "value"),
    [("sha256", {"data": "2"}), ("year_tolerance", 0), ("fuzzy_cutoff", 80), ("delimiter", "|"), ("sha256", None)],
)
def test_an_evaluation_of_other_contents_or_scored_otherwise_is_left_out(tmp_path: Path, name: str, value: Any) -> None:
    like = {"sha256": {"data": "1"}, "year_tolerance": 2, "fuzzy_cutoff": 90, "delimiter": "\n"}
    for run, settings in (("a", like), ("b", like | {name: value})):
        (tmp_path / "evaluation" / run).mkdir(parents=True)
        (tmp_path / "evaluation" / run / "metrics.json").write_text(json.dumps(metrics_of(0.1, **settings)))
    metrics = metrics_of(0.1, **like)
    table, left_out = evaluated([run_of("a", "a"), run_of("b", "b")], tmp_path, metrics["settings"])
    assert ([row["run"] for row in table], left_out) == (["a"], ["b"])
