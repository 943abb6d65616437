import pytest
import torch

from convrec.rank_grpo.step_metrics import compute_rank_metrics, make_rank_buckets


def test_buckets():
    assert make_rank_buckets(20) == [("1", 0, 1), ("2-5", 1, 5), ("6-10", 5, 10), ("11-15", 10, 15), ("16-20", 15, 20)]
    assert make_rank_buckets(2) == [("1", 0, 1), ("2", 1, 2)]
    assert make_rank_buckets(3) == [("1", 0, 1), ("2-3", 1, 3)]
    assert make_rank_buckets(1) == [("1", 0, 1)]
    assert make_rank_buckets(25)[-1] == ("21-25", 20, 25)


@pytest.mark.parametrize("num_ranks", range(1, 31))
def test_buckets_cover_every_rank_once(num_ranks):
    assert [k for _, start, end in make_rank_buckets(num_ranks) for k in range(start, end)] == list(range(num_ranks))


def test_rank_metrics():
    # groups a, b; rank 1 differs in a only, rank 2 in neither, ranks 3-5 in both
    returns = torch.tensor([[1, 0, 1, 1, 1], [1, 0, 1, 1, 1], [0, 0, 0, 0, 0], [1, 0, 0, 0, 0]], dtype=torch.float32)
    got = compute_rank_metrics(returns, ["a", "b", "a", "b"], 5, {"dcg": [1.0, 2.0, 3.0, 4.0]})
    assert got == pytest.approx(
        {
            "rank_grpo/return@1": 0.75,
            "rank_grpo/return@2": 0.0,
            "rank_grpo/return@5": 0.5,
            "rank_grpo/zero_std/all": 3 / 10,
            "rank_grpo/zero_std/1": 0.5,
            "rank_grpo/zero_std/2-5": 2 / 8,  # of 2 groups x 4 ranks, rank 2 of either
            "rank_grpo/zero_std/all_ranks": 0.0,
            "rank_grpo/dcg": 2.5,
        }
    )
    assert compute_rank_metrics(torch.ones(2, 1), [0, 0], 1)["rank_grpo/zero_std/all_ranks"] == 1.0
    # group a is equal at both ranks, b only at the first
    returns = torch.tensor([[1.0, 1.0], [1.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    assert compute_rank_metrics(returns, list("aabb"), 2)["rank_grpo/zero_std/all_ranks"] == 0.5


def test_no_hit_metric_ignores_prompts_that_always_hit():
    returns = torch.tensor([[1.0], [1.0], [0.0], [0.0], [0.0]])  # a: every rollout hits; b: none; c: one of one misses
    hits = {"hits": [1.0, 1.0, 0.0, 0.0, 0.0]}
    got = compute_rank_metrics(returns, list("aabbc"), 1, hits)
    assert got["rank_grpo/zero_std/all_ranks"] == 1.0
    assert got["rank_grpo/no_hit"] == pytest.approx(2 / 3)


def test_a_prompt_with_several_groups_is_hit_once():
    hits = {"hits": [1.0, 1.0, 0.0]}
    got = compute_rank_metrics(torch.zeros(3, 1), ["a, turn 0", "a, turn 0", "a, turn 1"], 1, hits, prompts=list("aaa"))
    assert got["rank_grpo/no_hit"] == 0.0
