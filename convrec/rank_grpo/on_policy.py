"""Whether a batch is trained on by the very policy that sampled it: decided in training, and by whoever plans one."""

from omegaconf import DictConfig


def is_on_policy(config: DictConfig) -> bool:
    """mu = 1 of the rank-level method: a batch is used for one update, so the old log-probs are the new ones, detached.

    Not where the rollout's log-probs are the old ones (bypass mode), or weights correct their difference.
    """
    actor, correction = config.actor_rollout_ref.actor, config.algorithm.rollout_correction
    one_update = actor.ppo_epochs == 1 and actor.ppo_mini_batch_size == config.data.train_batch_size
    corrected = correction.rollout_is is not None or correction.bypass_mode
    return config.algorithm.adv_estimator == "rank_grpo" and one_update and not corrected
