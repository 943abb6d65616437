"""What a run with repair needs, before it starts."""

from convrec.base.errors import UserError
from convrec.base.shipped import REWARD
from convrec.settings.rank_grpo import RankGRPOConfig
from convrec.settings.run import Run


def check(run: Run[RankGRPOConfig]) -> None:
    """Check that a repaired list is read, scored and trained as a sampled one is.

    Raises:
        UserError: another setting excludes it.
    """
    settings = run.settings
    key = "convrec.repair (REPAIR)"
    if (settings.repair_ranks or 0) > settings.num_items:
        raise UserError(
            f"convrec.repair_ranks={settings.repair_ranks}: more than NUM_ITEMS={settings.num_items}; lower it"
        )
    if not run.is_rank_level:
        raise UserError(f"{key}: GRPO and GSPO would credit all of a list for one title; take ALGORITHM=rank_grpo")
    if settings.preset != "paper" or settings.matching == "reference":
        raise UserError(f"{key}: by PRESET=reference or its matching a line may have another's rank; take PRESET=paper")
    if run.rollout_correction.bypass:
        raise UserError(f"{key}: bypass_mode has no old log-probs for a title that no rollout sampled; leave it false")
    if run.reward_module != f"pkg://{REWARD}.catalog_match":
        raise UserError(f"{key}: another reward.custom_reward_function does not say what hits; give REWARD a function")
    if not run.samples_single_turns or run.replays_routing:
        raise UserError(f"{key}: only lists of single_turn_agent, without enable_rollout_routing_replay, are changed")
