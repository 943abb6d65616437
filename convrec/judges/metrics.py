"""How good a judge's verdicts are, with bootstrap standard errors over queries.

pairwise   accuracy, accuracy_swapped (A and B shown the other way round), agreement (the same response is preferred
           both ways round), prefers_a (share of A among the verdicts, both ways round: 0.5 without position bias)
pointwise  exact_match, mae (mean |predicted - true|), rank_correlation (Spearman's, ties at their mean rank), reward

An answer without a verdict is wrong and agrees with nothing; mae and rank_correlation, which need a number, are over
the verdicts, and no_verdict says how many are missing. `baseline` is a judge that always gives the same best verdict.
"""

import math
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from convrec.judges.verdict import MAX_SCORE
from convrec.statistics import RESAMPLES, bootstrap

OTHER = {"A": "B", "B": "A", None: None}
Summary = dict[str, Any]


def pairwise_summary(
    true: Sequence[str],
    verdicts: Sequence[str | None],
    swapped_verdicts: Sequence[str | None],
    contexts: Sequence[Hashable],
    seed: int = 3407,
) -> Summary:
    """true: the better response, "A" or "B", of each row; swapped_verdicts: what was said when A and B were swapped;
    contexts: the query of each row, which standard errors resample.

    {name: {"mean", "se"}} and "n", "num_contexts", "baseline".
    """
    rows = []
    for label, verdict, swapped in zip(true, verdicts, swapped_verdicts, strict=True):
        back = OTHER[swapped]  # in terms of the row's own order
        said = [v for v in (verdict, swapped) if v is not None]
        rows.append(
            {
                "accuracy": verdict == label,
                "accuracy_swapped": back == label,
                "agreement": verdict is not None and verdict == back,
                "no_verdict": 1 - len(said) / 2,
                "prefers_a": sum(v == "A" for v in said) / len(said) if said else math.nan,
            }
        )
    share = sum(label == "A" for label in true) / len(true)
    return _means(rows, contexts, seed) | {"baseline": {"accuracy": max(share, 1 - share)}}


def pointwise_summary(
    true: Sequence[int],
    verdicts: Sequence[int | None],
    rewards: Sequence[float],
    contexts: Sequence[Hashable],
    seed: int = 3407,
) -> Summary:
    """true, verdicts: scores 0-4. {name: {"mean", "se"}} and "n", "num_contexts", "baseline"."""
    rows = [
        {
            "exact_match": verdict == label,
            "mae": math.nan if verdict is None else abs(verdict - label),
            "reward": reward,
            "no_verdict": verdict is None,
        }
        for label, verdict, reward in zip(true, verdicts, rewards, strict=True)
    ]
    given = [(t, v, c) for t, v, c in zip(true, verdicts, contexts, strict=True) if v is not None]
    mean, error = rank_correlation([t for t, _, _ in given], [v for _, v, _ in given], [c for *_, c in given], seed)
    counts = np.bincount(true, minlength=MAX_SCORE + 1)
    errors = [float((counts * np.abs(np.arange(MAX_SCORE + 1) - score)).sum() / len(true)) for score in range(5)]
    return _means(rows, contexts, seed) | {
        "rank_correlation": {"mean": mean, "se": error},
        "baseline": {"exact_match": float(counts.max() / len(true)), "mae": min(errors)},
    }


def _means(rows: Sequence[dict[str, Any]], contexts: Sequence[Hashable], seed: int) -> Summary:
    summary: Summary = {}
    for name in rows[0]:
        values = np.array([row[name] for row in rows], float)
        is_number = ~np.isnan(values)
        kept = [context for context, keep in zip(contexts, is_number, strict=True) if keep]
        means, errors = bootstrap(values[is_number][:, None], kept, seed)
        summary[name] = {"mean": float(means[0]), "se": float(errors[0])}
    return summary | {"n": len(rows), "num_contexts": len(set(contexts))}


def rank_correlation(
    true: Sequence[int], predicted: Sequence[int], contexts: Sequence[Hashable], seed: int = 3407
) -> tuple[float, float]:
    """Spearman's correlation of scores 0-4 and its bootstrap standard error; NaN where one side never varies."""
    if not true:
        return math.nan, math.nan
    places: dict[Hashable, int] = {}
    context_R = np.array([places.setdefault(context, len(places)) for context in contexts])
    size = MAX_SCORE + 1
    cell_R = np.array(true) * size + np.array(predicted)
    counts_CX = np.zeros((len(places), size * size))  # a context's table of true x predicted
    np.add.at(counts_CX, (context_R, cell_R), 1)
    whole = _spearman(counts_CX.sum(0).reshape(size, size))
    if len(places) == 1:
        return whole, math.nan
    times_SC = np.random.default_rng(seed).multinomial(
        len(places), np.full(len(places), 1 / len(places)), size=RESAMPLES
    )
    resampled = np.array([_spearman(table.reshape(size, size)) for table in times_SC @ counts_CX])
    resampled = resampled[~np.isnan(resampled)]
    return whole, float(resampled.std(ddof=1)) if len(resampled) > 1 else math.nan


def _spearman(table: np.ndarray) -> float:
    """From the table of counts: Pearson's correlation of the mean ranks of the scores."""
    total = table.sum()

    def centred_ranks(counts: np.ndarray) -> np.ndarray:
        return np.cumsum(counts) - (counts - 1) / 2 - (total + 1) / 2

    rows, columns = table.sum(1), table.sum(0)
    x, y = centred_ranks(rows), centred_ranks(columns)
    spread = math.sqrt(float((rows * x**2).sum() * (columns * y**2).sum()))
    return float(x @ table @ y) / spread if spread else math.nan
