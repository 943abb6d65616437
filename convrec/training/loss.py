"""The rank-level policy loss as a loss function of verl's; every actor worker gets a copy."""

from typing import Any

import torch
from tensordict import TensorDict
from verl.utils.metric import Metric
from verl.utils.tensordict_utils import get_non_tensor_data
from verl.workers.utils.padding import no_padding_2_padding

from convrec.rank_grpo.credit import has_log_prob, is_sampled
from convrec.rank_grpo.policy_loss import BatchCounts, RankLossSettings, compute_rank_policy_loss
from convrec.training.batch import UNITS, decode_units

NUM_PADDING = "num_padding"  # padding rows of a mini-batch, which are not responses
COMPARED_TOKENS = "rollout_compared"  # share of the loss's tokens whose log-probs the rollout reported


def rank_grpo_loss(
    model_output: dict[str, torch.Tensor],
    data: TensorDict,
    dp_group: Any = None,
    *,
    settings: RankLossSettings,
    bypass_mode: bool = False,
) -> tuple[torch.Tensor, dict[str, Any]]:
    """Apply `compute_rank_policy_loss` to a micro-batch of nested tensors, with the signature of verl's losses.

    Args:
        model_output: output of the forward pass, with `log_probs` of prompts and responses.
        data: the micro-batch: rows of TransferQueue, and verl's counts of the mini-batch.
        dp_group: not used; part of verl's signature.
        settings: settings of the loss.
        bypass_mode: `old_log_probs` are the rollout's.

    Returns:
        The loss of the micro-batch, and its metrics.
    """
    log_prob = no_padding_2_padding(model_output["log_probs"], data)
    optional = [
        key for key in ("old_log_probs", "ref_log_prob", "rollout_log_probs", "rollout_is_weights") if key in data
    ]
    # batch_num_tokens is verl's count of the `loss_mask`, which is 0 if every row is masked out.
    num_tokens = max(data["batch_num_tokens"], 1)
    num_rows = data["global_batch_size"] - get_non_tensor_data(data, NUM_PADDING, 0)
    counts = BatchCounts(num_rows, num_tokens, data["dp_size"])
    batch = data.select("loss_mask", "advantages", UNITS, *optional).to_padded_tensor()
    mask = batch["loss_mask"].bool()
    loss, metrics = compute_rank_policy_loss(
        log_prob,
        batch["advantages"],
        decode_units(batch[UNITS]),
        settings,
        counts,
        old_log_prob_BT=batch.get("old_log_probs"),
        ref_log_prob_BT=batch.get("ref_log_prob"),
        rollout_is_weights_BT=batch.get("rollout_is_weights"),
    )
    verl_metrics = {key: Metric(key.rpartition(":")[2], value) for key, value in metrics.items()}
    # Tokens that a repair wrote say nothing about the policy.
    sampled = mask & is_sampled(batch["rollout_log_probs"]) if "rollout_log_probs" in batch else mask
    # The policy that sampled is this forward pass if strictly on-policy, else old_log_probs. In bypass mode those are
    # the rollout's, which must not be compared with themselves: take this pass, which differs from the sampling policy
    # by the updates made since.
    policy_log_prob = (log_prob if bypass_mode else batch.get("old_log_probs", log_prob)).detach()
    per_token = data["dp_size"] / num_tokens
    # At temperature 1 without truncation, the mean surprisal of the samples estimates the entropy without bias.
    verl_metrics["entropy"] = Metric("sum", -(policy_log_prob * sampled).sum() * per_token)
    if "rollout_log_probs" in batch:
        compared = mask & has_log_prob(batch["rollout_log_probs"])
        difference = (policy_log_prob - batch["rollout_log_probs"]).abs() * compared
        verl_metrics["rollout_diff_mean"] = Metric("sum", difference.sum() * per_token)
        verl_metrics["rollout_diff_max"] = Metric("max", difference.max())
        # The method divides the mean by this share, which is known once the whole mini-batch has been through here.
        verl_metrics[COMPARED_TOKENS] = Metric("sum", compared.sum() * per_token)
    return loss, verl_metrics
