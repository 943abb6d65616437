"""The charts of each recipe's report, in the order in which they are drawn."""

from collections.abc import Mapping
from dataclasses import dataclass

# The least span of an axis, by unit; changes far below it mean nothing.
SPAN_OF_SHARES = 0.05  # for shares near 1
SPAN_OF_METRICS = 0.02  # NDCG and Recall
SPAN_OF_LENGTHS = 1.0  # items

OVER_VALIDATION = "over the validation conversations"
BOOTSTRAP = "bootstrap over conversations"
JACKKNIFE = "jackknife over conversations"


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One chart.

    Attributes:
        metric: a logged name, or `evaluated/...`, a column of the sweep.
        title: the heading; {k} and {split} stand for those of the sweep.
        y_label: the label of the value axis; a unit if the metric has one.
        smooth: whether the metric is noisy and therefore drawn as a mean over neighbouring steps.
        span: the least range of the axis, so that a negligible change does not look large.
        error: what the metric's standard error is taken over; "" for a metric without one.
    """

    metric: str
    title: str
    y_label: str
    smooth: bool = False
    span: float = 0.0
    error: str = ""


def _make_return_panel(rank: int) -> Panel:
    return Panel(
        metric=f"rank_grpo/return@{rank}",
        title=f"Return at rank {rank}",
        y_label="mean return",
        smooth=True,
    )


REPORTED_RANKS = (1, 2, 5, 10, 15, 20)

SWEEP_PANELS = (
    Panel(
        metric="evaluated/ndcg",
        title="NDCG@{k} on {split}, by checkpoint",
        y_label="NDCG",
        span=SPAN_OF_METRICS,
        error=BOOTSTRAP,
    ),
    Panel(
        metric="evaluated/recall",
        title="Recall@{k} on {split}, by checkpoint",
        y_label="Recall",
        span=SPAN_OF_METRICS,
        error=BOOTSTRAP,
    ),
    Panel(
        metric="evaluated/coverage",
        title="Catalog coverage on {split}, by checkpoint",
        y_label="share of the catalog",
        error=JACKKNIFE,
    ),
    Panel(
        metric="evaluated/popularity_lift",
        title="Popularity lift on {split}, by checkpoint",
        y_label="lift",
        span=SPAN_OF_SHARES,
        error=JACKKNIFE,
    ),
    Panel(
        metric="evaluated/in catalog",
        title="In catalog on {split}, by checkpoint",
        y_label="share of items",
        span=SPAN_OF_SHARES,
    ),
)

SFT_PANELS = (
    Panel(
        metric="train/loss",
        title="Training loss",
        y_label="nats per token",
        smooth=True,
    ),
    Panel(
        metric="val/loss",
        title="Validation loss",
        y_label="nats per token",
        error=OVER_VALIDATION,
    ),
    *SWEEP_PANELS,
)

RANK_GRPO_PANELS = (
    *(_make_return_panel(rank) for rank in REPORTED_RANKS),
    Panel(
        metric="rank_grpo/zero_std/all_ranks",
        title="Prompts without signal, samples",
        y_label="share",
        smooth=True,
    ),
    Panel(
        metric="rank_grpo/zero_std/all",
        title="Ranks of prompts without signal, samples",
        y_label="share",
        smooth=True,
        span=SPAN_OF_SHARES,
    ),
    Panel(
        metric="val/ndcg",
        title="Validation NDCG in training (strict)",
        y_label="NDCG",
        span=SPAN_OF_METRICS,
        error=OVER_VALIDATION,
    ),
    Panel(
        metric="rank_grpo/catalog_hit_ratio",
        title="In catalog, samples",
        y_label="share of items",
        smooth=True,
        span=SPAN_OF_SHARES,
    ),
    Panel(
        metric="actor/kl",
        title="KL to the initial model",
        y_label="nats per token",
        smooth=True,
    ),
    Panel(
        metric="rank_grpo/questions",
        title="Questions per rollout, samples",
        y_label="questions",
        smooth=True,
    ),
    Panel(
        metric="rank_grpo/num_items",
        title="List length, samples",
        y_label="items",
        smooth=True,
        span=SPAN_OF_LENGTHS,
    ),
    *SWEEP_PANELS,
    Panel(
        metric="evaluated/items per list",
        title="List length on {split}, by checkpoint",
        y_label="items",
        span=SPAN_OF_LENGTHS,
    ),
)

JUDGE_PANELS = (
    Panel(
        metric="reward/score",
        title="Reward, samples",
        y_label="mean reward",
        smooth=True,
    ),
    Panel(
        metric="val/score",
        title="Validation reward in training",
        y_label="mean reward",
        error=OVER_VALIDATION,
    ),
    Panel(
        metric="reward/no_verdict",
        title="Answers without a verdict, samples",
        y_label="share",
        smooth=True,
    ),
    Panel(
        metric="reward/zero_std",
        title="Prompts whose rollouts all earn the same reward",
        y_label="share",
        smooth=True,
    ),
    Panel(
        metric="response_length/mean",
        title="Answer length, samples",
        y_label="tokens",
        smooth=True,
    ),
)

POINTWISE_JUDGE_PANELS = (
    *JUDGE_PANELS,
    Panel(
        metric="reward/exact_match",
        title="Exact match, samples",
        y_label="share",
        smooth=True,
    ),
)

PAIRWISE_JUDGE_PANELS = (
    *JUDGE_PANELS,
    Panel(
        metric="reward/prefers_a",
        title="Prefers A, samples",
        y_label="share",
        smooth=True,
    ),
)

# Recipe, as named by a run's config -> its panels.
PANELS: Mapping[str, tuple[Panel, ...]] = {
    "sft": SFT_PANELS,
    "rank_grpo": RANK_GRPO_PANELS,
    "judge_pointwise": POINTWISE_JUDGE_PANELS,
    "judge_pairwise": PAIRWISE_JUDGE_PANELS,
}
