"""Metrics of a judge's verdicts, with bootstrap standard errors over queries.

pairwise   for rows with a better response:
           accuracy, accuracy_swapped (A and B in the other order), right_both_ways, judge_bench (JudgeBench's score:
           right in one order and not wrong in the other), agreement (the same response is preferred in both orders),
           inconsistent (different ones are), says_tie (neither is better), prefers_a (share of A among the preferences
           in both orders: 0.5 without position bias), no_verdict;
           `ties`, for tied rows: tied (no response is preferred in both orders), no_verdict
pointwise  exact_match, mae (mean |predicted - true|), reward, no_verdict; for queries with several responses:
           pair_ranking and best_of_n

An answer without a verdict is wrong and agrees with nothing; mae, which needs numbers, is over the verdicts, and
no_verdict is the share without one. `by_source` and `by_label` repeat the main metrics. `baseline` has each metric of
the best judge that always gives the same verdict.
"""

import itertools
import math
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from convrec.base.statistics import bootstrap
from convrec.judges.criteria import SCORES, Scores
from convrec.judges.verdict import TIE, pointwise_reward

OPPOSITE = {"A": "B", "B": "A", TIE: TIE, None: None}
PAIRWISE = ("accuracy", "right_both_ways")  # by source and by label
POINTWISE = ("exact_match", "reward")
Summary = dict[str, Any]
# "label": a score, or "A", "B" or "tie". "verdict", and for pairs "verdict_swapped" with A and B swapped: the same
# values, None for no verdict. "query": resampled for standard errors. "source".
Row = dict[str, Any]
Value = tuple[float, Hashable]  # a value and its query


# ---- pairwise


def compute_comparison_metrics(row: Row) -> dict[str, float]:
    """Compute the pairwise metrics of one row, which the module defines.

    Args:
        row: with `label`, `verdict` and `verdict_swapped`.

    Returns:
        name -> 0 to 1; `prefers_a` is NaN if neither answer prefers a response.
    """
    label = row["label"]
    verdict = row["verdict"]
    swapped = row["verdict_swapped"]
    unswapped = OPPOSITE[swapped]  # in terms of the row's own order
    preferences = [v for v in (verdict, swapped) if v in ("A", "B")]
    right = [v == label for v in (verdict, unswapped)]
    wrong = [v == OPPOSITE[label] for v in (verdict, unswapped)]
    return {
        "accuracy": float(right[0]),
        "accuracy_swapped": float(right[1]),
        "right_both_ways": float(all(right)),
        "judge_bench": float(sum(right) > sum(wrong)),
        "agreement": float(len(preferences) == 2 and verdict == unswapped),
        "inconsistent": float(len(preferences) == 2 and verdict != unswapped),
        "says_tie": sum(v == TIE for v in (verdict, swapped)) / 2,
        "no_verdict": sum(v is None for v in (verdict, swapped)) / 2,
        "prefers_a": sum(v == "A" for v in preferences) / len(preferences) if preferences else math.nan,
    }


def summarise_pairwise(rows: Sequence[Row], seed: int = 3407) -> Summary:
    """Summarise the metrics of a pairwise judge.

    Args:
        rows: labels and verdicts.
        seed: random seed of the bootstrap.

    Returns:
        {metric: {"mean", "se"}} and "n", "num_contexts", "by_source", "by_label", "ties", "baseline".
    """
    constant = dict.fromkeys(compute_comparison_metrics({"label": "A", "verdict": "A", "verdict_swapped": "A"}), 0.0)
    names = [*constant]
    scored = [row | compute_comparison_metrics(row) for row in rows]
    decided = [row for row in scored if row["label"] != TIE]
    tied = [row | {"tied": float(not row["no_verdict"] and not row["agreement"])} for row in scored]
    share = sum(row["label"] == "A" for row in decided) / len(decided) if decided else math.nan
    constant |= {"inconsistent": 1.0, "prefers_a": 1.0}
    constant |= {"accuracy": max(share, 1 - share), "accuracy_swapped": max(share, 1 - share)}
    return _summarise(decided, names, seed) | {
        "by_source": _summarise_by("source", decided, PAIRWISE, seed),
        "by_label": _summarise_by("label", decided, PAIRWISE, seed),
        "ties": _summarise([row for row in tied if row["label"] == TIE], ("tied", "no_verdict"), seed),
        "baseline": constant,
    }


# ---- pointwise


def compute_score_metrics(row: Row, scores: Scores = SCORES) -> dict[str, float]:
    """Compute the pointwise metrics of one row, which the module defines.

    Args:
        row: with `label` and `verdict`.
        scores: the lowest and the highest score.

    Returns:
        name -> number; `mae` is NaN without a verdict.
    """
    label = row["label"]
    verdict = row["verdict"]
    return {
        "exact_match": float(verdict == label),
        "mae": math.nan if verdict is None else float(abs(verdict - label)),
        "reward": pointwise_reward(verdict, label, scores),
        "no_verdict": float(verdict is None),
    }


