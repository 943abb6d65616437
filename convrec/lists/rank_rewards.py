"""Relevance -> rank returns r_k, what Rank-GRPO trains on (paper, section 4)."""

from collections.abc import Sequence
from math import log2

SHAPES = ("exp_inf", "log_decay", "exp_gamma")


def dcg(relevance: Sequence[float], k: int) -> float:
    """DCG@k = sum over ranks j = 1..k of rel_j / log2(j + 1)."""
    return float(sum(rel / log2(j + 2) for j, rel in enumerate(relevance[:k]) if rel))


def ideal_dcg(count: int) -> float:
    """DCG of `count` relevant items at the top."""
    return dcg([1.0] * count, count)


def rank_returns(
    relevance: Sequence[float], num_ranks: int, shape: str = "exp_inf", gamma: float | None = None
) -> list[float]:
    """Returns of the first `num_ranks` ranks; ranks that the response lacks have relevance 0, overflow ranks none.

    exp_inf:   r_k = rel_k                                    (no credit for what comes later)
    log_decay: r_k = sum_{j>=k} rel_j / log2(j + 1)           (causal DCG@k:N, j counted from 1)
    exp_gamma: r_k = sum_{j>=k} rel_j / gamma^(j - k)         (gamma > 1; exp_inf is its limit)
    """
    rel = [float(value) for value in relevance[:num_ranks]]
    rel += [0.0] * (num_ranks - len(rel))
    if shape == "exp_inf":
        return rel
    if shape == "log_decay":
        gains, keep = [value / log2(j + 2) for j, value in enumerate(rel)], 1.0
    elif shape == "exp_gamma":
        if gamma is None or gamma <= 1:
            raise ValueError(f"reward exp_gamma needs gamma > 1, got {gamma}")
        gains, keep = rel, 1.0 / gamma
    else:
        raise ValueError(f"unknown reward {shape!r}: one of {', '.join(SHAPES)}")
    later = 0.0
    returns = []
    for gain in reversed(gains):
        later = gain + keep * later
        returns.append(later)
    return returns[::-1]
