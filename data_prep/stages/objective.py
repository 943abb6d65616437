"""The objective of adjust, eq. 13 of arXiv 2510.20150, and its maximum.

    F(w, b) = sum over conversations x, over ground truths g of x: log softmax_m(w_m s_xm + b_m) [g]
              - penalty (|w - 1|^2 + |b|^2)

With n_x ground truths in x, the indicator t_xm, and pi_x the softmax over the items that may stand in x's list:

    dF/db_m = sum_x (t_xm - n_x pi_xm) - 2 penalty b_m
    dF/dw_m = sum_x s_xm (t_xm - n_x pi_xm) - 2 penalty (w_m - 1)

F is linear in (w, b), less log-sum-exps of what is linear in them, less a square: strictly concave, with one maximum,
whatever the order of the conversations. L-BFGS climbs to it, until the gradient says that it is there: a step's gain
says nothing, since a step can be short far below the maximum. Each pass over the conversations makes their scores again
from vectors, a block at a time; what is summed of them is float64, or its rounding would hide the gradient.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from scipy import sparse
from scipy.optimize import minimize

from data_prep.stages.remap import score_blocks

TOLERANCE = 1e-4  # of the gradient by the variables of `_scaled`, where an item's curvature is about 1


class Part(NamedTuple):
    """B conversations; matrices (B, M), of which only what is set takes memory."""

    query_BD: np.ndarray  # float32; D = 0 without remap
    spaces_B: np.ndarray  # of the item vectors that the query is for
    added_BM: sparse.csr_matrix  # to the products: s = q E^T + added. Without remap, what is not set has no score
    seen_BM: sparse.csr_matrix  # set for what the user has seen, which may not be in the list
    truth_BM: sparse.csr_matrix  # set for ground truths that are fitted

    def rows(self, index: np.ndarray) -> "Part":
        """These conversations."""
        return Part(
            query_BD=self.query_BD[index],
            spaces_B=self.spaces_B[index],
            added_BM=self.added_BM[index],
            seen_BM=self.seen_BM[index],
            truth_BM=self.truth_BM[index],
        )


def final_blocks(
    part: Part, vectors_SMD: np.ndarray, w_M: np.ndarray, b_M: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """(rows, s, w s + b) of a block; s float32, the last float64, and -inf where an item may not be in the list. w and
    b: float64, b -inf for items that may be in none. The arrays are the caller's to change."""
    for rows, scores_BM in score_blocks(part.query_BD, part.spaces_B, list(vectors_SMD), part.added_BM):
        final_BM = scores_BM * w_M
        final_BM += b_M
        if not vectors_SMD.shape[2]:
            has_score_BM = np.zeros(final_BM.shape, bool)
            has_score_BM[_places(part.added_BM[rows])] = True
            final_BM[~has_score_BM] = -np.inf
        final_BM[_places(part.seen_BM[rows])] = -np.inf
        yield rows, scores_BM, final_BM


def _places(matrix: sparse.csr_matrix) -> tuple[np.ndarray, np.ndarray]:
    """(rows, columns) of what is set, be it to 0."""
    entries = matrix.tocoo()
    return entries.row, entries.col


class Sums(NamedTuple):
    """Of some conversations. Powers p of s: 0, 1 and, where they are asked for, 2; float64."""

    log_likelihood: float
    truth_PM: np.ndarray  # sum over x of t_xm s_xm^p
    model_PM: np.ndarray  # sum over x of n_x pi_xm s_xm^p

    def __add__(self, other: "Sums") -> "Sums":  # type: ignore[override]
        return Sums(
            log_likelihood=self.log_likelihood + other.log_likelihood,
            truth_PM=self.truth_PM + other.truth_PM,
            model_PM=self.model_PM + other.model_PM,
        )


