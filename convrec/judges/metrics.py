"""How good a judge's verdicts are, with bootstrap standard errors over queries.

pairwise   of the rows with a better response:
           accuracy, accuracy_swapped (A and B shown the other way round), right_both_ways, judge_bench (JudgeBench's
           score: right one way and not wrong the other), agreement (the same response is preferred both ways),
           inconsistent (another one), says_tie (neither is better), prefers_a (share of A among the preferences, both
           ways: 0.5 without position bias), no_verdict;
           `ties`, of the tied rows: tied (no response is preferred both ways), no_verdict
pointwise  exact_match, mae (mean |predicted - true|), reward, no_verdict; of the queries with several
           responses: pair_ranking and best_of_n

An answer without a verdict is wrong and agrees with nothing; mae, which needs a number, is over the verdicts, and
no_verdict says how many are missing. `by_source` and `by_label` have the first metrics again.
`baseline` has each metric of the best judge that always gives the same verdict.
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

OTHER = {"A": "B", "B": "A", TIE: TIE, None: None}
PAIRWISE = ("accuracy", "right_both_ways")  # by source and by label
POINTWISE = ("exact_match", "reward")
Summary = dict[str, Any]
# "label": the better response, "A" or "B", or "tie"; a score. "verdict", and of a pair "verdict_swapped", when A and B
# were swapped: the same, None for none. "query", which errors resample. "source".
Row = dict[str, Any]
Value = tuple[float, Hashable]  # with its query


# ---- pairwise


def comparison_metrics(row: Row) -> dict[str, float]:
    label = row["label"]
    verdict = row["verdict"]
    swapped = row["verdict_swapped"]
    back = OTHER[swapped]  # in terms of the row's own order
    said = [v for v in (verdict, swapped) if v in ("A", "B")]
    right = [v == label for v in (verdict, back)]
    wrong = [v == OTHER[label] for v in (verdict, back)]
    return {
        "accuracy": float(right[0]),
        "accuracy_swapped": float(right[1]),
        "right_both_ways": float(all(right)),
        "judge_bench": float(sum(right) > sum(wrong)),
        "agreement": float(len(said) == 2 and verdict == back),
        "inconsistent": float(len(said) == 2 and verdict != back),
        "says_tie": sum(v == TIE for v in (verdict, swapped)) / 2,
        "no_verdict": sum(v is None for v in (verdict, swapped)) / 2,
        "prefers_a": sum(v == "A" for v in said) / len(said) if said else math.nan,
    }


def pairwise_summary(rows: Sequence[Row], seed: int = 3407) -> Summary:
    """{name: {"mean", "se"}} and "n", "num_contexts", "by_source", "by_label", "ties", "baseline"."""
    constant = dict.fromkeys(comparison_metrics({"label": "A", "verdict": "A", "verdict_swapped": "A"}), 0.0)
    names = [*constant]
    scored = [row | comparison_metrics(row) for row in rows]
    kept = [row for row in scored if row["label"] != TIE]
    tied = [row | {"tied": float(not row["no_verdict"] and not row["agreement"])} for row in scored]
    share = sum(row["label"] == "A" for row in kept) / len(kept) if kept else math.nan
    constant |= {"inconsistent": 1.0, "prefers_a": 1.0}
    constant |= {"accuracy": max(share, 1 - share), "accuracy_swapped": max(share, 1 - share)}
    return _means(kept, names, seed) | {
        "by_source": _by("source", kept, PAIRWISE, seed),
        "by_label": _by("label", kept, PAIRWISE, seed),
        "ties": _means([row for row in tied if row["label"] == TIE], ("tied", "no_verdict"), seed),
        "baseline": constant,
    }


# ---- pointwise


def score_metrics(row: Row, scores: Scores = SCORES) -> dict[str, float]:
    label = row["label"]
    verdict = row["verdict"]
    return {
        "exact_match": float(verdict == label),
        "mae": math.nan if verdict is None else float(abs(verdict - label)),
        "reward": pointwise_reward(verdict, label, scores),
        "no_verdict": float(verdict is None),
    }


def pointwise_summary(rows: Sequence[Row], scores: Scores = SCORES, seed: int = 3407) -> Summary:
    """As `pairwise_summary`, of scores."""
    labels, shares = zip(*Counter(row["label"] for row in rows).items(), strict=True)
    always = [
        [score_metrics({"label": label, "verdict": one}, scores) for label in labels]
        for one in range(scores[0], scores[1] + 1)
    ]
    best_of = {"exact_match": max, "mae": min, "reward": max, "no_verdict": min}
    baseline = {
        name: best(float(np.average([of_label[name] for of_label in one], weights=shares)) for one in always)
        for name, best in best_of.items()
    }
    scored = [row | score_metrics(row, scores) for row in rows]
    summary = _means(scored, [*best_of], seed)
    if pairs := pair_ranking(rows):
        summary |= {"pair_ranking": _mean(pairs, seed), "best_of_n": _mean(best_of_n(rows), seed)}
        constant = [value for value, _ in best_of_n([row | {"verdict": 0} for row in rows])]
        baseline |= {"pair_ranking": 0.5, "best_of_n": sum(constant) / len(constant)}
    return summary | {
        "by_source": _by("source", scored, POINTWISE, seed),
        "by_label": _by("label", scored, POINTWISE, seed),
        "baseline": baseline,
    }


def pair_ranking(rows: Sequence[Row]) -> list[Value]:
    """Of each pair of responses to one query with different true scores: 1 where the verdicts are in the same order,
    0.5 where they are equal, 0 where they are not or one is missing."""
    values: list[Value] = []
    for query, responses in _grouped("query", rows).items():
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
    """Of each query whose responses differ in true score: the chance that the response with the highest verdict is one
    of the truly best, where equal verdicts are drawn among; 0 without any verdict. RewardBench-2's accuracy."""
    values: list[Value] = []
    for query, responses in _grouped("query", rows).items():
        labels = [row["label"] for row in responses]
        if min(labels) == max(labels):
            continue
        highest = max((row["verdict"] for row in responses if row["verdict"] is not None), default=None)
        chosen = [row["label"] for row in responses if highest is not None and row["verdict"] == highest]
        values.append((chosen.count(max(labels)) / len(chosen) if chosen else 0.0, query))
    return values


# ---- means


def _means(rows: Sequence[Row], names: Sequence[str], seed: int) -> Summary:
    queries = [row["query"] for row in rows]
    columns = {name: [row[name] for row in rows] for name in (names if rows else ())}
    summary: Summary = {name: _mean([*zip(values, queries, strict=True)], seed) for name, values in columns.items()}
    return summary | {"n": len(rows), "num_contexts": len(set(queries))}


def _mean(values: Sequence[Value], seed: int) -> Summary:
    """Over the values that are numbers."""
    kept = [(value, query) for value, query in values if not math.isnan(value)]
    means, errors = bootstrap(np.array([[value] for value, _ in kept]).reshape(-1, 1), [q for _, q in kept], seed)
    return {"mean": float(means[0]), "se": float(errors[0])}


def _by(key: str, rows: Sequence[Row], names: Sequence[str], seed: int) -> dict[str, Summary]:
    parts = _grouped(key, rows)
    return {str(part): _means(parts[part], names, seed) for part in sorted(parts, key=str)}


def _grouped(key: str, rows: Sequence[Row]) -> dict[Hashable, list[Row]]:
    """In the order of first appearance."""
    parts: dict[Hashable, list[Row]] = {}
    for row in rows:
        parts.setdefault(row[key], []).append(row)
    return parts
