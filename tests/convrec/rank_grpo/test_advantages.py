"""Rank-relative advantages, and the units to which they are assigned."""

from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from convrec.rank_grpo.advantages import assign_units, compute_rank_advantages, find_zero_std_ranks
from tests.user_errors import refuses

F64 = torch.float64


def test_golden_with_its_arithmetic():
    # rank 1 of group a: returns 1, 0, 0 -> mean 1/3, unbiased variance (4/9 + 1/9 + 1/9) / 2 = 1/3, std 0.5773502692
    #   (1 - 1/3) / (0.5773502692 + 1e-4) = 1.1545005730;   (0 - 1/3) / (0.5773502692 + 1e-4) = -0.5772502865
    # rank 2 of group a: all 1 -> 0.  Group b: one sample -> 0.
    returns = torch.tensor([[1, 1], [7, 3], [0, 1], [0, 1]], dtype=F64)
    expected = torch.tensor([[1.1545005730, 0], [0, 0], [-0.5772502865, 0], [-0.5772502865, 0]], dtype=F64)
    torch.testing.assert_close(compute_rank_advantages(returns, ["a", "b", "a", "a"]), expected, rtol=0, atol=1e-9)


def test_equal_returns_give_exactly_zero_despite_rounding():
    # the mean of seven float32 0.1 is not 0.1: without care that becomes an advantage of 1e-5
    for dtype, value in product((torch.float32, F64), (0.1, -0.1)):
        returns = torch.full((7, 3), value, dtype=dtype)
        assert compute_rank_advantages(returns, [0] * 7).eq(0).all()
        assert find_zero_std_ranks(returns, [0] * 7).all()


def test_dtype_is_kept_and_sizes_are_checked():
    assert compute_rank_advantages(torch.zeros(2, 2), [0, 0]).dtype == torch.float32
    assert compute_rank_advantages(torch.zeros(2, 2, dtype=F64), [0, 0]).dtype == F64
    with pytest.raises(ValueError, match="3 uids"):
        compute_rank_advantages(torch.zeros(2, 2), [0, 0, 1])


@settings(max_examples=40, deadline=None)
@given(
    uid=st.lists(st.sampled_from("abc"), min_size=1, max_size=12),
    seed=st.integers(0, 999),
    norm_by_std=st.booleans(),
)
def test_advantages_sum_to_zero_per_group_and_rank_in_any_order(uid, seed, norm_by_std):
    generator = torch.Generator().manual_seed(seed)
    returns = torch.rand(len(uid), 4, generator=generator, dtype=F64) * (
        torch.rand(len(uid), 4, generator=generator) < 0.5
    )
    advantages = compute_rank_advantages(returns, uid, norm_by_std)
    for label in set(uid):
        rows = [i for i, u in enumerate(uid) if u == label]
        assert advantages[rows].sum(0).abs().max() < 1e-9
        alone = compute_rank_advantages(returns[rows], [label] * len(rows), norm_by_std)
        torch.testing.assert_close(advantages[rows], alone)  # other groups have no say
        if len(rows) > 1:
            scale = returns[rows].std(0) + 1e-4 if norm_by_std else 1
            expected = (returns[rows] - returns[rows].mean(0)) / scale
            torch.testing.assert_close(alone, expected, atol=1e-9, rtol=1e-7)
        if len(rows) == 1:
            assert alone.eq(0).all()


# N = 2, advantages of rank 1 and 2 of every row: 0.5 and -0.7
ADVANTAGES = [0.5, -0.7]
# rank ids with the stop token's position -> paper's (units, advantages)
PAPER = {
    "exact": ([0, 0, 1, 1], 3, [0, 0, 1, 1], [0.5, 0.5, -0.7, -0.7]),
    "short": ([0, 0, 0, -1], 2, [0, 0, 2, -1], [0.5, 0.5, -0.1, 0]),
    "empty": ([-1, -1, -1, -1], 1, [-1, 2, -1, -1], [0, -0.1, 0, 0]),
    "overflow": ([0, 1, 2, 3, 3], 4, [0, 1, 3, 4, 4], [0.5, -0.7, -0.1, -0.1, -0.1]),
    "truncated": ([0, 0, 0, 0], None, [0, 0, 0, 0], [0.5] * 4),
    "truncated overflow": ([0, 1, 2, 2], None, [0, 1, 3, 3], [0.5, -0.7, -0.1, -0.1]),
    "leading blank": ([-1, 0, 1, 1], 3, [-1, 0, 1, 1], [0, 0.5, -0.7, -0.7]),
    "runaway": ([0, 1, 2, 3, 4, 5, 5], 6, [0, 1, 3, 4, -1, -1, -1], [0.5, -0.7, -0.1, -0.1, 0, 0, 0]),
}
# reference: the stop token keeps its rank's unit, overflow is one unit (N + 1)
REFERENCE = {
    "exact": ([0, 0, 1, 1], 3, [0, 0, 1, 1], [0.5, 0.5, -0.7, 0.1]),
    "short": ([0, 0, 0, -1], 2, [0, 0, 0, -1], [0.5, 0.5, -0.1, 0]),
    "overflow": ([0, 1, 2, 3, 3], 4, [0, 1, 3, 3, 3], [0.5, -0.7, -0.1, -0.1, -0.1]),
    "truncated": ([0, 0, 0, 0], None, [0, 0, 0, 0], [0.5] * 4),
    "trailing newline": ([0, 0, 1, -1], 2, [0, 0, 1, -1], [0.5, 0.5, 0.1, 0]),
}


def units_of(ranks, stop, preset, **options):
    ranks_T = torch.tensor([ranks])
    stop_T = torch.zeros_like(ranks_T, dtype=torch.bool)
    if stop is not None:
        stop_T[0, stop] = True
    units, advantages = assign_units(ranks_T, torch.tensor([ADVANTAGES], dtype=F64), stop_T, 2, preset, **options)
    return units[0].tolist(), advantages[0].tolist()


@pytest.mark.parametrize(
    ("preset", "ranks", "stop", "units", "advantages"),
    [("paper", *case) for case in PAPER.values()] + [("reference", *case) for case in REFERENCE.values()],
    ids=[*(f"paper, {name}" for name in PAPER), *(f"reference, {name}" for name in REFERENCE)],
)
def test_units(preset, ranks, stop, units, advantages):
    assert units_of(ranks, stop, preset) == (units, advantages)


@pytest.mark.parametrize("preset", ["paper", "reference"])
def test_mask_truncated_drops_only_rows_without_a_stop_token(preset):
    assert units_of([0, 0, 1], None, preset, mask_truncated=True) == ([-1, -1, -1], [0, 0, 0])
    assert units_of([0, 1, 1], 2, preset, mask_truncated=True) == units_of([0, 1, 1], 2, preset)


def test_penalties_are_arguments():
    _, advantages = units_of([0, 0], 1, "paper", underflow_penalty=-3.0)
    assert advantages == [0.5, -3.0]
    _, advantages = units_of([0, 1, 2], 2, "paper", overflow_penalty=-2.0)
    assert advantages == [0.5, -0.7, -2.0]
    _, advantages = units_of([0, 1], 1, "reference", end_of_list_reward=4.0)
    assert advantages == [0.5, 4.0]


def test_unknown_preset_is_refused():
    with refuses("method.unknown-preset", "papper"):
        units_of([0], None, "papper")
