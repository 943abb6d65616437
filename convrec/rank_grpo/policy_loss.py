"""The Rank-GRPO policy loss (docs/explanation/method.md 3; arXiv 2510.20150, eq. 6), its gradient in closed form.

    loss = sum_t weight_t * ( -is_t * min(w_u A_t, clip(w_u, 1-low, 1+high) A_t) + kl_coef * k3_t ),  u the unit of t
    w_u  = exp( mean over the unit's tokens of (log pi_new - log pi_old) ),   a ratio of geometric means

`unit_weights` has weight_t, `policy_term` the first summand, `add_kl_term` the second, each with its gradient: the loss
needs d loss / d log_prob only, and everything but a few sums lives on units, not tokens, so the forward pass computes
the gradient as well and keeps that one (B, T) tensor.

Shapes: B sequences, T response tokens, U units per row (at most: largest id + 1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import torch

from convrec.base.errors import UserError
from convrec.rank_grpo.loss_metrics import metric_parts

Aggregation = Literal["rank-mean", "token-mean", "seq-mean-token-mean"]
AGGREGATIONS: tuple[str, ...] = get_args(Aggregation)

# exp(20) = 4.9e8. A log-ratio above this (of a unit, or of the reference over the policy at a token) is taken as this
# and has gradient 0, as in verl; such a unit has no part in the loss either, where it would hide all others. Below
# there is nothing to guard: exp underflows to 0.
MAX_LOG_RATIO = 20.0


@dataclass(frozen=True)
class RankLossSettings:
    """What the loss needs to know of the run. Raises UserError for an unknown aggregation."""

    num_ranks: int
    clip_ratio_low: float = 0.06
    clip_ratio_high: float = 0.08
    kl_coef: float = 0.0
    aggregation: Aggregation = "rank-mean"  # the paper's; the reference's is "token-mean"

    def __post_init__(self) -> None:
        if self.aggregation not in AGGREGATIONS:
            raise UserError(f"loss aggregation must be one of {', '.join(AGGREGATIONS)}, not {self.aggregation!r}")


@dataclass(frozen=True)
class BatchCounts:
    """Of the whole mini-batch of an update, over all micro-batches and data-parallel processes."""

    global_batch_size: int  # sequences
    batch_num_tokens: int | None = None  # response tokens; only token-mean needs them
    dp_size: int = 1  # data-parallel processes


class PolicyTerm(NamedTuple):
    """`policy_term` of a micro-batch: its loss, the gradient of each token of a unit, and what is logged."""

    loss: torch.Tensor
    grad_BU: torch.Tensor
    ratio_BU: torch.Tensor
    clipped_low_BU: torch.Tensor
    clipped_high_BU: torch.Tensor


class Units:
    """Which tokens of a micro-batch make up each unit.

    A unit may have advantages of both signs (reference preset), and clipping treats them apart, so every unit has
    two slots, for its tokens with A >= 0 and with A < 0; the first slot of a row takes the tokens of no unit.

    Attributes: none_BT, the token has no unit; count_BU, tokens in the unit; mean_BU, 1 / count_BU (1 where it is 0).
    """

    def __init__(self, unit_ids_BT: torch.Tensor, advantages_BT: torch.Tensor) -> None:
        self.B, self.T = unit_ids_BT.shape
        self.U = U = max(int(unit_ids_BT.max()) + 1, 1)
        self.num_slots = 2 * self.B * (U + 1)
        self.none_BT = unit_ids_BT < 0
        slot_BT = (advantages_BT < 0) * (self.B * (U + 1))
        slot_BT += torch.arange(1, self.B * (U + 1), U + 1, device=slot_BT.device)[:, None]
        self.slot = slot_BT.add_(unit_ids_BT).view(-1)
        count = torch.bincount(self.slot, minlength=self.num_slots)
        self.count_BU = self._by_sign(count).sum(dim=0).to(advantages_BT.dtype)
        self.mean_BU = self.count_BU.clamp(min=1).reciprocal()

    def _by_sign(self, slots: torch.Tensor) -> torch.Tensor:
        return slots.view(2, self.B, self.U + 1)[:, :, 1:]

    def sum_by_sign(self, tokens_BT: torch.Tensor) -> torch.Tensor:
        """(2, B, U): sums over each unit's tokens with A >= 0, and over those with A < 0."""
        zeros = torch.zeros(self.num_slots, dtype=tokens_BT.dtype, device=tokens_BT.device)
        return self._by_sign(zeros.scatter_add_(0, self.slot, tokens_BT.reshape(-1)))

    def to_tokens(self, units_BU: torch.Tensor) -> torch.Tensor:
        """(B, T): each token gets its unit's value, 0 where it has none."""
        slots = torch.nn.functional.pad(units_BU, (1, 0)).view(-1)
        return slots.repeat(2).index_select(0, self.slot).view(self.B, self.T)


