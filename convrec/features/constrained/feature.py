"""Training with constrained lists (docs/explanation/method.md 9)."""

from convrec.features.constrained import checks
from convrec.features.constrained.rollout import ListConstraint, load_trie
from convrec.features.feature import Feature, RolloutContext
from convrec.lists.settings import make_matcher
from convrec.rank_grpo.credit import Credit, RankBatch
from convrec.settings.rank_grpo import RankGRPOConfig
from convrec.titles.catalog import Catalog, load_catalog


class Constrained(Feature):
    """`convrec.constrained`: sampled lists contain only unseen catalog items, and ratios count only free choices."""

    fields = ("loss_mask",)

    @classmethod
    def is_on(cls, settings: RankGRPOConfig) -> bool:
        return settings.constrained

    def check(self, catalog: Catalog) -> list[str]:
        return checks.check(self.run, catalog)

    def start_rollout(self, worker: RolloutContext) -> ListConstraint:
        trie = load_trie(self.run.verl_config.actor_rollout_ref.rollout)
        assert trie is not None, "checks.use_trie writes it into the config of every constrained run"
        matcher = make_matcher(load_catalog(self.settings.catalog_file), self.settings)
        return ListConstraint(trie, matcher, self.settings.num_items)

    def adjust_tokens(self, batch: RankBatch, credit: Credit) -> None:
        """Drop forced tokens: they are no choice, and would dilute the ratio of their unit."""
        credit.loss_mask_BT = batch.optional_BT["loss_mask"]
        is_forced_BT = credit.loss_mask_BT == 0
        credit.units_BT = credit.units_BT.masked_fill(is_forced_BT, -1)
        credit.advantages_BT = credit.advantages_BT.masked_fill(is_forced_BT, 0.0)
        credit.metrics["rank_grpo/forced"] = 1.0 - (credit.loss_mask_BT.sum() / batch.mask_BT.sum()).item()
