import pytest
import torch

from convrec.rank_grpo.advantages import part_advantages
from convrec.rank_grpo.step_metrics import part_metrics, rank_buckets, rank_metrics


def test_buckets():
    assert rank_buckets(20) == [("1", 0, 1), ("2-5", 1, 5), ("6-10", 5, 10), ("11-15", 10, 15), ("16-20", 15, 20)]
    assert rank_buckets(2) == [("1", 0, 1), ("2", 1, 2)]
    assert rank_buckets(1) == [("1", 0, 1)]
    assert rank_buckets(25)[-1] == ("21-25", 20, 25)


@pytest.mark.parametrize("num_ranks", range(1, 31))
def test_buckets_cover_every_rank_once(num_ranks):
    assert [k for _, start, end in rank_buckets(num_ranks) for k in range(start, end)] == list(range(num_ranks))


def test_rank_metrics():
    # groups a, b; rank 1 differs in a only, rank 2 in neither, ranks 3-5 in both
    returns = torch.tensor([[1, 0, 1, 1, 1], [1, 0, 1, 1, 1], [0, 0, 0, 0, 0], [1, 0, 0, 0, 0]], dtype=torch.float32)
    got = rank_metrics(returns, ["a", "b", "a", "b"], 5, {"dcg": [1.0, 2.0, 3.0, 4.0]})
    assert got == pytest.approx(
        {
            "rank_grpo/return@1": 0.75,
            "rank_grpo/return@2": 0.0,
            "rank_grpo/return@5": 0.5,
            "rank_grpo/zero_std/1": 0.5,
            "rank_grpo/zero_std/2-5": 2 / 8,  # of 2 groups x 4 ranks, rank 2 of either
            "rank_grpo/zero_std/all_ranks": 0.0,
            "rank_grpo/dcg": 2.5,
        }
    )
    assert rank_metrics(torch.ones(2, 1), [0, 0], 1)["rank_grpo/zero_std/all_ranks"] == 1.0


def test_part_metrics():
    # two groups of two, one rank: relevance differs in the first group, the rare part in the second
    returns_PBK = torch.tensor([[[1.0], [0.0], [0.0], [0.0]], [[0.0], [0.0], [0.02], [0.0]]])
    advantages_PBK = part_advantages(returns_PBK, [1.0, 0.5], [0, 0, 1, 1], norm_by_std=False)
    assert part_metrics(["relevance", "rare"], returns_PBK, advantages_PBK, [0, 0, 1, 1]) == pytest.approx(
        {
            "rank_grpo/part/relevance/return": 0.25,
            "rank_grpo/part/relevance/signal": 0.5,
            "rank_grpo/part/relevance/advantage": 0.25,  # +-.5 of two, 0 of two
            "rank_grpo/part/rare/return": 0.005,
            "rank_grpo/part/rare/signal": 0.5,
            "rank_grpo/part/rare/advantage": 0.0025,  # 0.5 x +-.01 of two
        }
    )
