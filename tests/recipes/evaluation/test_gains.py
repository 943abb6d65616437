"""Gains over the first evaluation, from the rows of each."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recipes.report import make_gain_tables
from tests.user_errors import refuses


def write_rows(folder: Path, ndcg: list[float]) -> Path:
    """Three rows: the first two of one conversation. And one without ground truth."""
    folder.mkdir()
    rows = [
        {"sample_id": sample, "prompt_id": prompt, "num_truth": 1}
        | {"ndcg@5": value, "recall@5": 0.5, "ndcg@20": value, "recall@20": 0.5}
        for sample, prompt, value in zip("abc", "ppq", ndcg, strict=True)
    ]
    rows.append({"sample_id": "d", "prompt_id": "r", "num_truth": 0})
    pq.write_table(pa.Table.from_pylist(rows), folder / "rows.parquet")
    return folder


def test_the_gain_is_row_by_row_over_the_first_evaluation(tmp_path: Path) -> None:
    evaluations = {"SFT": write_rows(tmp_path / "a", [0.1, 0.2, 0.3])}
    assert make_gain_tables(evaluations, [5, 20], 0) == []
    evaluations["Rank-GRPO"] = write_rows(tmp_path / "b", [0.3, 0.2, 0.4])
    (table,) = make_gain_tables(evaluations, [5, 20], 0)
    assert table.title == "Rank-GRPO minus SFT"
    assert list(table.gains) == ["NDCG@20", "NDCG@5", "Recall@20", "Recall@5"]
    gain = table.gains["NDCG@20"]
    assert gain["mean"] == pytest.approx(0.1)
    assert gain["se"] > 0
    # two conversations with sums 0.2 and 0.1: two of the four assignments of signs are as far from 0
    assert gain["p"] == pytest.approx(0.5, abs=0.03)
    assert (table.gains["Recall@5"]["mean"], table.gains["Recall@5"]["p"]) == (0.0, 1.0)
    assert table.caption.startswith("3 rows, 2 conversations.")


def test_of_several_models_each_has_a_table(tmp_path: Path) -> None:
    values = {"SFT": [0.1, 0.2, 0.3], "GRPO": [0.1, 0.2, 0.6], "Rank-GRPO": [0.4, 0.2, 0.6]}
    evaluations = {name: write_rows(tmp_path / name, ndcg) for name, ndcg in values.items()}
    tables = make_gain_tables(evaluations, [5, 20], 0)
    assert [table.title for table in tables] == ["GRPO minus SFT", "Rank-GRPO minus SFT"]
    assert [table.gains["NDCG@20"]["mean"] for table in tables] == pytest.approx([0.1, 0.2])
    (tmp_path / "GRPO" / "rows.parquet").unlink()
    with refuses("evaluation.missing-rows", tmp_path / "GRPO" / "rows.parquet"):
        make_gain_tables(evaluations, [5, 20], 0)
