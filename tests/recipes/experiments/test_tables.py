"""The numbers in the tables, and variants compared conversation by conversation."""

import csv
import json
import math
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recipes.evaluation.scoring import make_model_line
from recipes.experiments.matrix_runs import MatrixRun
from recipes.experiments.tables import compare_variants, format_markdown, measure_hours, read_evaluations, write_tables
from tests.recipes.experiments.found import NAMES, make_metrics


def make_run(name: str, variant: str) -> MatrixRun:
    return MatrixRun(name, variant, "rank_grpo", None, {"SEED": "1"})


def make_row(run: MatrixRun, metrics: dict[str, Any]) -> dict[str, Any]:
    return {"run": run.name, "variant": run.variant, "seed": run.seed} | make_model_line(metrics)


def test_table_shows_means_over_seeds_and_gains_over_the_start() -> None:
    table = [
        make_row(make_run("sft", "sft"), make_metrics(0.1, None)),
        make_row(make_run("a-s1", "a"), make_metrics(0.2, 0.1)),
        make_row(make_run("a-s2", "a"), make_metrics(0.3, 0.2)),
    ]
    # a: mean (0.2 + 0.3) / 2, sd sqrt(2 * 0.05^2 / 1) = 0.0707, gain (0.1 + 0.2) / 2
    assert format_markdown(table, 5).splitlines()[2:] == [
        "| sft | 1 | 0.1000 ±0.0100 |  | 0.1000 ±0.0100 |  |",  # of one seed: over conversations
        "| a | 2 | 0.2500 (sd 0.0707) | +0.1500 (se of each 0.0200/0.0200) | "
        "0.2500 (sd 0.0707) | +0.1500 (se of each 0.0200/0.0200) |",
    ]


def test_nan_is_an_empty_cell() -> None:
    table = []
    for seed in "12":
        metrics = make_metrics(0.5, 0.1)
        metrics["results"]["paper"]["model"]["novelty"] = {"mean": math.nan, "se": math.nan}
        metrics["paired"]["novelty"] = {"mean": math.nan, "se": math.nan}
        table.append(make_row(make_run(f"a-s{seed}", "a"), metrics))
    text = format_markdown(table, 5)
    assert "nan" not in text
    assert text.splitlines()[-3:] == ["| variant | seeds | novelty | gain |", "|---|---|---|---|", "| a | 2 |  |  |"]


def test_constrained_lists_have_their_own_table() -> None:
    table = [make_row(make_run("sft", "sft"), make_metrics(0.1))]  # evaluated without them
    for gain in (0.1, 0.2):
        metrics = make_metrics(0.5)
        metrics["results"]["paper"]["constrained"] = {name: {"mean": 0.5 + gain, "se": 0.02} for name in NAMES}
        metrics["constrained"] = {"paired": {name: {"mean": gain, "se": 0.03, "p": 0.5} for name in NAMES}}
        table.append(make_row(make_run(f"a-{gain}", "a"), metrics))
    assert format_markdown(table[:1], 5).count("variant") == 1
    assert format_markdown(table, 5).split("\n\n")[-1].splitlines() == [
        "| variant | seeds | recall@5 constrained | minus free | ndcg@5 constrained | minus free |",
        "|---|---|---|---|---|---|",
        "| sft | 1 |  |  |  |  |",
        # (0.6 + 0.7) / 2, (0.1 + 0.2) / 2
        "| a | 2 | 0.6500 (sd 0.0707) | +0.1500 (se of each 0.0300/0.0300) | "
        "0.6500 (sd 0.0707) | +0.1500 (se of each 0.0300/0.0300) |",
    ]


def test_table_puts_baselines_first_with_gains_costs_and_a_plot(tmp_path: Path) -> None:
    metrics = make_metrics(0.5, data="d", catalog="c", catalog_items=4)
    of_popularity = make_metrics(0.2, se=0.03)["results"]["paper"]["model"]
    metrics["results"]["paper"] |= {"constrained": metrics["results"]["paper"]["model"], "popularity": of_popularity}
    metrics["minus"] = {"popularity": {name: {"mean": 0.3, "se": 0.04, "p": 0.5} for name in NAMES}}
    folder, run = tmp_path / "evaluation" / "a", tmp_path / "a"
    for one in (folder, run / "metrics"):
        one.mkdir(parents=True)
    (folder / "metrics.json").write_text(json.dumps(metrics))
    row = {"sample_id": "x", "prompt_id": "x", "recommended": [1]} | dict.fromkeys(NAMES, 0.5)
    pq.write_table(pa.Table.from_pylist([row]), folder / "rows.parquet")
    # two starts that logged for 1,800 and 5,400 seconds; one between them logged nothing
    times = ("08:00:00", "09:00:00", "10:00:00")
    (run / "starts.jsonl").write_text("".join(f'{{"time": "2026-01-02T{time}+00:00"}}\n' for time in times))
    for number, seconds in ((1, 1800), (2, 2 * 3600 + 5400)):
        (run / "metrics" / f"{number:04d}.jsonl").touch()
        end = datetime(2026, 1, 2, 8, tzinfo=UTC).timestamp() + seconds
        os.utime(run / "metrics" / f"{number:04d}.jsonl", (end, end))

    assert write_tables(tmp_path, [make_run("a", "a")], "a") == ["a"]
    with (tmp_path / "table.csv").open() as file:
        popularity, of_run = csv.DictReader(file)
    assert (popularity["run"], popularity["ndcg@5"], popularity["ndcg@5 se"]) == ("popularity", "0.2", "0.03")
    assert popularity["training hours"] == popularity["ndcg@5 minus popularity"] == ""
    assert (of_run["ndcg@5 minus popularity"], of_run["ndcg@5 minus popularity se"]) == ("0.3", "0.04")
    assert float(of_run["training hours"]) == 2.0
    assert (tmp_path / "table.md").read_text().splitlines()[:4] == [
        "| variant | seeds | recall@5 | gain | ndcg@5 | gain | training hours |",
        "|---|---|---|---|---|---|---|",
        "| popularity |  | 0.2000 ±0.0300 |  | 0.2000 ±0.0300 |  |  |",
        "| a | 1 | 0.5000 ±0.0100 |  | 0.5000 ±0.0100 |  | 2.0000 |",
    ]
    assert (tmp_path / "table.png").read_bytes().startswith(b"\x89PNG")
    assert not (tmp_path / "pairs.csv").exists()  # one variant


