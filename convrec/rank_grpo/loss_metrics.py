"""Metrics of the policy loss: parts that add up over micro-batches and processes, and the values made from them.

Shapes: B sequences, U units per row (at most: largest id + 1).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

import torch

from convrec.rank_grpo.step_metrics import make_rank_buckets

# The names of parts whose metrics are called otherwise.
_LOGGED_NAMES = {"ratio": "ratio_mean", "ratio_lowest": "ratio_min", "ratio_highest": "ratio_max"}


def compute_metric_parts(
    sums: Mapping[str, torch.Tensor],
    ratio_BU: torch.Tensor,
    present_BU: torch.Tensor,
    clipped_low_BU: torch.Tensor,
    clipped_high_BU: torch.Tensor,
    num_ranks: int,
) -> dict[str, float]:
    """Compute the metric parts of one micro-batch, which `finish_policy_metrics` combines.

    Statistics per unit id are computed on the device and copied once; those per bucket are computed in Python.

    Args:
        sums: scalars that are logged unchanged.
        ratio_BU: importance ratios; any value where the unit has no token.
        present_BU: True where the unit has a token.
        clipped_low_BU: True where the ratio is clipped from below.
        clipped_high_BU: True where the ratio is clipped from above.
        num_ranks: N.

    Returns:
        name -> number. The ending of a name (:sum, :min, :max) is the way to combine it.
    """
    inf = float("inf")
    statistics_6U = torch.stack(
        [
            present_BU.sum(dim=0).to(ratio_BU.dtype),
            (ratio_BU * present_BU).sum(dim=0),
            ratio_BU.masked_fill(~present_BU, inf).amin(dim=0),
            ratio_BU.masked_fill(~present_BU, -inf).amax(dim=0),
            clipped_low_BU.sum(dim=0).to(ratio_BU.dtype),
            clipped_high_BU.sum(dim=0).to(ratio_BU.dtype),
        ]
    )
    flat = torch.cat([torch.stack(list(sums.values())), statistics_6U.reshape(-1)]).tolist()
    parts = {f"{name}:sum": value for name, value in zip(sums, flat, strict=False)}
    U = ratio_BU.shape[1]
    rows = [flat[start : start + U] for start in range(len(sums), len(flat), U)]

    buckets = [("all", 0, U), *make_rank_buckets(num_ranks)]
    buckets += [("stop", num_ranks, num_ranks + 1), ("overflow", num_ranks + 1, U)]
    for name, start, end in buckets:
        count, total, least, most, clipped_low, clipped_high = (row[start:end] for row in rows)
        parts |= {
            f"units/{name}:sum": sum(count),
            f"ratio/{name}:sum": sum(total),
            f"ratio_lowest/{name}:min": min(least, default=inf),
            f"ratio_highest/{name}:max": max(most, default=-inf),
            f"clip_low/{name}:sum": sum(clipped_low),
            f"clip_high/{name}:sum": sum(clipped_high),
        }
    return parts


def finish_policy_metrics(
    parts: Mapping[str, float] | Iterable[Mapping[str, float]], prefix: str = ""
) -> dict[str, float]:
    """Combine the parts of one or more micro-batches into metrics: means over tokens (kl, approx_kl) or units (others).

    `policy_loss` and `kl_loss` contain the loss's factor dp_size, so sum them over micro-batches and average them over
    processes, as verl's Metric(SUM) does. The other values are quotients of two sums, which this average does not
    change.

    Args:
        parts: results of `compute_metric_parts`.
        prefix: prefix of the metrics' names.

    Returns:
        policy_loss, approx_kl and, with a reference, kl_loss and kl; and ratio_mean, ratio_min, ratio_max, clip_low and
        clip_high per bucket of units: `ratio_mean/all`, `/1`, `/2-5` (ranks from 1), `/stop`, `/overflow`. Buckets
        without a unit are left out.
    """
    combine: dict[str, Callable[[list[float]], float]] = {"sum": sum, "min": min, "max": max}
    values_by_key: dict[str, list[float]] = {}
    for part in [parts] if isinstance(parts, Mapping) else parts:
        for key, value in part.items():
            values_by_key.setdefault(key, []).append(float(value))
    total = {key: combine[key.rpartition(":")[2]](values) for key, values in values_by_key.items()}

    metrics: dict[str, float] = {}
    for key, value in total.items():
        name, _, kind = key.rpartition(":")
        family, _, bucket = name.partition("/")
        if name in ("policy_loss", "kl_loss"):
            metrics[name] = value
        elif name in ("kl", "approx_kl"):
            metrics[name] = value / max(total["tokens:sum"], 1.0)
        elif family == "units" or name == "tokens" or not total[f"units/{bucket}:sum"]:
            continue
        elif kind == "sum":
            metrics[f"{_LOGGED_NAMES.get(family, family)}/{bucket}"] = value / total[f"units/{bucket}:sum"]
        elif math.isfinite(value):
            metrics[f"{_LOGGED_NAMES[family]}/{bucket}"] = value
    return {prefix + name: value for name, value in metrics.items()}
