"""The Rank-GRPO policy loss (docs/explanation/method.md 3; arXiv 2510.20150, eq. 6) with its gradient in closed form.

    loss = sum_t weight_t * ( -is_t * min(w_u A_t, clip(w_u, 1-low, 1+high) A_t) + kl_coef * k3_t ),  u the unit of t
    w_u  = exp( mean over the unit's tokens of (log pi_new - log pi_old) ),   a ratio of geometric means

`compute_unit_weights` computes weight_t, `compute_policy_term` the first summand and `add_kl_term` the second, each
with its gradient. Backpropagation needs only d loss / d log_prob, and almost everything is computed per unit, not per
token. So the forward pass also computes the gradient, and keeps only this one (B, T) tensor.

Shapes: B sequences, T response tokens, U units per row (largest id + 1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import torch

from convrec.base.errors import UserError
from convrec.rank_grpo.loss_metrics import compute_metric_parts

Aggregation = Literal["rank-mean", "token-mean", "seq-mean-token-mean"]
AGGREGATIONS: tuple[str, ...] = get_args(Aggregation)

# exp(20) = 4.9e8. A larger log-ratio (of a unit, or of reference to policy at a token) is clamped to this value and has
# gradient 0, as in verl. Such a unit is also left out of the loss, where it would hide all others. Small log-ratios
# need no guard: exp underflows to 0.
MAX_LOG_RATIO = 20.0


@dataclass(frozen=True)
class RankLossSettings:
    """The settings of the loss.

    Attributes:
        num_ranks: N.
        clip_ratio_low: ratios are clipped at 1 - clip_ratio_low.
        clip_ratio_high: ratios are clipped at 1 + clip_ratio_high.
        kl_coef: coefficient of the KL divergence from the reference.
        aggregation: weights of the tokens, see `compute_unit_weights`. The paper has "rank-mean", its public code
            "token-mean".

    Raises:
        UserError: the aggregation is unknown.
    """

    num_ranks: int
    clip_ratio_low: float = 0.06
    clip_ratio_high: float = 0.08
    kl_coef: float = 0.0
    aggregation: Aggregation = "rank-mean"

    def __post_init__(self) -> None:
        if self.aggregation not in AGGREGATIONS:
            raise UserError(
                "method.unknown-aggregation",
                f"loss aggregation {self.aggregation!r}: expected one of {', '.join(AGGREGATIONS)}",
            )


@dataclass(frozen=True)
class BatchCounts:
    """Counts over the whole mini-batch of an update: all micro-batches of all data-parallel processes.

    Attributes:
        global_batch_size: sequences.
        batch_num_tokens: response tokens; only token-mean needs them.
        dp_size: data-parallel processes.
    """

    global_batch_size: int
    batch_num_tokens: int | None = None
    dp_size: int = 1


class PolicyTerm(NamedTuple):
    """The result of `compute_policy_term` for a micro-batch.

    Attributes:
        loss: scalar.
        grad_BU: gradient with respect to the log-prob of each token of a unit.
        ratio_BU: importance ratios.
        clipped_low_BU: True where clipping from below changes the gradient.
        clipped_high_BU: True where clipping from above changes the gradient.
    """

    loss: torch.Tensor
    grad_BU: torch.Tensor
    ratio_BU: torch.Tensor
    clipped_low_BU: torch.Tensor
    clipped_high_BU: torch.Tensor


class Units:
    """The units of a micro-batch: sums over the tokens of a unit, and values of units spread to their tokens.

    A unit may have advantages of both signs (reference preset), which clipping treats differently. So each unit has two
    slots, one for its tokens with A >= 0 and one for those with A < 0. The first slot of a row holds the tokens without
    a unit.

    Args:
        unit_ids_BT: unit of each token, -1 for none.
        advantages_BT: advantage of each token, of which only the sign and the dtype are used.

    Attributes:
        none_BT: True where the token has no unit.
        count_BU: number of tokens in the unit.
        mean_BU: 1 / count_BU; 1 where the count is 0.
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
        """Return the sums over each unit's tokens with A >= 0 and over those with A < 0: (2, B, U)."""
        zeros = torch.zeros(self.num_slots, dtype=tokens_BT.dtype, device=tokens_BT.device)
        return self._by_sign(zeros.scatter_add_(0, self.slot, tokens_BT.reshape(-1)))

    def to_tokens(self, units_BU: torch.Tensor) -> torch.Tensor:
        """Return the value of each token's unit (B, T); 0 for a token without a unit."""
        slots = torch.nn.functional.pad(units_BU, (1, 0)).view(-1)
        return slots.repeat(2).index_select(0, self.slot).view(self.B, self.T)


