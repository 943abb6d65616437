"""Two variants, conversation by conversation."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recipes.experiments.pairs import pairs


def test_variants_are_compared_conversation_by_conversation_over_their_seeds(tmp_path: Path) -> None:
    """ndcg@5 of y: a 0.2 and 0.4, b 0.5 and 0.5, so +0.2; of x +0.1: mean +0.15. z has no truth and does not count."""
    values = {"a-1": [0.1, 0.2, None], "a-2": [0.1, 0.4, None], "b-1": [0.2, 0.5, None], "b-2": [0.2, 0.5, None]}
    table = []
    for run, (x, y, none) in values.items():
        folder = tmp_path / "evaluation" / run
        folder.mkdir(parents=True)
        rows = [{"sample_id": name, "prompt_id": name, "ndcg@5": v} for name, v in (("x", x), ("y", y), ("z", none))]
        for row in rows:
            row["recommended"] = [1, 2] if run in ("b-1", "b-2") and row["sample_id"] == "y" else [1]
        ordered = rows if run == "a-1" else rows[::-1]
        pq.write_table(
            pa.Table.from_pylist([row | {"recall@5": row["ndcg@5"]} for row in ordered]), folder / "rows.parquet"
        )
        table.append({"variant": run[0], "seed": run[2], "run": run})
    table.append({"variant": "c", "seed": "1", "run": "a-1"})  # one of their seeds: compared with neither
    table.insert(0, {"variant": "start", "seed": "1", "run": "a-1"})
    of_start, *others, found = pairs(table, tmp_path, 5, 4)
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
    (pair,) = pairs(table, tmp_path, 5, 4)
    assert pair["ndcg@5 mean"] == pytest.approx(0.2)
