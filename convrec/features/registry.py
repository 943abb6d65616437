"""The features that a run can turn on. To add one: its folder, its setting, and its line here."""

from typing import Any

from convrec.features.asking.feature import Asking
from convrec.features.constrained.feature import Constrained
from convrec.features.feature import Feature, RolloutContext, RolloutFeature
from convrec.features.repair.feature import Repair
from convrec.features.rewards.feature import ComposedRewards
from convrec.settings.rank_grpo import RankGRPOConfig
from convrec.settings.run import Run
from convrec.settings.training import TrainingConfig

# In the order in which they apply: each sees the changes of the previous ones. Composed rewards replace the advantages
# of ranks, so features that adjust advantages come later. Questions get their units before the constraint drops forced
# tokens. Repair writes lines that the constraint allows, so it comes last.
FEATURES: tuple[type[Feature], ...] = (ComposedRewards, Asking, Constrained, Repair)


def active_features(run: Run[TrainingConfig]) -> list[Feature]:
    """Return the features that a run turns on; none for judges, which write no lists."""
    settings = run.settings
    if not isinstance(settings, RankGRPOConfig):
        return []
    run_of_lists = Run(settings, run.verl_config)
    return [feature(run_of_lists) for feature in FEATURES if feature.is_on(settings)]


def start_rollout_features(run: Run[TrainingConfig], tokenizer: Any) -> list[RolloutFeature]:
    """Start the parts of a run's features that a rollout worker calls, in order."""
    context = RolloutContext(tokenizer, {})
    for feature in active_features(run):
        context.features[type(feature)] = feature.start_rollout(context)
    return list(context.features.values())