def sum_over_units(tokens_BT: torch.Tensor, unit_ids_BT: torch.Tensor) -> torch.Tensor:
    """(B, T): each token gets the sum over its unit's tokens, 0 where it has none."""
    units = Units(unit_ids_BT, torch.zeros_like(tokens_BT))
    return units.to_tokens(units.sum_by_sign(tokens_BT).sum(dim=0))


def rank_policy_loss(
    log_prob_BT: torch.Tensor,
    advantages_BT: torch.Tensor,
    unit_ids_BT: torch.Tensor,
    settings: RankLossSettings,
    counts: BatchCounts,
    *,
    old_log_prob_BT: torch.Tensor | None = None,
    ref_log_prob_BT: torch.Tensor | None = None,
    rollout_is_weights_BT: torch.Tensor | None = None,
) -> tuple[torch.Tensor, dict[str, float]]:
    """Loss of one micro-batch and what to log about it.

    Args:
        log_prob_BT: of the policy being trained; the only argument that gets a gradient.
        advantages_BT, unit_ids_BT: from `assign_units`. Tokens with id -1 (padding too) count nowhere.
        old_log_prob_BT: None means strictly on-policy: w = 1, with gradient.
        ref_log_prob_BT: frozen SFT policy; with it the mean KL is logged even when the KL coefficient is 0.
        rollout_is_weights_BT: multiply the policy term of each token (rollout correction).

    Computes in float32, or in float64 when `log_prob_BT` is. Returns (loss, metrics); metrics are the parts that
    `finish_policy_metrics` puts together.
    """
    with torch.no_grad():
        dtype = torch.promote_types(log_prob_BT.dtype, torch.float32)
        advantages_BT = advantages_BT.to(dtype)
        units = Units(unit_ids_BT, advantages_BT)
        weight_BU = unit_weights(units, settings, counts)

        if rollout_is_weights_BT is not None:
            advantages_BT = advantages_BT * rollout_is_weights_BT.to(dtype)
        log_ratio_BU = torch.zeros_like(weight_BU)
        if old_log_prob_BT is not None:
            # a geometric mean: long titles must not dominate the ratio
            sums_2BU = units.sum_by_sign(log_prob_BT.to(dtype) - old_log_prob_BT.to(dtype))
            log_ratio_BU = sums_2BU.sum(dim=0) * units.mean_BU
        policy = policy_term(log_ratio_BU, units.sum_by_sign(advantages_BT), weight_BU, units.mean_BU, settings)
        grad_BT = units.to_tokens(policy.grad_BU)

        loss = policy.loss
        sums = {"policy_loss": policy.loss}
        if ref_log_prob_BT is not None:
            kl_loss, kl_sum = add_kl_term(grad_BT, log_prob_BT, ref_log_prob_BT, units, weight_BU, settings.kl_coef)
            loss = loss + kl_loss
            sums |= {"kl_loss": kl_loss, "kl": kl_sum}
        sums |= {"approx_kl": -(log_ratio_BU * units.count_BU).sum(), "tokens": units.count_BU.sum()}
        clipped = policy.clipped_low_BU, policy.clipped_high_BU
        metrics = metric_parts(sums, policy.ratio_BU, units.count_BU > 0, *clipped, settings.num_ranks)
    return _LossWithGradient.apply(log_prob_BT, loss, grad_BT.to(log_prob_BT.dtype)), metrics


