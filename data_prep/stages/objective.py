"""The objective of adjust, eq. 13 of arXiv 2510.20150, and its maximisation.

    F(w, b) = sum over conversations x, over ground truths g of x: log softmax_m(w_m s_xm + b_m) [g]
              - penalty (|w - 1|^2 + |b|^2)

With n_x ground truths in x, the indicator t_xm, and pi_x the softmax over the items allowed in x's list:

    dF/db_m = sum_x (t_xm - n_x pi_xm) - 2 penalty b_m
    dF/dw_m = sum_x s_xm (t_xm - n_x pi_xm) - 2 penalty (w_m - 1)

F is a linear function of (w, b), minus log-sum-exps of linear functions, minus a square. It is therefore strictly
concave with a single maximum, whatever the order of the conversations. L-BFGS stops when the gradient is small: the
gain of a step would be a poor criterion, because a step can be short far below the maximum. Each pass over the
conversations recomputes their scores from vectors in blocks; sums are float64, because rounding would otherwise hide
the gradient.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from scipy import sparse
from scipy.optimize import minimize

from data_prep.stages.remap import iter_scores

TOLERANCE = 1e-4  # of the gradient by the variables of `_precondition`, where an item's curvature is about 1


class Part(NamedTuple):
    """B conversations, with sparse matrices (B, M)."""

    query_BD: np.ndarray  # float32; D = 0 without remap
    spaces_B: np.ndarray  # space of the item vectors that belongs to the query
    added_BM: sparse.csr_matrix  # s = q E^T + added. Without remap, items that are not set have no score
    seen_BM: sparse.csr_matrix  # set for items that the user has seen, which may not be in the list
    truth_BM: sparse.csr_matrix  # set for ground truths that are fitted

    def select_rows(self, index: np.ndarray) -> "Part":
        """Return the part with these conversations only."""
        return Part(
            query_BD=self.query_BD[index],
            spaces_B=self.spaces_B[index],
            added_BM=self.added_BM[index],
            seen_BM=self.seen_BM[index],
            truth_BM=self.truth_BM[index],
        )


def iter_final_scores(
    part: Part, vectors_SMD: np.ndarray, w_M: np.ndarray, b_M: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield (rows, s, w s + b) block by block.

    Args:
        part: the conversations.
        vectors_SMD: item vectors of each space; D = 0 if `part` holds whole scores.
        w_M: float64.
        b_M: float64; -inf for items that may not be in any list.

    Yields:
        Row indices; s, float32; w s + b, float64, -inf if an item may not be in the list. The caller may change them.
    """
    for rows, scores_BM in iter_scores(part.query_BD, part.spaces_B, list(vectors_SMD), part.added_BM):
        final_BM = scores_BM * w_M
        final_BM += b_M
        if not vectors_SMD.shape[2]:
            has_score_BM = np.zeros(final_BM.shape, bool)
            has_score_BM[_find_entries(part.added_BM[rows])] = True
            final_BM[~has_score_BM] = -np.inf
        final_BM[_find_entries(part.seen_BM[rows])] = -np.inf
        yield rows, scores_BM, final_BM


def _find_entries(matrix: sparse.csr_matrix) -> tuple[np.ndarray, np.ndarray]:
    """Return rows and columns of the stored entries, including stored zeros."""
    entries = matrix.tocoo()
    return entries.row, entries.col


class Sums(NamedTuple):
    """Sums over conversations, float64. Powers p of s: 0, 1 and, if requested, 2."""

    log_likelihood: float
    truth_PM: np.ndarray  # sum over x of t_xm s_xm^p
    model_PM: np.ndarray  # sum over x of n_x pi_xm s_xm^p

    def __add__(self, other: "Sums") -> "Sums":  # type: ignore[override]
        return Sums(
            log_likelihood=self.log_likelihood + other.log_likelihood,
            truth_PM=self.truth_PM + other.truth_PM,
            model_PM=self.model_PM + other.model_PM,
        )


def compute_sums(part: Part, vectors_SMD: np.ndarray, w_M: np.ndarray, b_M: np.ndarray, powers: int = 2) -> Sums:
    """Compute F without its penalty and the terms of its gradient in one pass over the conversations of a part.

    Returns:
        `log_likelihood`: F without the penalty. `truth_PM - model_PM`: its gradient by b (power 0) and w (power 1).
    """
    shape = powers, part.added_BM.shape[1]
    log_likelihood = 0.0
    truth_PM = np.zeros(shape)
    model_PM = np.zeros(shape)
    part = part.select_rows(np.flatnonzero(np.diff(part.truth_BM.indptr)))
    for rows, scores_BM, final_BM in iter_final_scores(part, vectors_SMD, w_M, b_M):
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
    """The result of `maximise`."""

    w_M: np.ndarray  # float64
    b_M: np.ndarray
    history: list[float]  # log-likelihood in each pass over the conversations; the first at w = 1 and b = 0
    stopped: str = ""  # why the fit stopped before the maximum; "" if it reached it, or was not run


def maximise(
    pass_over: Callable[[np.ndarray, np.ndarray, int], Sums], num_items: int, penalty: float, most: int
) -> Fit:
    """Maximise F with L-BFGS.

    Args:
        pass_over: returns the sums of all conversations for w, b and the number of powers.
        num_items: M.
        penalty: weight of |w - 1|^2 and |b|^2.
        most: maximum number of passes; a step that has begun is finished. 0: w = 1, b = 0.
    """
    start_w_M = np.ones(num_items)
    start_b_M = np.zeros(num_items)
    if not most:
        return Fit(start_w_M, start_b_M, history=[])
    first = pass_over(start_w_M, start_b_M, 3)
    history: list[float] = []
    to_weights, to_gradient = _precondition(first.truth_PM + first.model_PM, penalty)

    def loss(u_2M: np.ndarray) -> tuple[float, np.ndarray]:
        w_M, b_M = to_weights(u_2M)
        totals = pass_over(w_M, b_M, 2) if history else first
        history.append(totals.log_likelihood)
        value = totals.log_likelihood - penalty * (((w_M - 1) ** 2).sum() + (b_M**2).sum())
        by_b_M, by_w_M = (totals.truth_PM - totals.model_PM)[:2] - 2 * penalty * np.stack([b_M, w_M - 1])
        return -value, -to_gradient(by_w_M, by_b_M)

    options = {"maxfun": most, "maxiter": most, "ftol": 0.0, "gtol": TOLERANCE}
    result = minimize(loss, np.zeros(2 * num_items), jac=True, method="L-BFGS-B", options=options)
    w_M, b_M = to_weights(result.x)
    return Fit(w_M, b_M, history, "" if result.success else result.message)


def _precondition(curvature_PM: np.ndarray, penalty: float) -> tuple[Callable, Callable]:
    """Return the maps to and from the variables u that L-BFGS works with: (w - 1, b) = C u, and C^T g.

    In u, every item has about the same curvature, so popular and rare items are fitted in the same few steps: C C^T is
    the inverse of the items' 2 x 2 blocks sum_x (t + n pi) [1 s; s s^2] + 2 penalty. The blocks are those at the
    start, where t approximates the final n pi.
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
