"""The Rank-GRPO policy loss (docs/method.md 3; arXiv 2510.20150, eq. 6), its gradient in closed form.

    loss = sum_t weight_t * ( -is_t * min(w_u A_t, clip(w_u, 1-low, 1+high) A_t) + kl_coef * k3_t ),  u the unit of t
    w_u  = exp( mean over the unit's tokens of (log pi_new - log pi_old) ),   a ratio of geometric means
    k3_t = exp(log pi_ref - log pi_new) - (log pi_ref - log pi_new) - 1

    rank-mean            weight_t = 1 / (global_batch_size * num_ranks * tokens in the unit): units weigh the same
    token-mean           weight_t = 1 / batch_num_tokens
    seq-mean-token-mean  weight_t = 1 / (global_batch_size * tokens in the row)

Only global counts divide, so the partial losses of micro-batches add up; data-parallel engines average gradients over
`dp_size` processes, so the loss is multiplied by it. There is no dual clip.

The loss needs d loss / d log_prob only, and everything but a few sums lives on units, not tokens: the forward pass
computes the gradient as well and keeps that one (B, T) tensor.

Shapes: B sequences, T response tokens, U units per row (at most: largest id + 1).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import torch

from convrec.errors import UserError
from convrec.rank_grpo.step_metrics import rank_buckets

Aggregation = Literal["rank-mean", "token-mean", "seq-mean-token-mean"]
AGGREGATIONS: tuple[str, ...] = ("rank-mean", "token-mean", "seq-mean-token-mean")

# exp(20) = 4.9e8. A log-ratio above this (of a unit, or of the reference over the policy at a token) is taken as this
# and has gradient 0, as in verl. Below there is nothing to guard: exp underflows to 0.
MAX_LOG_RATIO = 20.0


class _LossWithGradient(torch.autograd.Function):
    """A scalar whose gradient with respect to `log_prob` is already known."""

    @staticmethod
    def forward(ctx: Any, log_prob_BT: torch.Tensor, loss: torch.Tensor, grad_BT: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(grad_BT)
        return loss

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (grad_BT,) = ctx.saved_tensors
        return grad_BT * grad_output, None, None


def rank_policy_loss(
    log_prob_BT: torch.Tensor,
    advantages_BT: torch.Tensor,
    unit_ids_BT: torch.Tensor,
    *,
    num_ranks: int,
    global_batch_size: int,
    batch_num_tokens: int | None = None,
    clip_ratio_low: float = 0.06,
    clip_ratio_high: float = 0.08,
    old_log_prob_BT: torch.Tensor | None = None,
    ref_log_prob_BT: torch.Tensor | None = None,
    kl_coef: float = 0.0,
    rollout_is_weights: torch.Tensor | None = None,
    aggregation: Aggregation = "rank-mean",
    dp_size: int = 1,
) -> tuple[torch.Tensor, dict[str, float]]:
    """Loss of one micro-batch and what to log about it.

    Args:
        log_prob_BT: of the policy being trained; the only argument that gets a gradient.
        advantages_BT, unit_ids_BT: from `assign_units`. Tokens with id -1 (padding too) count nowhere.
        global_batch_size, batch_num_tokens: sequences and response tokens of the whole mini-batch, over all
            micro-batches and data-parallel processes.
        old_log_prob_BT: None means strictly on-policy: w = 1, with gradient.
        ref_log_prob_BT: frozen SFT policy; with it the mean KL is logged even when `kl_coef` is 0.
        rollout_is_weights: multiply the policy term of each token (rollout correction).

    Computes in float32, or in float64 when `log_prob_BT` is. Returns (loss, metrics); metrics are parts, to be put
    together by `finish_policy_metrics` over micro-batches and processes: the key's ending (:sum, :min, :max) says
    how.
    """
    if aggregation not in AGGREGATIONS:
        raise UserError(f"loss aggregation must be one of {', '.join(AGGREGATIONS)}, not {aggregation!r}")
    if batch_num_tokens is None:
        if aggregation == "token-mean":
            raise ValueError("token-mean needs batch_num_tokens, the response tokens of the whole mini-batch")
        batch_num_tokens = 1
    with torch.no_grad():
        loss, grad_BT, metrics = _loss_and_gradient(
            log_prob_BT.detach(),
            advantages_BT.detach(),
            unit_ids_BT,
            num_ranks,
            global_batch_size,
            batch_num_tokens,
            (1.0 - clip_ratio_low, 1.0 + clip_ratio_high),
            old_log_prob_BT,
            ref_log_prob_BT,
            kl_coef,
            rollout_is_weights,
            aggregation,
            dp_size,
        )
    return _LossWithGradient.apply(log_prob_BT, loss, grad_BT.to(log_prob_BT.dtype)), metrics


def _loss_and_gradient(
    log_prob_BT: torch.Tensor,
    advantages_BT: torch.Tensor,
    unit_ids_BT: torch.Tensor,
    num_ranks: int,
    global_batch_size: int,
    batch_num_tokens: int,
    clip: tuple[float, float],
    old_log_prob_BT: torch.Tensor | None,
    ref_log_prob_BT: torch.Tensor | None,
    kl_coef: float,
    rollout_is_weights: torch.Tensor | None,
    aggregation: str,
    dp_size: int,
) -> tuple[torch.Tensor, torch.Tensor, dict[str, float]]:
    dtype = torch.promote_types(log_prob_BT.dtype, torch.float32)
    B, T = log_prob_BT.shape
    U = max(int(unit_ids_BT.max()) + 1, 1)

    # Advantages of both signs may meet in a unit (reference preset), and clipping treats them apart, so every unit has
    # two slots, for its tokens with A >= 0 and with A < 0; the first slot of a row takes the tokens of no unit.
    none_BT = unit_ids_BT < 0
    advantages_BT = advantages_BT.to(dtype)
    slot_BT = (advantages_BT < 0) * (B * (U + 1))
    slot_BT += torch.arange(1, B * (U + 1), U + 1, device=slot_BT.device)[:, None]
    slot = slot_BT.add_(unit_ids_BT).view(-1)

    def by_sign(slots: torch.Tensor) -> torch.Tensor:
        return slots.view(2, B, U + 1)[:, :, 1:]

    def sum_by_sign(tokens_BT: torch.Tensor) -> torch.Tensor:
        zeros = torch.zeros(2 * B * (U + 1), dtype=dtype, device=slot.device)
        return by_sign(zeros.scatter_add_(0, slot, tokens_BT.reshape(-1)))

    def to_tokens(units_BU: torch.Tensor) -> torch.Tensor:
        slots = torch.nn.functional.pad(units_BU, (1, 0)).view(-1)
        return slots.repeat(2).index_select(0, slot).view(B, T)

    count_BU = by_sign(torch.bincount(slot, minlength=2 * B * (U + 1))).sum(dim=0).to(dtype)
    mean_BU = count_BU.clamp(min=1).reciprocal()  # 1 / tokens in the unit

    if aggregation == "rank-mean":
        weight_BU = mean_BU * (dp_size / (global_batch_size * num_ranks))
    elif aggregation == "token-mean":
        weight_BU = torch.full_like(mean_BU, dp_size / batch_num_tokens)
    else:
        row_tokens_B1 = count_BU.sum(dim=1, keepdim=True).clamp(min=1)
        weight_BU = (dp_size / global_batch_size / row_tokens_B1).expand(B, U)

    if rollout_is_weights is not None:
        advantages_BT = advantages_BT * rollout_is_weights.detach().to(dtype)
    positive_BU, negative_BU = sum_by_sign(advantages_BT)

    low, high = clip
    if old_log_prob_BT is None:
        log_ratio_BU = torch.zeros_like(mean_BU)
    else:
        # a geometric mean: long titles must not dominate the ratio
        log_ratio_BU = sum_by_sign(log_prob_BT.to(dtype) - old_log_prob_BT.detach().to(dtype)).sum(dim=0) * mean_BU
    ratio_BU = log_ratio_BU.clamp(max=MAX_LOG_RATIO).exp_()

    # min(wA, clip(w)A) is A min(w, 1+high) for A > 0 and A max(w, 1-low) for A < 0
    policy_loss = -(weight_BU * (positive_BU * ratio_BU.clamp(max=high) + negative_BU * ratio_BU.clamp(min=low))).sum()
    # a clipped side has gradient 0; d w_u / d log_prob_t = w_u / tokens in the unit
    active_BU = positive_BU * (ratio_BU <= high) + negative_BU * (ratio_BU >= low)
    unit_grad_BU = -weight_BU * active_BU * ratio_BU * mean_BU
    unit_grad_BU.masked_fill_(log_ratio_BU > MAX_LOG_RATIO, 0)
    grad_BT = to_tokens(unit_grad_BU)

    kl_sum = kl_loss = torch.zeros_like(policy_loss)
    if ref_log_prob_BT is not None:
        # two (B, T) buffers at a time beside the gradient: the loss must not be what sets the memory peak
        log_ref_BT = (ref_log_prob_BT.detach().to(dtype) - log_prob_BT.to(dtype)).masked_fill_(none_BT, 0)
        too_large_BT = log_ref_BT > MAX_LOG_RATIO
        expm1_BT = log_ref_BT.clamp_(max=MAX_LOG_RATIO).expm1()
        k3_BT = torch.sub(expm1_BT, log_ref_BT, out=log_ref_BT)
        kl_sum = k3_BT.sum()
        token_weight = to_tokens(weight_BU).view(-1)
        kl_loss = kl_coef * torch.dot(token_weight, k3_BT.view(-1))
        del k3_BT, log_ref_BT
        # d k3 / d log_prob = 1 - exp(log_ref - log_prob)
        expm1_BT.masked_fill_(too_large_BT, 0).view(-1).mul_(token_weight)
        grad_BT.sub_(expm1_BT, alpha=kl_coef)
    loss = policy_loss + kl_loss

    scalars = torch.stack([policy_loss, kl_loss, kl_sum, -(log_ratio_BU * count_BU).sum(), count_BU.sum()])
    metrics = _metric_parts(
        scalars,
        ratio_BU,
        count_BU > 0,
        (ratio_BU < low) & (negative_BU < 0),
        (ratio_BU > high) & (positive_BU > 0),
        num_ranks,
        has_ref=ref_log_prob_BT is not None,
    )
    return loss, grad_BT, metrics


def _metric_parts(
    scalars: torch.Tensor,
    ratio_BU: torch.Tensor,
    present_BU: torch.Tensor,
    clipped_low_BU: torch.Tensor,
    clipped_high_BU: torch.Tensor,
    num_ranks: int,
    has_ref: bool,
) -> dict[str, float]:
    """Per unit id on the device, one transfer, then per bucket in Python."""
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
    flat = torch.cat([scalars, by_unit.reshape(-1)]).tolist()
    policy_loss, kl_loss, kl_sum, approx_kl_sum, num_tokens = flat[:5]
    U = ratio_BU.shape[1]
    rows = [flat[5 + i * U : 5 + (i + 1) * U] for i in range(6)]

    parts = {"policy_loss:sum": policy_loss, "tokens:sum": num_tokens, "approx_kl:sum": approx_kl_sum}
    if has_ref:
        parts |= {"kl_loss:sum": kl_loss, "kl:sum": kl_sum}
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


def metric_aggregation(key: str) -> str:
    """How parts with this key combine over micro-batches and processes: "sum", "min" or "max"."""
    return key.rpartition(":")[2]


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
    total = {key: combine[metric_aggregation(key)](values) for key, values in collected.items()}

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
