"""What a run with repair needs, before it starts."""

from omegaconf import DictConfig

from convrec.errors import UserError
from convrec.rank_grpo import NAME
from convrec.shipped import REWARD


def check(config: DictConfig) -> None:
    """Check that a repaired list is read, scored and trained as a sampled one is.

    Raises:
        UserError: another setting excludes it.
    """
    settings = config.convrec
    rollout = config.actor_rollout_ref.rollout
    key = "convrec.repair (REPAIR)"
    if (settings.repair_ranks or 0) > settings.num_items:
        raise UserError(
            f"convrec.repair_ranks={settings.repair_ranks}: more than NUM_ITEMS={settings.num_items}; lower it"
        )
    if config.algorithm.adv_estimator != NAME:
        raise UserError(f"{key}: GRPO and GSPO would credit all of a list for one title; take ALGORITHM=rank_grpo")
    if settings.preset != "paper" or settings.matching == "reference":
        raise UserError(f"{key}: by PRESET=reference or its matching a line may have another's rank; take PRESET=paper")
    if config.algorithm.rollout_correction.bypass_mode:
        raise UserError(f"{key}: bypass_mode has no old log-probs for a title that no rollout sampled; leave it false")
    if config.reward.custom_reward_function.path != f"pkg://{REWARD}.catalog_match":
        raise UserError(f"{key}: another reward.custom_reward_function does not say what hits; give REWARD a function")
    if rollout.agent.default_agent_loop != "single_turn_agent" or rollout.enable_rollout_routing_replay:
        raise UserError(f"{key}: only lists of single_turn_agent, without enable_rollout_routing_replay, are changed")