def test_what_was_not_trained_here_has_no_hours(tmp_path: Path) -> None:
    assert measure_hours(tmp_path) == {}


@pytest.mark.parametrize(
    ("name", "value"),
    [("sha256", {"data": "2"}), ("year_tolerance", 0), ("fuzzy_cutoff", 80), ("delimiter", "|"), ("sha256", None)],
)
def test_evaluation_with_other_contents_or_scoring_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, value: Any
) -> None:
    like = {"sha256": {"data": "1"}, "year_tolerance": 2, "fuzzy_cutoff": 90, "delimiter": "\n"}
    for run, settings in (("a", like), ("b", like | {name: value})):
        (tmp_path / "evaluation" / run).mkdir(parents=True)
        (tmp_path / "evaluation" / run / "metrics.json").write_text(json.dumps(make_metrics(0.1, **settings)))
    metrics = make_metrics(0.1, **like)
    table = read_evaluations([make_run("a", "a"), make_run("b", "b")], tmp_path, metrics["settings"])
    assert [row["run"] for row in table] == ["a"]
    warning = capsys.readouterr().err
    assert warning.startswith("warning: b: not in the table")
    assert f"({name} was " in warning


def test_variants_are_compared_per_conversation_over_seeds(tmp_path: Path) -> None:
    """ndcg@5: y has 0.2 and 0.4 in a, 0.5 and 0.5 in b: +0.2; x has +0.1; mean +0.15. z has no truth: not counted."""
    values = {"a-1": [0.1, 0.2], "a-2": [0.1, 0.4], "b-1": [0.2, 0.5], "b-2": [0.2, 0.5]}
    table = []
    for run, (x, y) in values.items():
        folder = tmp_path / "evaluation" / run
        folder.mkdir(parents=True)
        of_rows = {"x": x, "y": y, "z": math.nan}
        rows: list[dict[str, Any]] = [{"sample_id": x, "prompt_id": x, "ndcg@5": v} for x, v in of_rows.items()]
        for row in rows:
            row["recommended"] = [1, 2] if run in ("b-1", "b-2") and row["sample_id"] == "y" else [1]
        ordered = rows if run == "a-1" else rows[::-1]
        pq.write_table(
            pa.Table.from_pylist([row | {"recall@5": row["ndcg@5"]} for row in ordered]), folder / "rows.parquet"
        )
        table.append({"variant": run[0], "seed": run[2], "run": run})
    table.append({"variant": "c", "seed": "1", "run": "a-1"})  # one of their seeds: compared with neither
    table.insert(0, {"variant": "start", "seed": "1", "run": "a-1"})
    of_start, *others, found = compare_variants(table, tmp_path, 5, 4)
    assert [(pair["variant"], pair["minus"]) for pair in (of_start, *others)] == [(name, "start") for name in "abc"]
    assert of_start["ndcg@5 mean"] == pytest.approx(0.05)  # y: 0.3 - 0.2
    assert (found["variant"], found["minus"], found["seeds"]) == ("b", "a", 2)
    assert found["ndcg@5 mean"] == pytest.approx(0.15)
    assert found["coverage mean"] == pytest.approx(1 / 4)  # two of the four items, of one
    assert found["ndcg@5 p"] == pytest.approx(0.5, abs=0.05)  # two conversations, two of four sign patterns


def test_a_row_that_one_seed_lacks_is_left_out(tmp_path: Path) -> None:
    """Only y is in all: b 0.5 minus the mean of a, (0.2 + 0.4) / 2."""
    values = {"a-1": {"x": 0.1, "y": 0.2}, "a-2": {"y": 0.4}, "b-1": {"x": 0.9, "y": 0.5}, "b-2": {"y": 0.5, "z": 0.9}}
    for run, of_run in values.items():
        rows = [{"sample_id": x, "prompt_id": x, "ndcg@5": v, "recall@5": v} for x, v in of_run.items()]
        rows = [row | {"recommended": [1]} for row in rows]
        (tmp_path / "evaluation" / run).mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "evaluation" / run / "rows.parquet")
    table = [{"variant": run[0], "seed": run[2], "run": run} for run in values]
    (pair,) = compare_variants(table, tmp_path, 5, 4)
    assert pair["ndcg@5 mean"] == pytest.approx(0.2)
