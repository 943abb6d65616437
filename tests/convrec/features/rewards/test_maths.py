"""Advantages and metrics of a reward's parts by hand; tests/convrec/training/test_loss.py compares them with NumPy."""

import pytest
import torch

from convrec.features.rewards.maths import part_advantages, part_metrics

# two parts, three responses (two of prompt a, one of b), one rank
RETURNS = torch.tensor([[[1.0], [0.0], [1.0]], [[0.0], [8.0], [4.0]]], dtype=torch.float64)
UID = ["a", "a", "b"]


def test_each_part_is_compared_alone_and_weighted() -> None:
    differences = part_advantages(RETURNS, [1.0, -0.5], UID, norm_by_std=False)
    assert differences.tolist() == [[[0.5], [-0.5], [0.0]], [[2.0], [-2.0], [0.0]]]
    # standard deviations: the root of 1/2, and that of (16 + 16) / 1
    first = 0.5 / (0.5**0.5 + 1e-4)
    second = 2.0 / (32**0.5 + 1e-4)
    by_std = part_advantages(RETURNS, [1.0, -0.5], UID).flatten().tolist()
    assert by_std == pytest.approx([first, -first, 0, second, -second, 0], rel=1e-9)


def test_metrics_of_parts() -> None:
    advantages = torch.tensor([[[0.5], [-0.5], [0.0]], [[2.0], [-1.0], [0.0]]])
    assert part_metrics(["relevance", "novelty"], RETURNS, advantages, UID) == pytest.approx(
        {
            "rank_grpo/part/relevance/return": 2 / 3,
            "rank_grpo/part/relevance/signal": 1 / 2,
            "rank_grpo/part/relevance/advantage": 1 / 3,
            "rank_grpo/part/novelty/return": 4,
            "rank_grpo/part/novelty/signal": 1 / 2,
            "rank_grpo/part/novelty/advantage": 1,
        }
    )
