"""What a run with a composed reward needs, before it starts."""

from convrec.base.errors import UserError
from convrec.features.rewards.parts import RewardParts
from convrec.settings.rank_grpo import RankGRPOConfig
from convrec.settings.run import Run
from convrec.titles.catalog import Catalog


def check(run: Run[RankGRPOConfig], catalog: Catalog) -> None:
    """Check that the parts find in the catalog what they need, and that the algorithm trains on them.

    Raises:
        UserError: a part cannot be computed, or another setting excludes it.
    """
    settings = run.settings
    if not run.is_rank_level:
        raise UserError("convrec.rewards (REWARDS): GRPO and GSPO train on DCG@N alone; take ALGORITHM=rank_grpo")
    if settings.reward_combination == "normalised" and not run.normalizes_by_std:
        raise UserError(
            "convrec.reward_combination=normalised divides each part by its standard deviation, which "
            "algorithm.norm_adv_by_std_in_grpo=false takes away, and leaves the same as sum: give "
            "convrec.reward_combination=sum"
        )
    # Raises what the reward would raise in training. Any counts of mentions will do.
    RewardParts(settings.rewards or {}, catalog, settings.catalog_file, mentions_M=[0] * len(catalog))
