"""Credit by list as a rank reward: every rank has the advantage that GRPO gives to the whole list."""

from math import log2

import pytest
import torch

from benchmarks.studies.list_credit import whole_list
from convrec.lists import user_rewards
from convrec.rank_grpo.advantages import compute_rank_advantages
from convrec.titles.item import Item

NAME = "benchmarks.studies.list_credit:whole_list"


def test_every_rank_earns_the_dcg_of_the_list() -> None:
    items = [Item("Heat", 1995), None, Item("Up", 2009)]
    assert whole_list([1, 0, 1], items) == pytest.approx([1 + 1 / log2(4)] * 3)  # hits at ranks 1 and 3


def test_it_is_a_custom_reward_that_a_run_accepts() -> None:
    assert user_rewards.is_user_reward(NAME)
    user_rewards.check(NAME, 20)


def test_the_ranks_of_a_list_share_one_advantage() -> None:
    relevance = [[1, 0, 0], [0, 0, 1], [0, 0, 0], [0, 1, 1]]
    returns_BK = torch.tensor([whole_list(of_list, [None] * 3) for of_list in relevance])
    advantages_BK = compute_rank_advantages(returns_BK, ["a"] * 4)
    assert torch.equal(advantages_BK, advantages_BK[:, :1].expand(4, 3))
    assert advantages_BK[:, 0].argsort().tolist() == [2, 1, 0, 3]  # DCG 0, .5, 1, 1.13
