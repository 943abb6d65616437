"""Advantages and metrics of the parts of a composed reward.

Shapes: P parts, B sequences, K ranks.
"""

from collections.abc import Sequence
from typing import Any

import torch

from convrec.rank_grpo.advantages import compute_rank_advantages, find_zero_std_ranks


def part_advantages(
    returns_PBK: torch.Tensor, weights: Sequence[float], uid: Sequence[Any], norm_by_std: bool = True
) -> torch.Tensor:
    """Compute weight_p A_p, where A_p are the rank advantages of part p's returns alone.

    Their sum over the parts is the advantage of `convrec.reward_combination=normalised`: a part with small returns, or
    with signal at few ranks, is not drowned out by the standard deviation of another (GDPO, arXiv 2601.05242, without
    its last step, normalisation over the batch, so that a single part of weight 1 changes nothing).

    Args:
        returns_PBK: the returns of each part.
        weights: of the P parts.
        uid: the group of each sequence.
        norm_by_std: False only centres the returns.

    Returns:
        (P, B, K) weighted advantages.
    """
    parts = zip(returns_PBK, weights, strict=True)
    return torch.stack([weight * compute_rank_advantages(part_BK, uid, norm_by_std) for part_BK, weight in parts])


def part_metrics(
    names: Sequence[str],
    returns_PBK: torch.Tensor,
    advantages_PBK: torch.Tensor,
    uid: Sequence[Any],
    prefix: str = "rank_grpo/part/",
) -> dict[str, float]:
    """Compute three metrics for each of P parts of the reward.

    NAME/return is the mean over responses and ranks; NAME/signal the share of (group, rank) pairs whose returns are not
    all equal; NAME/advantage the mean |weight x advantage of the part alone|.

    Args:
        names: the P parts.
        returns_PBK: the returns of each part.
        advantages_PBK: from `part_advantages`, for the same rows.
        uid: the group of each sequence.
        prefix: prefix of the metrics' names.
    """
    metrics = {}
    for name, returns_BK, advantages_BK in zip(names, returns_PBK, advantages_PBK, strict=True):
        metrics[f"{prefix}{name}/return"] = returns_BK.double().mean().item()
        metrics[f"{prefix}{name}/signal"] = 1.0 - find_zero_std_ranks(returns_BK, uid).double().mean().item()
        metrics[f"{prefix}{name}/advantage"] = advantages_BK.double().abs().mean().item()
    return metrics
