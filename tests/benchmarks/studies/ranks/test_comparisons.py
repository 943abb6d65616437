"""The rank study's comparisons, on evaluations written by hand."""

import math
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.studies.ranks.comparisons import NDCG, RECALL, difference, equal_kl, first_passing, recall_by_band


def evaluation(folder: Path, ndcg: list[float]) -> Path:
    """Of one row a conversation, with a recall of half the NDCG."""
    folder.mkdir()
    rows = [
        {"sample_id": f"s{n}", "prompt_id": f"p{n}", NDCG: value, RECALL: value / 2} for n, value in enumerate(ndcg)
    ]
    pq.write_table(pa.Table.from_pylist(rows), folder / "rows.parquet")
    return folder


def test_paired_difference_is_averaged_over_seeds(tmp_path: Path) -> None:
    first = evaluation(tmp_path / "a1", [0.5, 0.5, 0.5, 0.5]), evaluation(tmp_path / "b1", [0.1, 0.2, 0.3, 0.4])
    second = evaluation(tmp_path / "a2", [0.3, 0.4, 0.5, 0.6]), evaluation(tmp_path / "b2", [0.5, 0.5, 0.5, 0.5])
    found = difference([first, second])
    # seed 1: .4 .3 .2 .1; seed 2: -.2 -.1 0 .1; means of conversations: .1 each, so that they have no error at all
    assert found[NDCG] == pytest.approx((0.1, 0.0, 0.3 / 2**0.5), abs=1e-9)
    assert found[RECALL] == pytest.approx((0.05, 0.0, 0.15 / 2**0.5), abs=1e-9)


def test_a_row_without_ground_truth_is_in_no_difference(tmp_path: Path) -> None:
    nan = float("nan")
    pair = evaluation(tmp_path / "a", [0.5, nan, 0.7]), evaluation(tmp_path / "b", [0.4, nan, 0.4])
    mean, error, between = difference([pair])[NDCG]
    assert mean == pytest.approx(0.2)
    assert 0 < error < 0.2
    assert math.isnan(between)  # one seed: nothing is between


def test_equal_kl_pairs_last_lower_kl_checkpoint_with_nearest() -> None:
    slow, fast = {50: 0.01, 100: 0.02, 150: 0.03}, {50: 0.02, 100: 0.04, 150: 0.12}
    assert equal_kl(slow, fast) == (150, 100)
    assert equal_kl(fast, slow) == (100, 150)


def test_level_is_passed_once_the_curve_stays_above_it() -> None:
    curve = {0: 0.1, 25: 0.3, 50: 0.2, 75: 0.3, 100: 0.4}
    assert first_passing(curve, 0.25) == 75
    assert first_passing(curve, 0.05) == 0
    assert first_passing(curve, 0.5) is None


def test_bands_share_out_the_recall(tmp_path: Path) -> None:
    folder = tmp_path / "one"
    folder.mkdir()
    row = {"sample_id": "s", "recall@5": 0.25, "recall@10": 0.25, "recall@15": 0.75, "recall@20": 1.0}
    pq.write_table(pa.Table.from_pylist([row]), folder / "rows.parquet")
    assert recall_by_band(folder) == {"1-5": 0.25, "6-10": 0.0, "11-15": 0.5, "16-20": 0.25}


def test_a_difference_among_some_rows_leaves_the_others_out(tmp_path: Path) -> None:
    pair = evaluation(tmp_path / "a", [0.5, 0.9, 0.7]), evaluation(tmp_path / "b", [0.4, 0.1, 0.4])
    assert difference([pair], {"sample_id": "s1"})[NDCG][0] == pytest.approx(0.8)
