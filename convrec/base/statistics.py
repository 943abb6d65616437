"""Standard errors and p-values for grouped rows: bootstrap and sign flips for means, jackknife for other statistics."""

import math
from collections.abc import Callable, Hashable, Iterator, Sequence

import numpy as np

RESAMPLES = 1000
FLIPS = 9999
FLIPS_AT_ONCE = 400  # a multiple of 4: numpy draws int8 four at a time and drops the rest at the end of a call
CELLS_AT_ONCE = 1 << 24  # doubles per block of resamples, 128 MiB: a million conversations fit
BLOCKS = 200  # of contexts, each of which the jackknife omits once


def bootstrap(values_RM: np.ndarray, contexts: Sequence[Hashable], seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Estimate means and their standard errors by resampling whole contexts with replacement.

    The mean of a resample is over its rows, so that contexts with many rows weigh as much as in the statistic itself.

    Args:
        values_RM: R rows of M metrics.
        contexts: the context of each row.
        seed: of the resamples.

    Returns:
        The means (M,) and their standard errors (M,): NaN without rows; standard errors of NaN with a single context.
    """
    num_rows, num_metrics = values_RM.shape
    if not num_rows:
        return np.full(num_metrics, math.nan), np.full(num_metrics, math.nan)
    sums_CM, rows_C = _sum_by_context(values_RM, contexts)
    if len(rows_C) == 1:
        return values_RM.mean(axis=0), np.full(num_metrics, math.nan)
    means_SM = np.concatenate(
        [(counts_SC @ sums_CM) / (counts_SC @ rows_C)[:, None] for counts_SC in draw_resamples(len(rows_C), seed)]
    )
    return values_RM.mean(axis=0), means_SM.std(axis=0, ddof=1)


def draw_resamples(num_contexts: int, seed: int) -> Iterator[np.ndarray]:
    """Yield how often each context is drawn with replacement, for RESAMPLES resamples.

    Args:
        num_contexts: C.
        seed: of the draws.

    Yields:
        Blocks (S, C) of counts that fit in memory.
    """
    rng = np.random.default_rng(seed)
    share_C = np.full(num_contexts, 1 / num_contexts)
    for block in _iter_blocks(RESAMPLES, num_contexts):
        yield rng.multinomial(num_contexts, share_C, size=block.stop - block.start).astype(float)


def _iter_blocks(rows: int, width: int) -> Iterator[slice]:
    """Yield slices of rows of this width, each with at most CELLS_AT_ONCE cells."""
    at_once = max(1, CELLS_AT_ONCE // width)
    return (slice(begin, min(begin + at_once, rows)) for begin in range(0, rows, at_once))


def compute_standard_error(values_RM: np.ndarray, contexts: Sequence[Hashable]) -> np.ndarray:
    """Compute the standard errors of means over rows that come in contexts.

    sqrt(C / (C - 1) * sum over contexts of (sum of its values - its number of rows * mean)^2) / R: the error of a ratio
    of sums (Cochran, Sampling Techniques, chapter 6). `bootstrap` estimates the same by resampling.

    Args:
        values_RM: R rows of M metrics.
        contexts: the context of each row, C different ones.

    Returns:
        The standard errors (M,); NaN if C = 1.
    """
    sums_CM, rows_C = _sum_by_context(values_RM, contexts)
    num_contexts = len(rows_C)
    if num_contexts == 1:
        return np.full(values_RM.shape[1], math.nan)
    residuals_CM = sums_CM - rows_C[:, None] * values_RM.mean(axis=0)
    variance_M = num_contexts / (num_contexts - 1) * (residuals_CM**2).sum(axis=0)
    return np.sqrt(variance_M) / len(values_RM)


def jackknife(
    estimate: Callable[[np.ndarray], np.ndarray], contexts: Sequence[Hashable], seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Estimate statistics that are not means, and their standard errors, by a delete-a-group jackknife over contexts.

    The contexts are assigned at random to B = min(contexts, BLOCKS) blocks, each of which is omitted once: se = sqrt((B
    - 1) / B * sum over blocks of (statistic without it - mean of these)^2) (Efron, The Jackknife, the Bootstrap and
    Other Resampling Plans, 1982, chapter 3), which on average is not too small (Efron and Stein, 1981). A bootstrap
    would be biased: a resample has fewer distinct lists than the data, so its catalog coverage is too low.

    Args:
        estimate: computes M statistics of the rows with weight 1, from weights (R,) of 0 and 1.
        contexts: the context of each row.
        seed: of the blocks.

    Returns:
        The statistics (M,) and their standard errors (M,), which are NaN with a single context.
    """
    context_R = _number_contexts(contexts)
    num_contexts = context_R.max(initial=-1) + 1
    figures = estimate(np.ones(len(context_R)))
    if (blocks := min(num_contexts, BLOCKS)) < 2:
        return figures, np.full_like(figures, math.nan)
    block_R = np.random.default_rng(seed).permutation(num_contexts)[context_R] % blocks
    without_BM = np.stack([estimate((block_R != block).astype(float)) for block in range(blocks)])
    spread_M = ((without_BM - without_BM.mean(axis=0)) ** 2).sum(axis=0)
    return figures, np.sqrt((blocks - 1) / blocks * spread_M)


def sign_flip(values_RM: np.ndarray, contexts: Sequence[Hashable], seed: int) -> np.ndarray:
    """Compute two-sided p-values for mean differences of 0 by flipping the signs of whole contexts at random.

    Args:
        values_RM: R rows of M differences.
        contexts: the context of each row.
        seed: of the flips.

    Returns:
        (1 + flips with a mean at least as far from 0) / (1 + FLIPS), of shape (M,): never 0; 1 if all differences are
        0; NaN without rows.
    """
    num_rows, num_metrics = values_RM.shape
    if not num_rows:
        return np.full(num_metrics, math.nan)
    sums_CM, rows_C = _sum_by_context(values_RM, contexts)
    rng = np.random.default_rng(seed)
    observed_M = np.abs(sums_CM.sum(axis=0))
    num_as_far_M = np.zeros(num_metrics, int)
    for begin in range(0, FLIPS, FLIPS_AT_ONCE):
        flips = min(FLIPS_AT_ONCE, FLIPS - begin)
        signs_SC = 2 * rng.integers(0, 2, size=(flips, len(rows_C)), dtype=np.int8) - 1
        for block in _iter_blocks(flips, len(rows_C)):
            num_as_far_M += (np.abs(signs_SC[block].astype(float) @ sums_CM) >= observed_M - 1e-9).sum(axis=0)
    return (1 + num_as_far_M) / (1 + FLIPS)


def _sum_by_context(values_RM: np.ndarray, contexts: Sequence[Hashable]) -> tuple[np.ndarray, np.ndarray]:
    """Return the sums of the values (C, M) and the number of rows (C,) of each context."""
    context_R = _number_contexts(contexts)
    sums_CM = np.stack([np.bincount(context_R, weights=column) for column in values_RM.T], axis=1)
    return sums_CM, np.bincount(context_R)


def _number_contexts(contexts: Sequence[Hashable]) -> np.ndarray:
    """Return each row's context (R,) as a number, in order of first appearance."""
    number_by_context: dict[Hashable, int] = {}
    return np.array([number_by_context.setdefault(context, len(number_by_context)) for context in contexts], int)
