"""Errors and p-values over rows that come in groups: bootstrap and sign flips of means, jackknife of other figures."""

import math
from collections.abc import Callable, Hashable, Iterator, Sequence

import numpy as np

RESAMPLES = 1000
FLIPS = 9999
FLIPS_AT_ONCE = 400  # a multiple of 4: numpy draws int8 four at a time and drops what is left at the end of a call
CELLS_AT_ONCE = 1 << 24  # doubles of a block of resamples, 128 MiB: a million conversations fit
BLOCKS = 200  # of contexts that the jackknife leaves out in turn


def bootstrap(values_RM: np.ndarray, contexts: Sequence[Hashable], seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Mean over the R rows of each of M metrics and its standard error, by resampling whole contexts with replacement.

    A resample's mean is over the rows it holds, so contexts with many rows weigh what they weigh in the mean itself.
    NaN without rows; a standard error of NaN with a single context.
    """
    num_rows, num_metrics = values_RM.shape
    if not num_rows:
        return np.full(num_metrics, math.nan), np.full(num_metrics, math.nan)
    sums_CM, rows_C = _by_context(values_RM, contexts)
    if len(rows_C) == 1:
        return values_RM.mean(axis=0), np.full(num_metrics, math.nan)
    means_SM = np.concatenate(
        [(times_SC @ sums_CM) / (times_SC @ rows_C)[:, None] for times_SC in resamples(len(rows_C), seed)]
    )
    return values_RM.mean(axis=0), means_SM.std(axis=0, ddof=1)


def resamples(num_contexts: int, seed: int) -> Iterator[np.ndarray]:
    """How often each context is drawn, with replacement: RESAMPLES rows (C,) in blocks (S, C) that fit in memory."""
    rng = np.random.default_rng(seed)
    share_C = np.full(num_contexts, 1 / num_contexts)
    for block in _blocks(RESAMPLES, num_contexts):
        yield rng.multinomial(num_contexts, share_C, size=block.stop - block.start).astype(float)


def _blocks(rows: int, width: int) -> Iterator[slice]:
    """Rows of this width, as many at once as CELLS_AT_ONCE allows."""
    at_once = max(1, CELLS_AT_ONCE // width)
    return (slice(begin, min(begin + at_once, rows)) for begin in range(0, rows, at_once))


def error_of_mean(values_RM: np.ndarray, contexts: Sequence[Hashable]) -> np.ndarray:
    """Standard error (M,) of the mean over the R rows of each of M metrics, which come in C contexts; NaN for C = 1.

    sqrt(C / (C - 1) * sum over contexts of (sum of its values - its number of rows * mean)^2) / R: the error of a ratio
    of sums (Cochran, Sampling Techniques, chapter 6). `bootstrap` estimates the same by drawing.
    """
    sums_CM, rows_C = _by_context(values_RM, contexts)
    num_contexts = len(rows_C)
    if num_contexts == 1:
        return np.full(values_RM.shape[1], math.nan)
    residuals_CM = sums_CM - rows_C[:, None] * values_RM.mean(axis=0)
    variance_M = num_contexts / (num_contexts - 1) * (residuals_CM**2).sum(axis=0)
    return np.sqrt(variance_M) / len(values_RM)


def jackknife(
    estimate: Callable[[np.ndarray], np.ndarray], contexts: Sequence[Hashable], seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """A figure that is no mean over rows, and its standard error: delete-a-group jackknife over whole contexts.

    estimate(weights_R) -> (M,) figures of the rows that have weight 1 (0: left out). The contexts are dealt at random
    to B = min(contexts, BLOCKS) blocks, each of which is left out once: se = sqrt((B - 1) / B * sum over blocks of
    (figure without it - mean of these)^2) (Efron, The Jackknife, the Bootstrap and Other Resampling Plans, 1982,
    chapter 3), which in the mean is not too small (Efron and Stein, 1981). NaN with a single context. A bootstrap would
    not do: a resample holds fewer different lists than the data, so its catalog coverage is too low.
    """
    context_R = _numbered(contexts)
    num_contexts = context_R.max(initial=-1) + 1
    figures = estimate(np.ones(len(context_R)))
    if (blocks := min(num_contexts, BLOCKS)) < 2:
        return figures, np.full_like(figures, math.nan)
    block_R = np.random.default_rng(seed).permutation(num_contexts)[context_R] % blocks
    without_BM = np.stack([estimate((block_R != block).astype(float)) for block in range(blocks)])
    spread_M = ((without_BM - without_BM.mean(axis=0)) ** 2).sum(axis=0)
    return figures, np.sqrt((blocks - 1) / blocks * spread_M)


def sign_flip(values_RM: np.ndarray, contexts: Sequence[Hashable], seed: int) -> np.ndarray:
    """Two-sided p-value (M,) of a mean difference of 0, by flipping the sign of whole contexts at random.

    (1 + flips with a mean as far from 0) / (1 + FLIPS): never 0; 1 where all differences are 0; NaN without rows.
    """
    num_rows, num_metrics = values_RM.shape
    if not num_rows:
        return np.full(num_metrics, math.nan)
    sums_CM, rows_C = _by_context(values_RM, contexts)
    rng = np.random.default_rng(seed)
    observed_M = np.abs(sums_CM.sum(axis=0))
    as_far_M = np.zeros(num_metrics, int)
    for begin in range(0, FLIPS, FLIPS_AT_ONCE):
        flips = min(FLIPS_AT_ONCE, FLIPS - begin)
        signs_SC = 2 * rng.integers(0, 2, size=(flips, len(rows_C)), dtype=np.int8) - 1
        for block in _blocks(flips, len(rows_C)):
            as_far_M += (np.abs(signs_SC[block].astype(float) @ sums_CM) >= observed_M - 1e-9).sum(axis=0)
    return (1 + as_far_M) / (1 + FLIPS)


def _by_context(values_RM: np.ndarray, contexts: Sequence[Hashable]) -> tuple[np.ndarray, np.ndarray]:
    """Sums of the values (C, M) and number of rows (C,) of each context."""
    context_R = _numbered(contexts)
    sums_CM = np.stack([np.bincount(context_R, weights=column) for column in values_RM.T], axis=1)
    return sums_CM, np.bincount(context_R)


def _numbered(contexts: Sequence[Hashable]) -> np.ndarray:
    """(R,) each row's context as a number, by first appearance."""
    number_by_context: dict[Hashable, int] = {}
    return np.array([number_by_context.setdefault(context, len(number_by_context)) for context in contexts], int)
