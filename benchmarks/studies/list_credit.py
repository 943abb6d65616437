"""Credit by list as a rank reward: `REWARD=benchmarks.studies.list_credit:whole_list`.

GRPO and GSPO refuse `CONSTRAINED=1`, so under the constraint Rank-GRPO stands for them: with this reward every rank has
the list's advantage, as in GRPO. What is left of Rank-GRPO is its loss, in which every rank weighs the same; with one
update per batch its ratios are 1. Two runs that differ in REWARD alone then differ in credit alone.
"""

from collections.abc import Sequence

from convrec.lists.rank_rewards import dcg
from convrec.titles.item import Item


def whole_list(relevance: Sequence[float], items: Sequence[Item | None]) -> list[float]:
    """Return the list's DCG at each rank."""
    return [dcg(relevance, len(relevance))] * len(items)
