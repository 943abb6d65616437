"""Tests of which features a run turns on, and that features do nothing by default."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from convrec.base.errors import UserError
from convrec.features.asking.feature import Asking
from convrec.features.constrained.feature import Constrained
from convrec.features.feature import Feature, RolloutFeature
from convrec.features.registry import FEATURES, active_features
from convrec.features.repair.feature import Repair
from convrec.features.rewards.feature import ComposedRewards
from convrec.rank_grpo.credit import Credit, RankBatch
from recipes.launch.recipe import PAIRWISE_JUDGE, POINTWISE_JUDGE, RANK_GRPO
from recipes.plan import compose_planned_run
from tests.user_errors import refuses

CONTRIBUTING = Path(__file__).parents[3] / "CONTRIBUTING.md"


@pytest.mark.parametrize("recipe", [RANK_GRPO, POINTWISE_JUDGE, PAIRWISE_JUDGE])
def test_the_papers_setting_and_judges_have_no_feature(recipe: object) -> None:
    assert active_features(compose_planned_run(recipe, [])) == []  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("setting", "feature"),
    [
        ("convrec.constrained=true", Constrained),
        ("convrec.ask=[genre]", Asking),
        ("convrec.rewards={relevance: 1}", ComposedRewards),
        ("convrec.repair=zero", Repair),
    ],
)
def test_one_setting_turns_a_feature_on(setting: str, feature: type[Feature]) -> None:
    (active,) = active_features(compose_planned_run(RANK_GRPO, [setting]))
    assert type(active) is feature


def test_asking_precedes_constrained_and_repair_in_registry() -> None:
    assert FEATURES.index(Asking) < FEATURES.index(Constrained) < FEATURES.index(Repair)


@pytest.mark.parametrize("feature", FEATURES)
def test_a_feature_overrides_only_existing_hooks(feature: type[Feature]) -> None:
    """A hook with any other name would never be called."""
    own = {name for name in vars(feature) if not name.startswith("_")}
    assert own - {"check"} <= set(dir(Feature))


def test_hooks_of_a_rollout_do_nothing_unless_overridden() -> None:
    part = RolloutFeature()
    assert part.sampling_params({}) == {}
    assert (part.needs_groups, part.waits_for_prompt) == (False, False)


def test_the_feature_that_contributing_shows_changes_advantages() -> None:
    """Two rollouts of a prompt, with four and two tokens: the longer list loses .5 per rank, the shorter gains it."""
    (code,) = re.findall(r"```python\n(class LengthPenalty.*?)```", CONTRIBUTING.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Any] = {
        "Feature": Feature,
        "RankGRPOConfig": object,
        "Catalog": object,
        "RankBatch": RankBatch,
        "Credit": Credit,
        "UserError": UserError,
        "tokens_above_mean": lambda tokens_B, groups: tokens_B - tokens_B.float().mean(),
    }
    exec(code, names)  # the manual's own text
    run = SimpleNamespace(is_rank_level=False, settings=SimpleNamespace(length_penalty=0.5))
    feature = names["LengthPenalty"](run)
    assert feature.is_on(run.settings)
    with refuses("length-penalty.algorithm", "convrec.length_penalty"):
        feature.check(None)
    batch = RankBatch(
        prompts=["p", "p"],
        is_padding_B=torch.tensor([False, False]),
        extra_fields=[{"reward_extra_info": {"rank_returns": [0.0, 0.0]}}] * 2,
        responses_BT=torch.zeros(2, 4, dtype=torch.long),
        mask_BT=torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]]),
    )
    credit = SimpleNamespace(advantages_BK=torch.zeros(2, 2))
    feature.adjust_ranks(batch, credit)
    assert credit.advantages_BK.tolist() == [[-0.5, -0.5], [0.5, 0.5]]
