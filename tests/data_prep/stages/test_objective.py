"""Eq. 13 by hand, against a slow implementation with autograd, and with a known maximum."""

import math

import numpy as np
import pytest
import torch
from scipy import sparse
from scipy.optimize import minimize

from data_prep.stages import remap
from data_prep.stages.objective import Part, compute_sums, maximise


def make_part(scores, truths, seen=None):
    """Make a Part without vectors, so that all scores are addends; NaN if an item has no score."""
    rows, columns = np.nonzero(~np.isnan(scores))
    added = sparse.csr_matrix((np.array(scores)[rows, columns], (rows, columns)), np.shape(scores), np.float32)
    return Part(np.zeros((len(scores), 0), np.float32), np.zeros(len(scores), int), added,
                matrix(seen or [()] * len(scores), np.shape(scores)), matrix(truths, np.shape(scores)))  # fmt: skip


def matrix(lists, shape):
    rows = [b for b, items in enumerate(lists) for _ in items]
    return sparse.csr_matrix((np.ones(len(rows)), (rows, [m for items in lists for m in items])), shape, np.float32)


def no_vectors(num_items):
    return np.zeros((1, num_items, 0), np.float32)


def maximum(part, num_items, penalty, most=100):
    return maximise(
        lambda w, b, powers: compute_sums(part, no_vectors(num_items), *to_floats(w, b), powers),
        num_items,
        penalty,
        most,
    )


def to_floats(*arrays):
    return tuple(np.asarray(array, np.float32) for array in arrays)


def test_the_objective_by_hand():
    # Items 0, 1, 2; the first conversation has no score of item 1, the second two ground truths, the third none.
    part = make_part([[2.0, np.nan, 1.0], [1.0, 0.0, 3.0], [1.0, 1.0, 1.0]], [[0], [0, 2], []])
    found = compute_sums(part, no_vectors(3), *to_floats([1.0, 1.0, 0.5], [0.0, 1.0, -0.5]))
    # first: item 2: .5 * 1 - .5 = 0; item 0: 2. log p(0) = 2 - log(e^0 + e^2)
    # second: item 0: 1; item 1: 0 + 1 = 1; item 2: 1.5 - .5 = 1: each has p = 1/3, twice log(1/3)
    assert found.log_likelihood == pytest.approx(2 - math.log(1 + math.exp(2)) + 2 * math.log(1 / 3), rel=1e-6)
    # by b: ground truths minus p; first p(2) = 1 / (1 + e^2), second 2 * 1/3 each
    p = 1 / (1 + math.exp(2))
    np.testing.assert_allclose((found.truth_PM - found.model_PM)[0], [p + 1 / 3, -2 / 3, 1 / 3 - p], atol=1e-6)
    # by w: the same times the score of each conversation
    np.testing.assert_allclose((found.truth_PM - found.model_PM)[1], [2 * p + 1 / 3, 0, 3 * (1 / 3) - p], atol=1e-6)


def random_part(rng, rows=40, items=30, dimensions=5, spaces=3):
    """Make a Part with vectors, and its dense scores, allowed items and ground truths."""
    vectors = rng.normal(size=(spaces, items, dimensions)).astype(np.float32)
    queries, of_row = rng.normal(size=(rows, dimensions)).astype(np.float32), rng.integers(0, spaces, rows)
    added = sparse.random(rows, items, 0.2, "csr", np.float32, rng)
    seen = (rng.random((rows, items)) < 0.1).astype(np.float32)
    truth = ((rng.random((rows, items)) < 0.05) & (seen == 0)).astype(np.float32)
    scores = np.einsum("bd,bmd->bm", queries, vectors[of_row]) + added.toarray()
    part = Part(queries, of_row, added, sparse.csr_matrix(seen), sparse.csr_matrix(truth))
    return part, vectors, scores, seen == 0, truth


def slow_objective(scores, is_allowed, truth, w, b, penalty):
    final = (w * torch.tensor(scores, dtype=torch.float64) + b).masked_fill(~torch.tensor(is_allowed), -torch.inf)
    log_p = torch.log_softmax(final, 1)
    return log_p[torch.tensor(truth) > 0].sum() - penalty * ((w - 1).square().sum() + b.square().sum())


def test_value_and_gradient_are_those_of_the_slow_form(monkeypatch):
    rng = np.random.default_rng(1)
    part, vectors, scores, is_allowed, truth = random_part(rng)
    is_allowed[:, 7] = False  # an item that can be in no list
    truth[:, 7] = 0
    part = part._replace(truth_BM=sparse.csr_matrix(truth))
    w, b = (torch.tensor(v, requires_grad=True) for v in (rng.normal(1, 0.5, 30), rng.normal(0, 1, 30)))
    expected = slow_objective(scores, is_allowed, truth, w, b, 0.0)
    expected.backward()
    closed_b = np.where(np.arange(30) == 7, -np.inf, b.detach().numpy())
    for block_scores in (2**22, 70, 1):  # everything at once, two rows, one row
        monkeypatch.setattr(remap, "BLOCK_SCORES", block_scores)
        found = compute_sums(part, vectors, *to_floats(w.detach(), closed_b))
        assert found.log_likelihood == pytest.approx(expected.item(), rel=1e-5)
        gradient = found.truth_PM - found.model_PM
        np.testing.assert_allclose(gradient[0], b.grad, atol=1e-4)
        np.testing.assert_allclose(gradient[1], w.grad, atol=1e-3)


