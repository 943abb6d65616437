"""The metrics of the loss by hand: buckets of ranks, the stop token, overflow items."""

import pytest
import torch

from convrec.rank_grpo.loss_metrics import compute_metric_parts, finish_policy_metrics

SUMS = {"policy_loss": 0.5, "kl_loss": 0.25, "kl": 6.0, "approx_kl": 3.0, "tokens": 12.0}
# N = 2: units 0 and 1 are ranks, 2 is a premature stop token, 3 and 4 are overflow items
RATIO = torch.tensor([[1.0, 2.0, 9.0, 4.0, 9.0], [3.0, 9.0, 5.0, 6.0, 8.0]])
PRESENT = torch.tensor([[1, 1, 0, 1, 0], [1, 0, 1, 1, 1]]).bool()
LOW = torch.tensor([[0, 0, 0, 0, 0], [0, 0, 1, 1, 0]]).bool()
HIGH = torch.tensor([[0, 1, 0, 1, 0], [1, 0, 0, 0, 0]]).bool()


def compute_parts(**sums: float) -> dict[str, float]:
    scalars = {name: torch.tensor(value) for name, value in (SUMS | sums).items()}
    return compute_metric_parts(scalars, RATIO, PRESENT, LOW, HIGH, num_ranks=2)


def bucket(name: str, mean: float, lowest: float, highest: float, low: float, high: float) -> dict[str, float]:
    return {
        f"ratio_mean/{name}": mean,
        f"ratio_min/{name}": lowest,
        f"ratio_max/{name}": highest,
        f"clip_low/{name}": low,
        f"clip_high/{name}": high,
    }


def test_metrics_of_one_batch() -> None:
    expected = (
        bucket("all", 29 / 7, 1, 8, 2 / 7, 3 / 7)
        | bucket("1", 2, 1, 3, 0, 1 / 2)
        | bucket("2", 2, 2, 2, 0, 1)
        | bucket("stop", 5, 5, 5, 1, 0)
        | bucket("overflow", 6, 4, 8, 1 / 3, 1 / 3)
        | {"policy_loss": 0.5, "kl_loss": 0.25, "kl": 0.5, "approx_kl": 0.25}
    )
    assert finish_policy_metrics(compute_parts()) == pytest.approx(expected)
    assert finish_policy_metrics(compute_parts(), "actor/").keys() == {f"actor/{name}" for name in expected}


def test_parts_of_micro_batches_are_combined_by_their_ending() -> None:
    # the second has one row: a rank with ratio 7, neither clipped
    other = compute_metric_parts(
        {name: torch.tensor(1.0) for name in SUMS},
        torch.tensor([[7.0]]),
        torch.tensor([[True]]),
        torch.tensor([[False]]),
        torch.tensor([[False]]),
        num_ranks=2,
    )
    metrics = finish_policy_metrics([compute_parts(), other])
    assert metrics["policy_loss"] == 1.5
    assert metrics["kl"] == pytest.approx(7 / 13)
    assert metrics["ratio_mean/1"] == pytest.approx((1 + 3 + 7) / 3)
    assert (metrics["ratio_min/1"], metrics["ratio_max/1"]) == (1, 7)
    assert (metrics["ratio_min/all"], metrics["ratio_max/all"]) == (1, 8)
    assert metrics["clip_high/1"] == pytest.approx(1 / 3)
    assert finish_policy_metrics(other)["kl"] == 1.0
    assert set(finish_policy_metrics(other)) == {*bucket("all", 0, 0, 0, 0, 0), *bucket("1", 0, 0, 0, 0, 0)} | {
        "policy_loss",
        "kl_loss",
        "kl",
        "approx_kl",
    }


def test_a_divergence_without_tokens_is_not_divided() -> None:
    assert finish_policy_metrics(compute_parts(tokens=0.0))["kl"] == 6.0
