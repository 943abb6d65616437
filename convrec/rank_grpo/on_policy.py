"""Decide whether old log-probs need a separate forward pass."""

from typing import Any


def is_on_policy(config: Any, parameter_sync_step: int = 1) -> bool:
    """Return whether the old log-probs are the new ones, detached: Rank-GRPO with one update per batch (mu = 1).

    False in bypass mode, which takes the rollout's log-probs as old ones, and with rollout correction weights, which
    need both.

    Args:
        config: the run's config.
        parameter_sync_step: updates between two synchronisations of the rollout's weights.
    """
    actor = config.actor_rollout_ref.actor
    correction = config.algorithm.rollout_correction
    has_one_update = actor.ppo_epochs == 1 and actor.ppo_mini_batch_size == config.data.train_batch_size
    is_corrected = correction.rollout_is is not None or correction.bypass_mode
    is_rank_grpo = config.algorithm.adv_estimator == "rank_grpo"
    return is_rank_grpo and has_one_update and not is_corrected and parameter_sync_step == 1
