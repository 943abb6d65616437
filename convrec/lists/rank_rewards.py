"""The registry of rank rewards: relevance -> rank returns r_k, on which Rank-GRPO trains.

docs/explanation/method.md 2 defines them; `user_rewards` loads custom ones.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import log2
from typing import Any

from convrec.base import kinds
from convrec.base.kinds import AboveOne


def dcg(relevance: Sequence[float], k: int) -> float:
    """Compute DCG@k = sum over ranks j = 1..k of rel_j / log2(j + 1).

    Args:
        relevance: rel_j from rank 1 on; missing ranks count 0.
        k: the cutoff.
    """
    return float(sum(rel / log2(j + 2) for j, rel in enumerate(relevance[:k]) if rel))


def ideal_dcg(count: int) -> float:
    """Compute the DCG of `count` hits at the top."""
    return dcg([1.0] * count, count)


def exp_inf(relevance_N: list[float]) -> list[float]:
    """Compute r_k = rel_k: no credit for later ranks."""
    return relevance_N


def log_decay(relevance_N: list[float]) -> list[float]:
    """Compute r_k = sum_{j>=k} rel_j / log2(j + 1), causal DCG@k:N, with j from 1."""
    return _accumulate_from_end([value / log2(j + 2) for j, value in enumerate(relevance_N)], 1.0)


def exp_gamma(relevance_N: list[float], gamma: float) -> list[float]:
    """Compute r_k = sum_{j>=k} rel_j / gamma^(j - k), gamma > 1; exp_inf is its limit."""
    return _accumulate_from_end(relevance_N, 1.0 / gamma)


def _accumulate_from_end(gains_N: Sequence[float], decay: float) -> list[float]:
    """Compute s_k = gain_k + decay * s_{k+1}."""
    later = 0.0
    sums = []
    for gain in reversed(gains_N):
        later = gain + decay * later
        sums.append(later)
    return sums[::-1]


@dataclass(frozen=True)
class RankReward:
    """A rank reward.

    Attributes:
        returns: returns(relevance_N, **parameters) -> N returns.
        formula: for the manual.
        parameters: settings below `convrec:` -> the kind of each.
    """

    returns: Callable[..., list[float]]
    formula: str
    parameters: Mapping[str, Any] = field(default_factory=dict)


RANK_REWARDS: dict[str, RankReward] = {
    "exp_inf": RankReward(exp_inf, "r_k = rel_k"),
    "log_decay": RankReward(log_decay, "r_k = sum over j >= k of rel_j / log2(j + 1)"),
    "exp_gamma": RankReward(exp_gamma, "r_k = sum over j >= k of rel_j / gamma^(j - k)", {"gamma": AboveOne}),
}
DEFAULT_REWARD = "exp_inf"


def rank_returns(
    relevance: Sequence[float], num_ranks: int, reward: str = DEFAULT_REWARD, **parameters: Any
) -> list[float]:
    """Compute the returns of the first `num_ranks` ranks.

    Args:
        relevance: relevance of the response's lines, in order. Missing ranks have relevance 0, overflow ranks are
            ignored.
        num_ranks: N.
        reward: a key of RANK_REWARDS.
        **parameters: parameters of the reward; others are ignored.

    Returns:
        N returns, entry k for rank k + 1.

    Raises:
        ValueError: the reward is unknown, or a parameter is missing or invalid.
    """
    if reward not in RANK_REWARDS:
        raise ValueError(f"unknown reward {reward!r}: one of {', '.join(RANK_REWARDS)}")
    chosen = RANK_REWARDS[reward]
    for name, kind in chosen.parameters.items():
        if not kinds.is_valid(kind, parameters.get(name)):
            raise ValueError(f"reward {reward} needs {name}, {kinds.describe_type(kind)}, not {parameters.get(name)}")
    relevance_N = [float(value) for value in relevance[:num_ranks]]
    relevance_N += [0.0] * (num_ranks - len(relevance_N))
    return chosen.returns(relevance_N, **{name: parameters[name] for name in chosen.parameters})
