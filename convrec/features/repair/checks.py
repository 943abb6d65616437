"""Checks before a run with repair."""

from convrec.base.errors import UserError
from convrec.base.shipped import REWARD
from convrec.settings.rank_grpo import RankGRPOConfig
from convrec.settings.run import Run

SETTING = "convrec.repair (REPAIR)"


def check(run: Run[RankGRPOConfig]) -> None:
    """Check that a repaired list is parsed, scored and trained on like a sampled one.

    Raises:
        UserError: another setting rules it out.
    """
    settings = run.settings
    if (settings.repair_ranks or 0) > settings.num_items:
        raise UserError(
            "repair.ranks",
            f"convrec.repair_ranks={settings.repair_ranks}: more than NUM_ITEMS={settings.num_items}. Lower it.",
        )
    if not run.is_rank_level:
        raise UserError(
            "repair.algorithm",
            f"{SETTING}: GRPO and GSPO would credit the whole list for one title. Set ALGORITHM=rank_grpo.",
        )
    if settings.preset != "paper" or settings.matching == "reference":
        raise UserError(
            "repair.preset",
            f"{SETTING}: with PRESET=reference or convrec.matching=reference, a line may get another line's "
            "rank. Set PRESET=paper, and leave convrec.matching at its default.",
        )
    if run.rollout_correction.bypass:
        raise UserError(
            "repair.bypass-mode",
            f"{SETTING}: with algorithm.rollout_correction.bypass_mode, a title that no rollout sampled has no old "
            "log-probs. Set it to false.",
        )
    if run.reward_module != f"pkg://{REWARD}.catalog_match":
        raise UserError(
            "repair.reward-function",
            f"{SETTING}: reward.custom_reward_function does not tell which lines are hits. Set REWARD to a function "
            "instead.",
        )
    if not run.samples_single_turns or run.replays_routing:
        raise UserError(
            "repair.sampler",
            f"{SETTING}: repair needs single_turn_agent, without enable_rollout_routing_replay.",
        )
