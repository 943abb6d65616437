"""Check that the rollout samples from the policy that is trained."""

import logging
from typing import Any

from convrec.rank_grpo.credit import has_log_prob
from convrec.settings.run import Run
from convrec.settings.training import RLConfig

logger = logging.getLogger(__name__)

# Bounds on the mean |log p_vllm - log p_actor|, in nats. Measured: below 1e-5 if both compute in fp32, with sums in
# another order; .002 to .011 if one of them rounds to bf16; .3 and more if the weights have not arrived.
FP32_BOUND = 0.01
BF16_BOUND = 0.1


def choose_bound(run: Run[RLConfig]) -> float:
    """Return the bound on the mean |log p_vllm - log p_actor|, in nats.

    That is `convrec.rollout_check_bound`; by default, the bound for the dtypes of rollout and actor.
    """
    bound = run.settings.rollout_check_bound
    if bound is not None:
        return bound
    return FP32_BOUND if run.rollout_is_exact else BF16_BOUND


def check_rollout_is_policy(data: Any, bound: float) -> None:
    """Compare vLLM's log-probs of its own samples with the actor's.

    Args:
        data: `log_probs` of the actor, `rollout_log_probs` and `loss_mask`, each (B, T).
        bound: maximum of the mean absolute difference, over tokens in the loss with a log-prob from the rollout.

    Raises:
        RuntimeError: the difference is larger, so the rollout is not the policy, or there is no token to compare.
    """
    compared_BT = data["loss_mask"].bool() & has_log_prob(data["rollout_log_probs"])
    if not compared_BT.any():
        raise RuntimeError(
            "the first batch has no token to compare with the rollout: the responses with log-probs are empty or masked"
        )
    difference = (data["log_probs"] - data["rollout_log_probs"]).abs()[compared_BT]
    mean = difference.mean().item()
    largest = difference.max().item()
    num_compared = int(compared_BT.any(dim=1).sum())
    print(  # for run.log
        f"rollout against actor: {num_compared} of {len(compared_BT)} responses compared, mean |d log p| {mean:.3g}, "
        f"max {largest:.3g}, bound on the mean {bound:g}",
        flush=True,
    )
    if not mean <= bound:
        raise RuntimeError(
            f"the rollout does not sample from the policy: mean |log p_vllm - log p_actor| of the first batch is "
            f"{mean:.3g} (max {largest:.3g}), above convrec.rollout_check_bound={bound:g}. The weights did not "
            "reach vLLM, or the two run in different precision (rollout.dtype, mixed_precision, quantization)."
        )


def warn_about_drift(step: int, metrics: dict[str, Any], bound: float) -> None:
    """Log a warning if the rollout of a step differs from the actor by more than the bound.

    Args:
        step: the step's number.
        metrics: its metrics; without `actor/rollout_diff_mean` there is nothing to check.
        bound: maximum of the mean absolute difference, in nats.
    """
    mean = metrics.get("actor/rollout_diff_mean")
    if mean is not None and not mean <= bound:
        logger.warning(
            "step %d: mean |log p_vllm - log p_actor| is %.3g, above %g: the rollout drifts from the policy",
            step,
            mean,
            bound,
        )
