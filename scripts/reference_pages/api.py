"""api/: the public names of the library. mkdocstrings fills the pages from docstrings."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import convrec
from convrec import llm


@dataclass(frozen=True)
class APIPage:
    """A page of docs/reference/api.

    Attributes:
        title: heading of the page.
        introduction: what the names are for.
        names: full names, in the order of the page.
    """

    title: str
    introduction: str
    names: tuple[str, ...]


def _exported(*names: str) -> tuple[str, ...]:
    """Return the full names of names that `convrec` exports."""
    return tuple(f"{convrec._MODULES[name]}.{name}" for name in names)


PAGES: Mapping[str, APIPage] = {
    "training": APIPage(
        "Train and evaluate",
        "Import these names from `convrec`. [Python](../../how-to/python.md) has examples,\n"
        "[settings](../settings.md) the keywords of the configuration classes.",
        _exported(
            "train",
            "evaluate",
            "TrainedRun",
            "SFTConfig",
            "RankGRPOConfig",
            "PointwiseJudgeConfig",
            "PairwiseJudgeConfig",
            "UserError",
            "CommandFailed",
        ),
    ),
    "recommender": APIPage(
        "Recommend",
        "Import `Recommender`, `Recommendations` and `RecommendedItem` from `convrec`.\n"
        "[Serving](../../how-to/recommender.md) has examples.",
        (
            *_exported("Recommender", "Recommendations", "RecommendedItem"),
            "convrec.inference.lists.Question",
            "convrec.inference.lists.Filters",
        ),
    ),
    "runs": APIPage(
        "Read a run folder",
        "What a run has written: its metrics, its steps and the settings it was started with.",
        (
            "convrec.runs.folder.read_metrics",
            "convrec.runs.folder.latest_step",
            "convrec.runs.folder.saved_steps",
            "convrec.runs.folder.read_config",
            "convrec.checkpoints.models.resolve_model",
        ),
    ),
    "lists": APIPage(
        "Lists, rewards and metrics",
        "How a response becomes a list, what each rank earns, and how lists are scored.",
        (
            "convrec.lists.ranks.split_lines",
            "convrec.lists.ranks.parse_items",
            "convrec.lists.settings.ListSettings",
            "convrec.lists.settings.make_matcher",
            "convrec.lists.rank_rewards.rank_returns",
            "convrec.lists.rank_rewards.dcg",
            "convrec.lists.rank_rewards.ideal_dcg",
            "convrec.lists.metrics.recall_at_k",
            "convrec.lists.metrics.ndcg_at_k",
            "convrec.lists.metrics.evaluate_row",
            "convrec.lists.metrics.summarise",
            "convrec.lists.metrics.paired",
        ),
    ),
    "titles": APIPage(
        "Catalogs and matching",
        "The items that can be recommended, and how a title that a model wrote is matched with one of them.",
        (
            "convrec.titles.catalog.load_catalog",
            "convrec.titles.catalog.Catalog",
            "convrec.titles.matching.Matcher",
            "convrec.titles.matching.MatchResult",
            "convrec.titles.item.Item",
            "convrec.titles.item.parse_item",
            "convrec.titles.item.format_item",
        ),
    ),
    "rank_grpo": APIPage(
        "Rank-GRPO in tensors",
        "The method without verl. `docs/examples/one_step.py` computes a whole step with these functions.",
        (
            "convrec.lists.token_ranks.build_vocab_table",
            "convrec.lists.token_ranks.token_rank_ids",
            "convrec.lists.token_ranks.stop_token_mask",
            "convrec.rank_grpo.advantages.compute_rank_advantages",
            "convrec.rank_grpo.advantages.assign_units",
            "convrec.rank_grpo.policy_loss.compute_rank_policy_loss",
            "convrec.rank_grpo.policy_loss.RankLossSettings",
            "convrec.rank_grpo.policy_loss.BatchCounts",
            "convrec.rank_grpo.loss_metrics.finish_policy_metrics",
        ),
    ),
    "features": APIPage(
        "Write a feature",
        "The hooks of a part of training that a run can turn on. CONTRIBUTING.md has the steps.",
        (
            "convrec.features.feature.Feature",
            "convrec.features.feature.RolloutFeature",
            "convrec.features.feature.RolloutContext",
            "convrec.rank_grpo.credit.RankBatch",
            "convrec.rank_grpo.credit.Credit",
            "convrec.features.responses.SampledResponse",
        ),
    ),
    "llm": APIPage(
        "Ask an OpenAI-compatible endpoint",
        "Import these names from `convrec.llm`.",
        tuple(f"{getattr(llm, name).__module__}.{name}" for name in llm.__all__ if name != "Messages"),
    ),
}
OPTIONS = """\
    options:
      show_root_full_path: false
      show_bases: false
"""


def api_pages() -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each page."""
    for name, page in PAGES.items():
        entries = "\n".join(f"::: {full_name}\n{OPTIONS}" for full_name in page.names)
        yield f"api/{name}.md", f"# {page.title}\n{page.introduction}\n\n{entries}"