def sums(part: Part, vectors_SMD: np.ndarray, w_M: np.ndarray, b_M: np.ndarray, powers: int = 2) -> Sums:
    """One pass: `log_likelihood` is F without its penalty, truth - model its gradient by b (power 0) and w (1)."""
    shape = powers, part.added_BM.shape[1]
    log_likelihood = 0.0
    truth_PM = np.zeros(shape)
    model_PM = np.zeros(shape)
    part = part.rows(np.flatnonzero(np.diff(part.truth_BM.indptr)))
    for rows, scores_BM, final_BM in final_blocks(part, vectors_SMD, w_M, b_M):
        truth = part.truth_BM[rows].tocoo()
        count_B = np.bincount(truth.row, minlength=len(rows))
        log_likelihood += final_BM[truth.row, truth.col].sum(dtype=float)
        for power in range(powers):
            truth_PM[power] += np.bincount(truth.col, scores_BM[truth.row, truth.col] ** power, shape[1])
        top_B = final_BM.max(axis=1)
        final_BM -= top_B[:, None]
        pi_BM = np.exp(final_BM, out=final_BM)
        total_B = pi_BM.sum(axis=1)
        log_likelihood -= (count_B * (top_B + np.log(total_B))).sum(dtype=float)
        weight_B = count_B / total_B
        for power in range(powers):
            if power:
                pi_BM *= scores_BM
            model_PM[power] += weight_B @ pi_BM
    return Sums(log_likelihood, truth_PM, model_PM)


class Fit(NamedTuple):
    w_M: np.ndarray  # float64
    b_M: np.ndarray
    history: list[float]  # log-likelihood after each pass over the conversations; the first at w = 1 and b = 0
    stopped: str = ""  # why the fit stopped below the maximum; "" where it is there, or was not asked for


def fit(pass_over: Callable[[np.ndarray, np.ndarray, int], Sums], num_items: int, penalty: float, most: int) -> Fit:
    """pass_over(w, b, powers): the sums of all conversations. most: passes (0: w = 1, b = 0); a step is finished."""
    start_w_M = np.ones(num_items)
    start_b_M = np.zeros(num_items)
    if not most:
        return Fit(start_w_M, start_b_M, history=[])
    first = pass_over(start_w_M, start_b_M, 3)
    history: list[float] = []
    to_weights, to_gradient = _scaled(first.truth_PM + first.model_PM, penalty)

    def loss(u_2M: np.ndarray) -> tuple[float, np.ndarray]:
        w_M, b_M = to_weights(u_2M)
        found = pass_over(w_M, b_M, 2) if history else first
        history.append(found.log_likelihood)
        value = found.log_likelihood - penalty * (((w_M - 1) ** 2).sum() + (b_M**2).sum())
        by_b_M, by_w_M = (found.truth_PM - found.model_PM)[:2] - 2 * penalty * np.stack([b_M, w_M - 1])
        return -value, -to_gradient(by_w_M, by_b_M)

    options = {"maxfun": most, "maxiter": most, "ftol": 0.0, "gtol": TOLERANCE}
    found = minimize(loss, np.zeros(2 * num_items), jac=True, method="L-BFGS-B", options=options)
    w_M, b_M = to_weights(found.x)
    return Fit(w_M, b_M, history, "" if found.success else found.message)


def _scaled(curvature_PM: np.ndarray, penalty: float) -> tuple[Callable, Callable]:
    """The variables u that L-BFGS works with, (w - 1, b) = C u, and the gradient by them, C^T g.

    In u every item has about the same curvature, so that popular and rare ones are fitted in the same few steps: C C^T
    is the inverse of the items' 2 x 2 blocks sum_x (t + n pi) [1 s; s s^2] + 2 penalty. The blocks are of the start;
    their t stands for what n pi will be.
    """
    tiny = 1e-6
    root_b_M = np.sqrt(curvature_PM[0] + 2 * penalty + tiny)
    mixed_M = curvature_PM[1] / root_b_M
    root_w_M = np.sqrt(np.maximum(curvature_PM[2] + 2 * penalty - mixed_M**2, tiny))

    def to_weights(u_2M: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        u_w_M, u_b_M = np.split(u_2M, 2)
        change_M = u_w_M / root_w_M
        return 1 + change_M, (u_b_M - mixed_M * change_M) / root_b_M

    def to_gradient(by_w_M: np.ndarray, by_b_M: np.ndarray) -> np.ndarray:
        by_u_b_M = by_b_M / root_b_M
        return np.concatenate([(by_w_M - mixed_M * by_u_b_M) / root_w_M, by_u_b_M])

    return to_weights, to_gradient
