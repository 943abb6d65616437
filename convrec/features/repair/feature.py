"""Training with repair: a prompt that no rollout hits gets a relevant title (docs/explanation/method.md 3, Repair)."""

from typing import Any

from convrec.features.constrained.feature import Constrained
from convrec.features.constrained.rollout import ListConstraint
from convrec.features.feature import Feature, RolloutContext
from convrec.features.repair import checks
from convrec.features.repair.maths import ListRepair
from convrec.features.repair.rollout import REPAIRED, PromptRepair
from convrec.lists.settings import make_matcher
from convrec.rank_grpo.credit import SAMPLED_TOKENS, Credit, RankBatch, is_sampled
from convrec.settings.rank_grpo import RankGRPOConfig
from convrec.titles.catalog import Catalog, load_catalog
from convrec.titles.matching import Matcher

ALL_TOKEN_METRICS = ("training/rollout_probs_diff_", "training/rollout_actor_probs_")


class Repair(Feature):
    """`convrec.repair`: the run trains on repaired lists, and logs them as the policy wrote them."""

    fields = ("rollout_log_probs",)

    @classmethod
    def is_on(cls, settings: RankGRPOConfig) -> bool:
        return settings.repair != "none"

    def check(self, catalog: Catalog) -> list[str]:
        checks.check(self.run)
        return []

    def start_rollout(self, worker: RolloutContext) -> PromptRepair:
        settings = self.settings
        constraint = worker.features.get(Constrained)
        if isinstance(constraint, ListConstraint):
            matcher: Matcher = constraint.matcher
            find_row: Any = constraint.find_row
        else:
            matcher = make_matcher(load_catalog(settings.catalog_file), settings)
            find_row = _return_item
        repair = ListRepair(
            tokenizer=worker.tokenizer,
            matcher=matcher,
            lists=settings,
            ranks=settings.repair_ranks or settings.num_items,
            most_tokens=self.run.response_length,
            find_row=find_row,
        )
        return PromptRepair(repair, seed=settings.seed)

    def prepare(self, batch: RankBatch) -> None:
        """Log repaired lists as the policy wrote them."""
        for row, extra in enumerate(batch.extra_fields):
            if REPAIRED in extra:
                batch.logged_infos[row] = extra[REPAIRED]

    def log_credit(self, batch: RankBatch, credit: Credit) -> None:
        """Log the share of repaired prompts, and the share of loss tokens that the policy sampled."""
        rows = batch.list_rows
        num_groups = len({batch.groups[row] for row in rows})
        repaired = sum(REPAIRED in batch.extra_fields[row] for row in rows)
        credit.metrics["rank_grpo/repaired"] = repaired / num_groups
        is_sampled_BT = is_sampled(batch.optional_BT["rollout_log_probs"])
        num_tokens = credit.loss_mask_BT.sum().clamp(min=1)
        credit.metrics[SAMPLED_TOKENS] = ((credit.loss_mask_BT * is_sampled_BT).sum() / num_tokens).item()

    def finish_metrics(self, metrics: dict[str, Any]) -> None:
        """Make the policy's metrics count only sampled tokens."""
        # verl compares rollout and actor over all tokens, including those that no rollout sampled
        for name in [name for name in metrics if name.startswith(ALL_TOKEN_METRICS)]:
            del metrics[name]
        # our sum over sampled tokens was divided by the number of all tokens
        if "actor/entropy" in metrics:
            metrics["actor/entropy"] /= metrics.get(SAMPLED_TOKENS, 1.0)


def _return_item(item: int) -> int | None:
    """Return the item: an unconstrained list may write every item, by its first catalog row."""
    return item