def unit_weights(units: Units, settings: RankLossSettings, counts: BatchCounts) -> torch.Tensor:
    """(B, U): what each token of a unit weighs in the loss.

        rank-mean            weight_t = 1 / (global_batch_size * num_ranks * tokens in the unit): units weigh the same
        token-mean           weight_t = 1 / batch_num_tokens
        seq-mean-token-mean  weight_t = 1 / (global_batch_size * tokens in the row)

    rank-mean is eq. 6: 1/(G N) of each item, shared by its tokens. Only global counts divide, so the partial losses of
    micro-batches add up; data-parallel engines average gradients over processes, so all is multiplied by `dp_size`.
    """
    if settings.aggregation == "rank-mean":
        return units.mean_BU * (counts.dp_size / (counts.global_batch_size * settings.num_ranks))
    if settings.aggregation == "token-mean":
        if counts.batch_num_tokens is None:
            raise ValueError("token-mean needs batch_num_tokens, the response tokens of the whole mini-batch")
        return torch.full_like(units.mean_BU, counts.dp_size / counts.batch_num_tokens)
    row_tokens_B1 = units.count_BU.sum(dim=1, keepdim=True).clamp(min=1)
    return (counts.dp_size / counts.global_batch_size / row_tokens_B1).expand_as(units.mean_BU)


def policy_term(
    log_ratio_BU: torch.Tensor,
    advantage_sums_2BU: torch.Tensor,
    weight_BU: torch.Tensor,
    mean_BU: torch.Tensor,
    settings: RankLossSettings,
) -> PolicyTerm:
    """-sum_t weight_t min(w_u A_t, clip(w_u, 1-low, 1+high) A_t), w_u = exp(log_ratio_u): eq. 6. There is no dual clip.

    min(w A, clip(w) A) is A min(w, 1+high) for A >= 0 and A max(w, 1-low) for A < 0, so the sums over a unit's tokens
    of its positive and of its negative advantages, A+ and A-, are all it takes:

        loss = -sum_u weight_u (A+_u min(w_u, 1+high) + A-_u max(w_u, 1-low))

    A clipped side has gradient 0, and d w_u / d log_prob_t = w_u / tokens in the unit:

        d loss / d log_prob_t = -weight_u (A+_u [w_u <= 1+high] + A-_u [w_u >= 1-low]) w_u / tokens in the unit

    Args:
        advantage_sums_2BU: A+ and A-.
        mean_BU: 1 / tokens in the unit.
    """
    low = 1.0 - settings.clip_ratio_low
    high = 1.0 + settings.clip_ratio_high
    positive_BU, negative_BU = advantage_sums_2BU
    ratio_BU = log_ratio_BU.clamp(max=MAX_LOG_RATIO).exp_()
    too_large_BU = log_ratio_BU > MAX_LOG_RATIO
    gained_BU = weight_BU * (positive_BU * ratio_BU.clamp(max=high) + negative_BU * ratio_BU.clamp(min=low))
    loss = -gained_BU.masked_fill_(too_large_BU, 0).sum()
    active_BU = positive_BU * (ratio_BU <= high) + negative_BU * (ratio_BU >= low)
    grad_BU = -weight_BU * active_BU * ratio_BU * mean_BU
    grad_BU.masked_fill_(too_large_BU, 0)
    clipped_low_BU = (ratio_BU < low) & (negative_BU < 0)
    clipped_high_BU = (ratio_BU > high) & (positive_BU > 0)
    return PolicyTerm(loss, grad_BU, ratio_BU, clipped_low_BU, clipped_high_BU)


def add_kl_term(
    grad_BT: torch.Tensor,
    log_prob_BT: torch.Tensor,
    ref_log_prob_BT: torch.Tensor,
    units: Units,
    weight_BU: torch.Tensor,
    kl_coef: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """kl_coef * sum_t weight_t k3_t, and sum_t k3_t for the log; the gradient is added to `grad_BT` in place.

    k3_t = exp(d_t) - d_t - 1,  d_t = log pi_ref - log pi_new
    d k3_t / d log_prob_t = 1 - exp(d_t)
    """
    # two (B, T) buffers at a time beside the gradient: the loss must not be what sets the memory peak
    log_ref_BT = (ref_log_prob_BT.to(grad_BT.dtype) - log_prob_BT.to(grad_BT.dtype)).masked_fill_(units.none_BT, 0)
    too_large_BT = log_ref_BT > MAX_LOG_RATIO
    expm1_BT = log_ref_BT.clamp_(max=MAX_LOG_RATIO).expm1()
    k3_BT = torch.sub(expm1_BT, log_ref_BT, out=log_ref_BT)
    k3_sum = k3_BT.sum()
    token_weight = units.to_tokens(weight_BU).view(-1)
    loss = kl_coef * torch.dot(token_weight, k3_BT.view(-1))
    del k3_BT, log_ref_BT
    expm1_BT.masked_fill_(too_large_BT, 0).view(-1).mul_(token_weight)
    grad_BT.sub_(expm1_BT, alpha=kl_coef)
    return loss, k3_sum


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
