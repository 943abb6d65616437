"""Checks before a run with a composed reward."""

from convrec.base.errors import UserError
from convrec.features.rewards.parts import RewardParts
from convrec.settings.rank_grpo import RankGRPOConfig
from convrec.settings.run import Run
from convrec.titles.catalog import Catalog


def check(run: Run[RankGRPOConfig], catalog: Catalog) -> None:
    """Check that the catalog has the columns that the parts need, and that the algorithm trains on the parts.

    Raises:
        UserError: a part cannot be computed, or another setting rules it out.
    """
    settings = run.settings
    if not run.is_rank_level:
        raise UserError(
            "rewards.algorithm",
            "convrec.rewards (REWARDS): GRPO and GSPO train only on DCG@N. Set ALGORITHM=rank_grpo.",
        )
    if settings.reward_combination == "normalised" and not run.normalizes_by_std:
        raise UserError(
            "rewards.combination",
            "convrec.reward_combination=normalised divides each part by its standard deviation, but "
            "algorithm.norm_adv_by_std_in_grpo=false turns that off, so the result would equal sum. Set "
            "convrec.reward_combination=sum.",
        )
    # Raises the errors that the reward would raise in training. The counts of mentions do not matter here.
    RewardParts(settings.rewards or {}, catalog, settings.catalog_file, mentions_M=[0] * len(catalog))
