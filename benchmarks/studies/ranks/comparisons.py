"""How evaluations and curves are compared: paired by conversation, at equal KL, by ranks, by wanted titles."""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from convrec.lists.metrics import paired
from convrec.report.curves import Series
from recipes.evaluation.scoring import load_rows

K = 20
NDCG, RECALL = f"ndcg@{K}", f"recall@{K}"
BANDS = {"1-5": (0, 5), "6-10": (5, 10), "11-15": (10, 15), "16-20": (15, 20)}


@cache
def recall_by_band(folder: Path) -> dict[str, float]:
    """Return the recall of an evaluation that the ranks of each band add.

    Args:
        folder: of the evaluation; the result is cached.
    """
    rows = load_rows(folder).values()
    recall = {k: np.nanmean([row[f"recall@{k}"] for row in rows]) for k in (5, 10, 15, 20)}
    return {band: float(recall[last] - recall.get(first, 0.0)) for band, (first, last) in BANDS.items()}


def difference(
    seeds: Sequence[tuple[Path, Path]], among: Mapping[str, Any] = MappingProxyType({})
) -> dict[str, tuple[float, float, float]]:
    """Compare evaluations in pairs.

    Args:
        seeds: for each seed, the folders of the minuend and of the subtrahend.
        among: column -> value of the rows that count.

    Returns:
        Metric -> the mean difference, its standard error over conversations (a conversation's difference is its mean
        over the seeds), and the standard deviation of the seeds' differences, NaN for one seed.
    """
    means_of_seeds, rows = [], []
    for minuend, subtrahend in seeds:
        first, second = load_rows(minuend), load_rows(subtrahend)
        counted = [at for at, row in second.items() if among.items() <= row.items()]
        values_RM = np.array([[first[at][m] - second[at][m] for m in (NDCG, RECALL)] for at in counted])
        means_of_seeds.append(np.nanmean(values_RM, axis=0))
        rows.append(values_RM)
    mean_RM, zero = np.mean(rows, axis=0), {NDCG: 0.0, RECALL: 0.0}
    of_rows = [dict(zip((NDCG, RECALL), map(float, values), strict=True)) for values in mean_RM]
    found = paired([zero] * len(of_rows), of_rows, (NDCG, RECALL), [second[at]["prompt_id"] for at in counted])
    between = np.std(means_of_seeds, axis=0, ddof=1) if len(seeds) > 1 else np.full(2, np.nan)
    return {m: (found[m]["mean"], found[m]["se"], float(sd)) for m, sd in zip((NDCG, RECALL), between, strict=True)}


def equal_kl(one: Mapping[int, float], other: Mapping[int, float]) -> tuple[int, int]:
    """Choose a checkpoint of each run at about the same KL.

    Args:
        one: step -> KL to the initial model.
        other: the same for the other run.

    Returns:
        The last step of the run that ends nearer to its initial model, and the step of the other run whose KL is
        nearest to it; in the order of the arguments.
    """
    last_one, last_other = max(one), max(other)
    if one[last_one] > other[last_other]:
        return equal_kl(other, one)[::-1]
    return last_one, min(other, key=lambda step: abs(np.log(other[step] / one[last_one])))


def first_passing(curve: Series, level: float) -> int | None:
    """Return the first step from which on the curve is not below the level again.

    Args:
        curve: step -> value.
        level: the level.

    Returns:
        The step; None if the curve ends below the level.
    """
    below = [step for step, value in curve.items() if value < level]
    after = [step for step in curve if step > max(below, default=-1)]
    return min(after, default=None)
