"""The likelihood by hand, and a fit whose optimum is known."""

import math

import numpy as np
import pytest
import torch

from data_prep.stages.adjust import fit, log_likelihood, pad, penalty_of

# one batch: each epoch is a step, and the optimum is reached exactly
SETTINGS = {"learning_rate": 0.1, "batch_size": 1000, "max_epochs": 150, "patience": 20, "seed": 1}


def test_likelihood_and_penalty_by_hand():
    # Items 0, 1, 2; the first conversation has candidates 2 and 0, the second 0, 1, 2 with two ground truths.
    data = pad([[2, 0], [0, 1, 2]], [[1.0, 2.0], [1.0, 0.0, 3.0]], [{0}, {0, 2}])
    w, b = torch.tensor([1.0, 1.0, 0.5]), torch.tensor([0.0, 1.0, -0.5])
    # first: item 2: .5 * 1 - .5 = 0; item 0: 2. log p(0) = 2 - log(e^0 + e^2)
    # second: item 0: 1; item 1: 0 + 1 = 1; item 2: 1.5 - .5 = 1: each has p = 1/3, twice log(1/3)
    expected = 2 - math.log(1 + math.exp(2)) + 2 * math.log(1 / 3)
    assert log_likelihood(data, w, b).item() == pytest.approx(expected, rel=1e-6)
    # .01 * ((.5 - 1)^2 + 1^2 + .5^2) = .01 * (.25 + 1 + .25)
    assert penalty_of(w, b, 0.01).item() == pytest.approx(0.015)


def flips(count: int, share: float):
    """Two items with equal scores of 0; item 0 is the ground truth in that share of the conversations."""
    truths = [{0} if n < share * count else {1} for n in range(count)]
    return pad([[0, 1]] * count, [[0.0, 0.0]] * count, truths)


def test_the_fit_finds_the_shares_and_leaves_what_says_nothing():
    # With scores of 0 only b matters and p(0) = 1 / (1 + e^(b1 - b0)): .8 at b0 - b1 = log 4. The penalty is symmetric.
    data = flips(500, 0.8)
    found = fit(data, data, 3, penalty=1e-6, **SETTINGS)
    assert (found.b_M[0] - found.b_M[1]).item() == pytest.approx(math.log(4), abs=0.02)
    assert found.b_M[0].item() == pytest.approx(-found.b_M[1].item(), abs=0.02)
    np.testing.assert_allclose(found.w_M, [1, 1, 1], atol=1e-6)
    assert found.b_M[2].item() == 0  # no candidate anywhere
    # the likelihood a ground truth there: .8 log .8 + .2 log .2
    assert max(found.history) == pytest.approx(0.8 * math.log(0.8) + 0.2 * math.log(0.2), abs=1e-4)


def test_the_penalty_pulls_to_the_optimum_of_the_whole_objective():
    data = flips(100, 0.8)
    found = fit(data, pad([], [], []), 2, penalty=5.0, **SETTINGS)
    # d/db0: 80 - 100 p - 2 * 5 * b0 = 0 with b1 = -b0: p = 1 / (1 + exp(-2 b0))
    b0 = found.b_M[0].item()
    assert 80 - 100 / (1 + math.exp(-2 * b0)) - 10 * b0 == pytest.approx(0, abs=0.1)
    assert found.best_epoch == SETTINGS["max_epochs"]  # nothing held out: all epochs


def test_it_stops_early_and_keeps_the_best_at_worst_the_start():
    # the held-out conversations say the opposite of the others: every step makes them less likely
    found = fit(flips(200, 0.9), flips(50, 0.1), 2, penalty=0.01, **SETTINGS)
    assert found.best_epoch == 0
    assert len(found.history) == 1 + SETTINGS["patience"]
    assert found.w_M.tolist() == [1.0, 1.0]
    assert found.b_M.tolist() == [0.0, 0.0]


def test_no_epochs_is_no_change():
    found = fit(flips(10, 0.5), flips(4, 0.5), 2, penalty=0.01, **(SETTINGS | {"max_epochs": 0}))
    assert (found.w_M.tolist(), found.b_M.tolist(), found.best_epoch) == ([1.0, 1.0], [0.0, 0.0], 0)


def test_padding_and_order_of_conversations_do_not_count():
    w, b = torch.tensor([0.9, 1.1, 1.0]), torch.tensor([0.1, -0.2, 0.3])
    one, two = ([0, 1], [1.0, 2.0], {1}), ([2, 1, 0], [0.5, 0.1, 0.3], {2})
    both = log_likelihood(pad(*zip(one, two, strict=True)), w, b)
    alone = sum(log_likelihood(pad([c[0]], [c[1]], [c[2]]), w, b) for c in (two, one))
    assert both.item() == pytest.approx(alone.item(), rel=1e-6)
