"""Training with a rank reward of several parts (docs/explanation/method.md 2)."""

from typing import Any

import torch

from convrec.features.feature import Feature
from convrec.features.rewards import checks
from convrec.features.rewards.maths import part_advantages, part_metrics
from convrec.rank_grpo.credit import Credit, RankBatch
from convrec.settings.rank_grpo import RankGRPOConfig
from convrec.titles.catalog import Catalog


class ComposedRewards(Feature):
    """`convrec.rewards`: weights of the parts; `convrec.reward_combination`: whether to add returns or advantages."""

    @classmethod
    def is_on(cls, settings: RankGRPOConfig) -> bool:
        return bool(settings.rewards)

    def check(self, catalog: Catalog) -> list[str]:
        checks.check(self.run, catalog)
        return []

    def adjust_ranks(self, batch: RankBatch, credit: Credit) -> None:
        """Log each part; with "normalised", replace the advantages by the sum of the parts' advantages."""
        weights = self.settings.rewards or {}
        returns_PBK = stack_part_returns(batch.infos)
        advantages_PBK = part_advantages(returns_PBK, list(weights.values()), batch.groups, self.run.normalizes_by_std)
        if self.settings.reward_combination == "normalised":
            credit.advantages_BK = advantages_PBK.sum(dim=0)
        rows = batch.list_rows
        logged_PBK = stack_part_returns([batch.logged_infos[row] for row in rows])
        groups = [batch.groups[row] for row in rows]
        credit.metrics |= part_metrics(list(weights), logged_PBK, advantages_PBK[:, rows], groups)


def stack_part_returns(infos: list[dict[str, Any]]) -> torch.Tensor:
    """Return the reward function's returns of P parts for B responses, (P, B, K) float32."""
    returns_BPK = torch.tensor([info["part_returns"] for info in infos], dtype=torch.float32)
    return returns_BPK.transpose(0, 1)
