"""Metrics of a step's ranks: plain numbers from rank returns and per-response scalars.

Shapes: B sequences, T response tokens, K = N ranks. Metric names count ranks from 1, tensors from 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from convrec.rank_grpo.advantages import find_zero_std_ranks

LOGGED_RANKS = (1, 2, 5, 10, 15, 20)
_BUCKET_ENDS = (1, 5, 10, 15, 20)


def make_rank_buckets(num_ranks: int) -> list[tuple[str, int, int]]:
    """Make the buckets of ranks that metrics are averaged over.

    Args:
        num_ranks: N.

    Returns:
        (name, first, end) of each bucket. They cover ranks 0..N-1 with `end` exclusive; names count from 1: "1", "2-5".
    """
    ends = sorted({min(end, num_ranks) for end in (*_BUCKET_ENDS, num_ranks)})
    starts = [0, *ends[:-1]]
    return [(f"{a + 1}-{b}" if b > a + 1 else f"{b}", a, b) for a, b in zip(starts, ends, strict=True)]


def compute_rank_metrics(
    returns_BK: torch.Tensor,
    uid: Sequence[Any],
    num_ranks: int,
    extra: Mapping[str, Any] | None = None,
    prefix: str = "rank_grpo/",
    prompts: Sequence[Any] | None = None,
) -> dict[str, float]:
    """Compute the rank metrics of a step's whole batch.

        return@k              mean return at rank k, for the LOGGED_RANKS up to N
        zero_std/<bucket>     share of (group, rank) pairs in the bucket with equal returns, which do not train
        zero_std/all_ranks    share of groups without a signal at any rank
        no_hit                share of prompts without a hit, if `extra` has hits

    Args:
        returns_BK: rank returns.
        uid: group label of each response.
        num_ranks: N.
        extra: name -> one number per response (B,), logged as its mean.
        prefix: prefix of the metrics' names.
        prompts: prompt label of each response, if a prompt has several groups; None means that groups are prompts.
    """
    returns_BK = torch.as_tensor(returns_BK)
    metrics = {f"return@{k}": returns_BK[:, k - 1].double().mean().item() for k in LOGGED_RANKS if k <= num_ranks}
    flat_GK = find_zero_std_ranks(returns_BK, uid)
    for name, start, end in [("all", 0, num_ranks), *make_rank_buckets(num_ranks)]:
        metrics[f"zero_std/{name}"] = flat_GK[:, start:end].double().mean().item()
    metrics["zero_std/all_ranks"] = flat_GK.all(dim=1).double().mean().item()
    if extra and "hits" in extra:
        prompts = prompts or uid
        hit_prompts = {label for label, hits in zip(prompts, extra["hits"], strict=True) if hits}
        metrics["no_hit"] = 1.0 - len(hit_prompts) / len(set(prompts))
    for name, values_B in (extra or {}).items():
        metrics[name] = torch.as_tensor(values_B).double().mean().item()
    return {prefix + name: value for name, value in metrics.items()}
