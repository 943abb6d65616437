"""When old log-probs need no pass of their own."""

from typing import Any


def is_on_policy(config: Any, parameter_sync_step: int = 1) -> bool:
    """mu = 1 of the rank-level method: a batch is used for one update, so the old log-probs are the new ones, detached.

    Not where the rollout's log-probs are the old ones (bypass mode), or weights correct their difference.

    parameter_sync_step: updates between two synchronisations of the rollout's weights.
    """
    actor = config.actor_rollout_ref.actor
    correction = config.algorithm.rollout_correction
    one_update = actor.ppo_epochs == 1 and actor.ppo_mini_batch_size == config.data.train_batch_size
    corrected = correction.rollout_is is not None or correction.bypass_mode
    return config.algorithm.adv_estimator == "rank_grpo" and one_update and not corrected and parameter_sync_step == 1
