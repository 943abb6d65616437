"""The judges' metrics by hand, against scipy, and where they have no value."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import spearmanr

from convrec.judges.metrics import pairwise_summary, pointwise_summary, rank_correlation


def test_pairwise_by_hand() -> None:
    true = ["A", "A", "B", "B"]
    verdicts = ["A", "B", "B", None]
    swapped = ["B", "B", "A", "B"]  # in the row's own order: A, A, B, A
    summary = pairwise_summary(true, verdicts, swapped, contexts=range(4))
    assert summary["accuracy"]["mean"] == 2 / 4
    assert summary["accuracy_swapped"]["mean"] == 3 / 4
    assert summary["agreement"]["mean"] == 2 / 4  # rows 0 and 2; no verdict agrees with nothing
    assert summary["no_verdict"]["mean"] == 1 / 8
    assert summary["prefers_a"]["mean"] == pytest.approx((1 / 2 + 0 + 1 / 2 + 0) / 4)
    assert (summary["n"], summary["num_contexts"], summary["baseline"]) == (4, 4, {"accuracy": 0.5})


def test_a_judge_that_always_says_a_agrees_with_itself_nowhere() -> None:
    summary = pairwise_summary(["A", "B"] * 10, ["A"] * 20, ["A"] * 20, contexts=range(20))
    assert summary["accuracy"]["mean"] == summary["accuracy_swapped"]["mean"] == 0.5
    assert summary["agreement"] == {"mean": 0.0, "se": 0.0}
    assert summary["prefers_a"]["mean"] == 1.0


def test_pointwise_by_hand() -> None:
    summary = pointwise_summary([0, 1, 2, 4], [0, 3, 1, None], [1.0, 0.0, 0.75, 0.0], contexts=range(4))
    assert summary["exact_match"]["mean"] == 1 / 4  # no verdict is wrong
    assert summary["mae"]["mean"] == pytest.approx((0 + 2 + 1) / 3)  # over the verdicts
    assert summary["no_verdict"]["mean"] == 1 / 4
    assert summary["reward"]["mean"] == pytest.approx(1.75 / 4)
    # ranks of 0, 1, 2 are 1, 2, 3 and of 0, 3, 1 are 1, 3, 2: 1 - 6 * (0 + 1 + 1) / (3 * 8)
    assert summary["rank_correlation"]["mean"] == pytest.approx(0.5)
    # always 1: (1 + 0 + 1 + 3) / 4; always 2: (2 + 1 + 0 + 2) / 4
    assert summary["baseline"] == {"exact_match": 0.25, "mae": 1.25}


@settings(deadline=None, max_examples=50)  # 1,000 resamples each
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=2, max_size=40))
def test_rank_correlation_is_scipys(pairs: list[tuple[int, int]]) -> None:
    true, predicted = [t for t, _ in pairs], [p for _, p in pairs]
    found, _ = rank_correlation(true, predicted, range(len(pairs)))
    if len(set(true)) == 1 or len(set(predicted)) == 1:
        assert math.isnan(found)
    else:
        assert found == pytest.approx(spearmanr(true, predicted).statistic, abs=1e-12)


def test_standard_errors_are_over_queries() -> None:
    """Ten copies of each row are no more evidence; for independent rows, the error is the binomial one."""
    rng = np.random.default_rng(0)
    true = ["A"] * 400
    verdicts = ["A" if right else "B" for right in rng.random(400) < 0.7]
    alone = pairwise_summary(true, verdicts, verdicts, contexts=range(400))["accuracy"]
    copied = pairwise_summary(true * 10, verdicts * 10, verdicts * 10, contexts=[*range(400)] * 10)["accuracy"]
    assert alone["se"] == pytest.approx(math.sqrt(0.7 * 0.3 / 400), rel=0.1)
    assert copied["se"] == pytest.approx(alone["se"], rel=0.05)
    scores = [int(score) for score in rng.integers(0, 5, 400)]
    noise = [int(score) for score in rng.integers(0, 5, 400)]
    mean, error = rank_correlation(scores, noise, range(400))
    assert abs(mean) < 3 * error
    assert error == pytest.approx(1 / math.sqrt(399), rel=0.1)  # of independent scores


def test_no_verdict_at_all_has_no_error_to_report() -> None:
    summary = pointwise_summary([1, 3], [None, None], [0.0, 0.0], contexts=range(2))
    assert summary["exact_match"]["mean"] == 0
    assert summary["no_verdict"]["mean"] == 1
    assert math.isnan(summary["mae"]["mean"])
    assert math.isnan(summary["rank_correlation"]["mean"])