def summarise_pointwise(rows: Sequence[Row], scores: Scores = SCORES, seed: int = 3407) -> Summary:
    """Summarise the metrics of a pointwise judge.

    Args:
        rows: labels and verdicts, at least one row.
        scores: the lowest and the highest score.
        seed: random seed of the bootstrap.

    Returns:
        {metric: {"mean", "se"}} and "n", "num_contexts", "by_source", "by_label", "baseline".
    """
    labels, shares = zip(*Counter(row["label"] for row in rows).items(), strict=True)
    constant_judges = [
        [compute_score_metrics({"label": label, "verdict": verdict}, scores) for label in labels]
        for verdict in range(scores[0], scores[1] + 1)
    ]
    choose_best = {"exact_match": max, "mae": min, "reward": max, "no_verdict": min}
    baseline = {
        name: choose(float(np.average([row[name] for row in judge], weights=shares)) for judge in constant_judges)
        for name, choose in choose_best.items()
    }
    scored = [row | compute_score_metrics(row, scores) for row in rows]
    summary = _summarise(scored, [*choose_best], seed)
    if pairs := pair_ranking(rows):
        summary |= {"pair_ranking": _bootstrap_mean(pairs, seed), "best_of_n": _bootstrap_mean(best_of_n(rows), seed)}
        constant = [value for value, _ in best_of_n([row | {"verdict": 0} for row in rows])]
        baseline |= {"pair_ranking": 0.5, "best_of_n": sum(constant) / len(constant)}
    return summary | {
        "by_source": _summarise_by("source", scored, POINTWISE, seed),
        "by_label": _summarise_by("label", scored, POINTWISE, seed),
        "baseline": baseline,
    }


def pair_ranking(rows: Sequence[Row]) -> list[Value]:
    """Compare each pair of responses to one query with different true scores.

    Returns:
        For each pair, 1 if the verdicts have the same order, 0.5 if they are equal, 0 if they have the other order or
        one is missing; with the query.
    """
    values: list[Value] = []
    for query, responses in _group_by("query", rows).items():
        for pair in itertools.combinations(responses, 2):
            worse, better = sorted(pair, key=lambda row: row["label"])
            if worse["label"] == better["label"]:
                continue
            low = worse["verdict"]
            high = better["verdict"]
            value = 0.0 if high is None or low is None else 1.0 if high > low else 0.5 if high == low else 0.0
            values.append((value, query))
    return values


def best_of_n(rows: Sequence[Row]) -> list[Value]:
    """Compute how often the response with the highest verdict is a truly best one (RewardBench 2's accuracy).

    Returns:
        For each query whose responses differ in true score, the probability of choosing a best response if ties are
        broken at random, 0 without any verdict; with the query.
    """
    values: list[Value] = []
    for query, responses in _group_by("query", rows).items():
        labels = [row["label"] for row in responses]
        if min(labels) == max(labels):
            continue
        highest = max((row["verdict"] for row in responses if row["verdict"] is not None), default=None)
        chosen = [row["label"] for row in responses if highest is not None and row["verdict"] == highest]
        values.append((chosen.count(max(labels)) / len(chosen) if chosen else 0.0, query))
    return values


# ---- means


def _summarise(rows: Sequence[Row], names: Sequence[str], seed: int) -> Summary:
    queries = [row["query"] for row in rows]
    columns = {name: [row[name] for row in rows] for name in (names if rows else ())}
    summary: Summary = {
        name: _bootstrap_mean([*zip(values, queries, strict=True)], seed) for name, values in columns.items()
    }
    return summary | {"n": len(rows), "num_contexts": len(set(queries))}


def _bootstrap_mean(values: Sequence[Value], seed: int) -> Summary:
    """Return mean and standard error over the values that are not NaN."""
    numbers = [(value, query) for value, query in values if not math.isnan(value)]
    values_R1 = np.array([[value] for value, _ in numbers]).reshape(-1, 1)
    means, errors = bootstrap(values_R1, [query for _, query in numbers], seed)
    return {"mean": float(means[0]), "se": float(errors[0])}


def _summarise_by(key: str, rows: Sequence[Row], names: Sequence[str], seed: int) -> dict[str, Summary]:
    parts = _group_by(key, rows)
    return {str(part): _summarise(parts[part], names, seed) for part in sorted(parts, key=str)}


def _group_by(key: str, rows: Sequence[Row]) -> dict[Hashable, list[Row]]:
    """Group rows by a column, in the order of first appearance."""
    parts: dict[Hashable, list[Row]] = {}
    for row in rows:
        parts.setdefault(row[key], []).append(row)
    return parts
