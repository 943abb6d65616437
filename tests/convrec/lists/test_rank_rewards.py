"""Rank rewards by hand, as properties, and compared with recorded values."""

from math import log2

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convrec.lists.rank_rewards import dcg, ideal_dcg, rank_returns

relevances = st.lists(st.integers(0, 1), max_size=24)


def test_exp_inf_is_the_relevance_itself():
    assert rank_returns([0, 1, 0, 1], 4) == [0.0, 1.0, 0.0, 1.0]


def test_log_decay_is_the_dcg_from_each_rank_on():
    # rel at ranks 1 and 3: 1/log2(2) = 1 and 1/log2(4) = 0.5. r_1 = 1.5, r_2 = r_3 = 0.5, r_4 = 0.
    assert rank_returns([1, 0, 1, 0], 4, "log_decay") == [1.5, 0.5, 0.5, 0.0]


def test_exp_gamma_discounts_by_distance():
    # gamma 2, rel at ranks 2 and 4: r_4 = 1, r_3 = 1/2, r_2 = 1 + 1/4 = 1.25, r_1 = 1.25/2 = 0.625.
    assert rank_returns([0, 1, 0, 1], 4, "exp_gamma", gamma=2.0) == [0.625, 1.25, 0.5, 1.0]


def test_missing_ranks_return_zero_and_overflow_is_ignored():
    assert rank_returns([1], 3) == [1.0, 0.0, 0.0]
    assert rank_returns([0, 0, 1], 2, "log_decay") == [0.0, 0.0]


@pytest.mark.parametrize("gamma", [None, 1.0, 0.5])
def test_exp_gamma_refuses_a_gamma_that_does_not_decay(gamma):
    with pytest.raises(ValueError, match=f"exp_gamma needs gamma, a number above 1, not {gamma}"):
        rank_returns([1], 1, "exp_gamma", gamma=gamma)


def test_unknown_shape_names_the_known_ones():
    with pytest.raises(ValueError, match="exp_inf, log_decay, exp_gamma"):
        rank_returns([1], 1, "linear")


@given(relevances, st.integers(1, 24))
def test_returns_equal_their_definition(relevance, n):
    rel = (relevance + [0] * n)[:n]
    log_decay = [sum(rel[j] / log2(j + 2) for j in range(k, n)) for k in range(n)]
    exp_gamma = [sum(rel[j] / 1.7 ** (j - k) for j in range(k, n)) for k in range(n)]
    assert rank_returns(relevance, n) == rel
    assert rank_returns(relevance, n, "log_decay") == pytest.approx(log_decay)
    assert rank_returns(relevance, n, "exp_gamma", gamma=1.7) == pytest.approx(exp_gamma)
    assert rank_returns(relevance, n, "log_decay")[0] == pytest.approx(dcg(relevance, n))
    # exp_inf is the limit of exp_gamma
    assert rank_returns(relevance, n, "exp_gamma", gamma=1e12) == pytest.approx(rel, abs=1e-9)


@given(relevances, st.integers(1, 24))
def test_dcg_is_never_above_the_ideal(relevance, k):
    assert 0 <= dcg(relevance, k) <= ideal_dcg(min(k, sum(relevance))) + 1e-12


def test_recorded_dcg(golden):
    recorded = golden("parse_match_cases")["dcg"]
    for case in recorded["dcg"]:
        assert dcg(case["hits"], case["k"]) == pytest.approx(case["value"])
    ones = [rank_returns([0] * k + [1], 5, "log_decay")[k] for k in range(5)]
    assert ones == pytest.approx(recorded["discounts_5"])
