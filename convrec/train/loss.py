"""verl's loss-function form of the rank-level policy loss; it travels to every actor worker."""

from typing import Any

import torch
from tensordict import TensorDict
from verl.utils.metric import Metric
from verl.utils.tensordict_utils import get_non_tensor_data
from verl.workers.utils.padding import no_padding_2_padding

from convrec.rank_grpo.credit import NOT_SAMPLED
from convrec.rank_grpo.policy_loss import BatchCounts, RankLossSettings, rank_policy_loss

NUM_PADDING = "num_padding"  # rows that fill a mini-batch up to its processes, which are no responses


def rank_grpo_loss(
    model_output: dict[str, torch.Tensor],
    data: TensorDict,
    dp_group: Any = None,
    *,
    settings: RankLossSettings,
    old_is_rollout: bool = False,
) -> tuple[torch.Tensor, dict[str, Any]]:
    """verl's loss-function form of `rank_policy_loss`: nested tensors in, (loss of the micro-batch, metrics) out.

    old_is_rollout: `old_log_probs` are those of the rollout (verl's bypass mode).
    """
    log_prob = no_padding_2_padding(model_output["log_probs"], data)
    optional = [
        key for key in ("old_log_probs", "ref_log_prob", "rollout_log_probs", "rollout_is_weights") if key in data
    ]
    # of the mini-batch; verl counts `loss_mask`, which may be nothing but dropped rows
    num_tokens = max(data["batch_num_tokens"], 1)
    num_rows = data["global_batch_size"] - get_non_tensor_data(data, NUM_PADDING, 0)
    counts = BatchCounts(num_rows, num_tokens, data["dp_size"])
    batch = data.select("loss_mask", "advantages", "policy_units", *optional).to_padded_tensor()
    mask = batch["loss_mask"].bool()
    loss, metrics = rank_policy_loss(
        log_prob,
        batch["advantages"],
        batch["policy_units"].long() - 1,
        settings,
        counts,
        old_log_prob_BT=batch.get("old_log_probs"),
        ref_log_prob_BT=batch.get("ref_log_prob"),
        rollout_is_weights_BT=batch.get("rollout_is_weights"),
    )
    verl_metrics = {key: Metric(key.rpartition(":")[2], value) for key, value in metrics.items()}
    # what a repair has written tells nothing about the policy
    sampled = mask & (batch["rollout_log_probs"] < NOT_SAMPLED) if "rollout_log_probs" in batch else mask
    # strictly on-policy, this forward pass is the policy that generated; else old_log_probs is. Where those are the
    # rollout's, which must not be compared with themselves, it is this one but for the updates made since
    policy_log_prob = (log_prob if old_is_rollout else batch.get("old_log_probs", log_prob)).detach()
    per_token = data["dp_size"] / num_tokens
    # temperature 1 and no truncation: the mean surprisal of the samples estimates the entropy without bias
    verl_metrics["entropy"] = Metric("sum", -(policy_log_prob * sampled).sum() * per_token)
    if "rollout_log_probs" in batch:
        difference = (policy_log_prob - batch["rollout_log_probs"]).abs() * sampled
        verl_metrics["rollout_diff_mean"] = Metric("sum", difference.sum() * per_token)
        verl_metrics["rollout_diff_max"] = Metric("max", difference.max())
    return loss, verl_metrics