def sum_over_units(tokens_BT: torch.Tensor, unit_ids_BT: torch.Tensor) -> torch.Tensor:
    """Return the sum over the tokens of each token's unit (B, T); 0 for a token without a unit."""
    units = Units(unit_ids_BT, torch.zeros_like(tokens_BT))
    return units.to_tokens(units.sum_by_sign(tokens_BT).sum(dim=0))


def compute_rank_policy_loss(
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
    """Compute the loss of one micro-batch, in float32, or in float64 if `log_prob_BT` is.

    Args:
        log_prob_BT: log-probs of the policy that is trained; the only argument that gets a gradient.
        advantages_BT: advantage of each token, from `assign_units`.
        unit_ids_BT: unit of each token, from `assign_units`. Tokens with id -1, padding included, do not count.
        settings: settings of the loss.
        counts: counts over the whole mini-batch.
        old_log_prob_BT: log-probs of the old policy; None means strictly on-policy: w = 1, with gradient.
        ref_log_prob_BT: log-probs of the reference; with them the mean KL is logged even if the KL coefficient is 0.
        rollout_is_weights_BT: factors of each token's policy term (rollout correction); None for 1.

    Returns:
        The loss, a scalar that can be differentiated once, and the metric parts that `finish_policy_metrics` combines.

    Raises:
        ValueError: aggregation "token-mean" without `counts.batch_num_tokens`.
    """
    with torch.no_grad():
        dtype = torch.promote_types(log_prob_BT.dtype, torch.float32)
        advantages_BT = advantages_BT.to(dtype)
        units = Units(unit_ids_BT, advantages_BT)
        weight_BU = compute_unit_weights(units, settings, counts)

        if rollout_is_weights_BT is not None:
            advantages_BT = advantages_BT * rollout_is_weights_BT.to(dtype)
        log_ratio_BU = torch.zeros_like(weight_BU)
        if old_log_prob_BT is not None:
            # The ratio is a geometric mean, so that long titles do not dominate it.
            sums_2BU = units.sum_by_sign(log_prob_BT.to(dtype) - old_log_prob_BT.to(dtype))
            log_ratio_BU = sums_2BU.sum(dim=0) * units.mean_BU
        advantage_sums_2BU = units.sum_by_sign(advantages_BT)
        policy = compute_policy_term(log_ratio_BU, advantage_sums_2BU, weight_BU, units.mean_BU, settings)
        grad_BT = units.to_tokens(policy.grad_BU)

        loss = policy.loss
        sums = {"policy_loss": policy.loss}
        if ref_log_prob_BT is not None:
            kl_loss, kl_sum = add_kl_term(grad_BT, log_prob_BT, ref_log_prob_BT, units, weight_BU, settings.kl_coef)
            loss = loss + kl_loss
            sums |= {"kl_loss": kl_loss, "kl": kl_sum}
        sums |= {"approx_kl": -(log_ratio_BU * units.count_BU).sum(), "tokens": units.count_BU.sum()}
        parts = compute_metric_parts(
            sums,
            ratio_BU=policy.ratio_BU,
            present_BU=units.count_BU > 0,
            clipped_low_BU=policy.clipped_low_BU,
            clipped_high_BU=policy.clipped_high_BU,
            num_ranks=settings.num_ranks,
        )
    return _LossWithGradient.apply(log_prob_BT, loss, grad_BT.to(log_prob_BT.dtype)), parts


def compute_unit_weights(units: Units, settings: RankLossSettings, counts: BatchCounts) -> torch.Tensor:
    """Return the weight of each token of a unit in the loss, (B, U).

        rank-mean            weight_t = 1 / (global_batch_size * num_ranks * tokens in the unit), equal for all units
        token-mean           weight_t = 1 / batch_num_tokens
        seq-mean-token-mean  weight_t = 1 / (global_batch_size * tokens in the row)

    rank-mean is eq. 6: each item has 1/(G N), shared by its tokens. All divisors are global counts, so the losses of
    micro-batches add up. Data-parallel engines average gradients over processes, hence the factor `dp_size`.

    Raises:
        ValueError: token-mean without batch_num_tokens.
    """
    if settings.aggregation == "rank-mean":
        return units.mean_BU * (counts.dp_size / (counts.global_batch_size * settings.num_ranks))
    if settings.aggregation == "token-mean":
        if counts.batch_num_tokens is None:
            raise ValueError("token-mean needs batch_num_tokens, the response tokens of the whole mini-batch")
        return torch.full_like(units.mean_BU, counts.dp_size / counts.batch_num_tokens)
    row_tokens_B1 = units.count_BU.sum(dim=1, keepdim=True).clamp(min=1)
    return (counts.dp_size / counts.global_batch_size / row_tokens_B1).expand_as(units.mean_BU)


def compute_policy_term(
    log_ratio_BU: torch.Tensor,
    advantage_sums_2BU: torch.Tensor,
    weight_BU: torch.Tensor,
    mean_BU: torch.Tensor,
    settings: RankLossSettings,
) -> PolicyTerm:
    """Compute the clipped policy term of eq. 6 and its gradient; there is no dual clip.

        -sum_t weight_t min(w_u A_t, clip(w_u, 1-low, 1+high) A_t),  w_u = exp(log_ratio_u)

    min(w A, clip(w) A) is A min(w, 1+high) for A >= 0 and A max(w, 1-low) for A < 0. So the sums A+ and A- of a unit's
    positive and negative advantages are sufficient:

        loss = -sum_u weight_u (A+_u min(w_u, 1+high) + A-_u max(w_u, 1-low))

    A clipped side has gradient 0, and d w_u / d log_prob_t = w_u / tokens in the unit:

        d loss / d log_prob_t = -weight_u (A+_u [w_u <= 1+high] + A-_u [w_u >= 1-low]) w_u / tokens in the unit

    Args:
        log_ratio_BU: mean log-ratio of new to old policy over the unit's tokens.
        advantage_sums_2BU: A+ and A-.
        weight_BU: weight of each token of a unit.
        mean_BU: 1 / tokens in the unit.
        settings: settings of the loss.
    """
    low = 1.0 - settings.clip_ratio_low
    high = 1.0 + settings.clip_ratio_high
    positive_BU, negative_BU = advantage_sums_2BU
    ratio_BU = log_ratio_BU.clamp(max=MAX_LOG_RATIO).exp_()
    too_large_BU = log_ratio_BU > MAX_LOG_RATIO
    objective_BU = weight_BU * (positive_BU * ratio_BU.clamp(max=high) + negative_BU * ratio_BU.clamp(min=low))
    loss = -objective_BU.masked_fill_(too_large_BU, 0).sum()
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
    """Compute the KL term, and add its gradient to `grad_BT` in place.

        k3_t = exp(d_t) - d_t - 1,  d_t = log pi_ref - log pi_new
        d k3_t / d log_prob_t = 1 - exp(d_t)

    Args:
        grad_BT: gradient with respect to the log-probs; changed in place.
        log_prob_BT: log-probs of the policy that is trained.
        ref_log_prob_BT: log-probs of the reference.
        units: units of the tokens; those without one do not count.
        weight_BU: weight of each token of a unit.
        kl_coef: coefficient of the KL divergence.

    Returns:
        kl_coef * sum_t weight_t k3_t, and sum_t k3_t for logging.
    """
    # There are at most two (B, T) buffers besides the gradient, so that the loss does not set the memory peak.
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
    """A scalar whose gradient with respect to `log_prob` is precomputed."""

    @staticmethod
    def forward(ctx: Any, log_prob_BT: torch.Tensor, loss: torch.Tensor, grad_BT: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(grad_BT)
        return loss

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (grad_BT,) = ctx.saved_tensors
        return grad_BT * grad_output, None, None
