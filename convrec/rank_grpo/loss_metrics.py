"""What the policy loss logs: parts that add up over micro-batches and processes, and the values made of them.

Shapes: B sequences, U units per row (at most: largest id + 1).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

import torch

from convrec.rank_grpo.step_metrics import rank_buckets


def metric_parts(
    sums: Mapping[str, torch.Tensor],
    ratio_BU: torch.Tensor,
    present_BU: torch.Tensor,
    clipped_low_BU: torch.Tensor,
    clipped_high_BU: torch.Tensor,
    num_ranks: int,
) -> dict[str, float]:
    """The parts of one micro-batch, to be put together by `finish_policy_metrics`.

    The key's ending (:sum, :min, :max) says how. Per unit id on the device, one transfer, then per bucket in Python.

    Args:
        sums: scalars that are logged as they are.
        ratio_BU: importance ratios, of any value where the unit is not present.
        present_BU: has the unit a token?
        clipped_low_BU, clipped_high_BU: is its ratio clipped?
    """
    inf = float("inf")
    by_unit = torch.stack(
        [
            present_BU.sum(dim=0).to(ratio_BU.dtype),
            (ratio_BU * present_BU).sum(dim=0),
            ratio_BU.masked_fill(~present_BU, inf).amin(dim=0),
            ratio_BU.masked_fill(~present_BU, -inf).amax(dim=0),
            clipped_low_BU.sum(dim=0).to(ratio_BU.dtype),
            clipped_high_BU.sum(dim=0).to(ratio_BU.dtype),
        ]
    )
    flat = torch.cat([torch.stack(list(sums.values())), by_unit.reshape(-1)]).tolist()
    parts = {f"{name}:sum": value for name, value in zip(sums, flat, strict=False)}
    U = ratio_BU.shape[1]
    rows = [flat[start : start + U] for start in range(len(sums), len(flat), U)]

    buckets = [("all", 0, U), *rank_buckets(num_ranks)]
    buckets += [("stop", num_ranks, num_ranks + 1), ("overflow", num_ranks + 1, max(U, num_ranks + 2))]
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
    """Parts of one or many micro-batches -> named values: means over tokens (kl, approx_kl) and units (the rest).

    `policy_loss` and `kl_loss` carry the loss's factor dp_size: add them over micro-batches and average over
    processes, as verl's Metric(SUM) does; the other values are quotients of two sums, to which that average makes no
    difference. Buckets without a unit are left out.
    """
    combine: dict[str, Callable[[list[float]], float]] = {"sum": sum, "min": min, "max": max}
    collected: dict[str, list[float]] = {}
    for part in [parts] if isinstance(parts, Mapping) else parts:
        for key, value in part.items():
            collected.setdefault(key, []).append(float(value))
    total = {key: combine[key.rpartition(":")[2]](values) for key, values in collected.items()}

    out: dict[str, float] = {}
    for key, value in total.items():
        name, _, kind = key.rpartition(":")
        family, _, bucket = name.partition("/")
        if name in ("policy_loss", "kl_loss"):
            out[name] = value
        elif name in ("kl", "approx_kl"):
            out[name] = value / max(total["tokens:sum"], 1.0)
        elif family == "units" or name == "tokens" or not total[f"units/{bucket}:sum"]:
            continue
        elif kind == "sum":
            out[{"ratio": "ratio_mean"}.get(family, family) + f"/{bucket}"] = value / total[f"units/{bucket}:sum"]
        elif math.isfinite(value):
            out[{"ratio_lowest": "ratio_min", "ratio_highest": "ratio_max"}[family] + f"/{bucket}"] = value
    return {prefix + name: value for name, value in out.items()}