def test_the_fit_is_the_maximum_of_the_slow_form():
    part, vectors, scores, is_allowed, truth = random_part(np.random.default_rng(2))
    found = maximise(lambda w, b, powers: compute_sums(part, vectors, *to_floats(w, b), powers), 30, 0.5, 100)
    w, b = (torch.tensor(v, requires_grad=True) for v in (found.w_M, found.b_M))
    best = slow_objective(scores, is_allowed, truth, w, b, 0.5)
    best.backward()
    start = slow_objective(scores, is_allowed, truth, torch.ones(30), torch.zeros(30), 0.5).item()
    # strictly concave with curvature of 2 * .5 at least: no higher than |gradient|^2 / 2 above
    assert (w.grad.square().sum() + b.grad.square().sum()).item() / 2 < 1e-3 * (best.item() - start)
    assert found.history[0] == pytest.approx(
        slow_objective(scores, is_allowed, truth, torch.ones(30), torch.zeros(30), 0)
    )


def slow_maximum(scores, is_allowed, truth, penalty):
    """Maximise the slow implementation with another optimiser, without scaling; return w, b and F."""

    def loss(x):
        x = torch.tensor(x, requires_grad=True)
        value = -slow_objective(scores, is_allowed, truth, *x.chunk(2), penalty)
        value.backward()
        return value.item(), x.grad.numpy()

    start = np.repeat([1.0, 0.0], scores.shape[1])
    result = minimize(loss, start, jac=True, method="BFGS", options={"gtol": 1e-6, "maxiter": 10_000})
    return *np.split(result.x, 2), -result.fun


@pytest.mark.parametrize("seed", range(3))
def test_another_optimiser_finds_the_same_at_the_papers_penalty(seed):
    part, vectors, scores, is_allowed, truth = random_part(np.random.default_rng(seed), rows=200)
    w, b, best = slow_maximum(scores, is_allowed, truth, 0.01)
    found = maximise(lambda w, b, powers: compute_sums(part, vectors, w, b, powers), 30, 0.01, 500)
    assert not found.stopped
    value = slow_objective(scores, is_allowed, truth, torch.tensor(found.w_M), torch.tensor(found.b_M), 0.01)
    assert best - value == pytest.approx(0, abs=1e-5)
    np.testing.assert_allclose(found.w_M, w, atol=1e-2)
    np.testing.assert_allclose(found.b_M, b, atol=1e-2)
    differs = np.argsort(-(found.w_M * scores + found.b_M)) != np.argsort(-(w * scores + b))
    assert differs.any(axis=1).mean() <= 0.02  # lists with two items that are all but equal


def test_a_fit_that_is_cut_off_says_why():
    part, vectors, *_ = random_part(np.random.default_rng(1))
    found = maximise(lambda w, b, powers: compute_sums(part, vectors, w, b, powers), 30, 0.01, 5)
    assert "LIMIT" in found.stopped


def flips(count, share):
    """Two items with score 0; item 0 is the ground truth in this share of the conversations. Item 2 has no score."""
    return make_part([[0.0, 0.0, np.nan]] * count, [[0] if n < share * count else [1] for n in range(count)])


def test_the_fit_finds_the_shares_and_leaves_other_items():
    # With scores of 0 only b matters and p(0) = 1 / (1 + e^(b1 - b0)): .8 at b0 - b1 = log 4.
    found = maximum(flips(500, 0.8), 3, penalty=1e-4)
    assert found.b_M[0] - found.b_M[1] == pytest.approx(math.log(4), abs=0.02)
    assert found.w_M.tolist() == [1, 1, 1]
    assert found.b_M[2] == 0  # in no conversation
    # the likelihood of a ground truth there: .8 log .8 + .2 log .2
    assert found.history[-1] / 500 == pytest.approx(0.8 * math.log(0.8) + 0.2 * math.log(0.2), abs=1e-4)


def test_the_penalty_pulls_to_the_maximum_of_the_whole_objective():
    # d/db0: 80 - 100 p - 2 * 5 * b0 = 0 with b1 = -b0: p = 1 / (1 + exp(-2 b0))
    b0 = maximum(flips(100, 0.8), 3, penalty=5.0).b_M[0]
    assert 80 - 100 / (1 + math.exp(-2 * b0)) - 10 * b0 == pytest.approx(0, abs=0.1)
