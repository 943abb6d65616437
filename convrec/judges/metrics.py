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

from convrec.judges.criteria import SCORES, Scores
from convrec.judges.verdict import TIE, pointwise_reward
from convrec.statistics import bootstrap

OTHER = {"A": "B", "B": "A", TIE: TIE, None: None}
PAIRWISE = ("accuracy", "right_both_ways")  # by source and by label
POINTWISE = ("exact_match", "reward")
Summary = dict[str, Any]
Row = dict[str, Any]


# ---- pairwise


def comparison_metrics(label: str, verdict: str | None, swapped: str | None) -> dict[str, float]:
    """Of one row. label: "A" or "B"; verdict: "A", "B", "tie" or None; swapped: the one when A and B were swapped."""
    back = OTHER[swapped]  # in terms of the row's own order
    said = [v for v in (verdict, swapped) if v in ("A", "B")]
    right, wrong = [v == label for v in (verdict, back)], [v == OTHER[label] for v in (verdict, back)]
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


def pairwise_summary(
    true: Sequence[str],
    verdicts: Sequence[str | None],
    swapped_verdicts: Sequence[str | None],
    contexts: Sequence[Hashable],
    sources: Sequence[str] | None = None,
    seed: int = 3407,
) -> Summary:
    """true: the better response, "A" or "B", or "tie", of each row; contexts: the query, which errors resample.

    {name: {"mean", "se"}} and "n", "num_contexts", "by_source", "by_label", "ties", "baseline".
    """
    ties = [index for index, label in enumerate(true) if label == TIE]
    kept = [index for index, label in enumerate(true) if label != TIE]
    rows = [comparison_metrics(true[i], verdicts[i], swapped_verdicts[i]) for i in kept]
    queries, labels = [contexts[i] for i in kept], [true[i] for i in kept]
    share = sum(label == "A" for label in labels) / len(labels) if labels else math.nan
    constant = dict.fromkeys(comparison_metrics("A", "A", "A"), 0.0) | {"inconsistent": 1.0, "prefers_a": 1.0}
    constant |= {"accuracy": max(share, 1 - share), "accuracy_swapped": max(share, 1 - share)}
    return _means(rows, queries, seed) | {
        "by_source": _by([sources[i] for i in kept] if sources else [], rows, queries, PAIRWISE, seed),
        "by_label": _by(labels, rows, queries, PAIRWISE, seed),
        "ties": _ties([(verdicts[i], swapped_verdicts[i]) for i in ties], [contexts[i] for i in ties], seed),
        "baseline": constant,
    }


def _ties(said: Sequence[tuple[str | None, str | None]], contexts: Sequence[Hashable], seed: int) -> Summary:
    rows = [
        {
            "tied": float(None not in (verdict, swapped) and not (verdict in ("A", "B") and verdict == OTHER[swapped])),
            "no_verdict": sum(v is None for v in (verdict, swapped)) / 2,
        }
        for verdict, swapped in said
    ]
    return _means(rows, contexts, seed)


# ---- pointwise


def score_metrics(label: int, verdict: int | None, scores: Scores = SCORES) -> dict[str, float]:
    """Of one row: its true score, and the judge's."""
    return {
        "exact_match": float(verdict == label),
        "mae": math.nan if verdict is None else float(abs(verdict - label)),
        "reward": pointwise_reward(verdict, label, scores),
        "no_verdict": float(verdict is None),
    }


def pointwise_summary(
    true: Sequence[int],
    verdicts: Sequence[int | None],
    contexts: Sequence[Hashable],
    sources: Sequence[str] | None = None,
    scores: Scores = SCORES,
    seed: int = 3407,
) -> Summary:
    """As `pairwise_summary`, of scores."""
    rows = [score_metrics(label, verdict, scores) for label, verdict in zip(true, verdicts, strict=True)]
    labels, shares = zip(*Counter(true).items(), strict=True)
    always = [[score_metrics(label, one, scores) for label in labels] for one in range(scores[0], scores[1] + 1)]
    baseline = {
        name: best(float(np.average([of_label[name] for of_label in one], weights=shares)) for one in always)
        for name, best in (("exact_match", max), ("mae", min), ("reward", max), ("no_verdict", min))
    }
    summary = _means(rows, contexts, seed)
    pairs, best = pair_ranking(true, verdicts, contexts), best_of_n(true, verdicts, contexts)
    if pairs:
        summary["pair_ranking"] = _mean([value for value, _ in pairs], [c for _, c in pairs], seed)
        summary["best_of_n"] = _mean([value for value, _ in best], [c for _, c in best], seed)
        constant = [value for value, _ in best_of_n(true, [0] * len(true), contexts)]
        baseline |= {"pair_ranking": 0.5, "best_of_n": sum(constant) / len(constant)}
    return summary | {
        "by_source": _by(sources or [], rows, contexts, POINTWISE, seed),
        "by_label": _by(true, rows, contexts, POINTWISE, seed),
        "baseline": baseline,
    }


# ---- means


def _means(rows: Sequence[Row], contexts: Sequence[Hashable], seed: int) -> Summary:
    summary: Summary = {name: _mean([row[name] for row in rows], contexts, seed) for name in (rows[0] if rows else ())}
    return summary | {"n": len(rows), "num_contexts": len(set(contexts))}


def _mean(values: Sequence[float], contexts: Sequence[Hashable], seed: int) -> Summary:
    """Over the values that are numbers."""
    there = [not math.isnan(value) for value in values]
    kept = [context for context, keep in zip(contexts, there, strict=True) if keep]
    means, errors = bootstrap(np.array(values, float)[there][:, None], kept, seed)
    return {"mean": float(means[0]), "se": float(errors[0])}


def _by(
    names: Sequence[Hashable], rows: Sequence[Row], contexts: Sequence[Hashable], metrics: Sequence[str], seed: int
) -> dict[str, Summary]:
    return {
        str(name): _means([{key: rows[i][key] for key in metrics} for i in own], [contexts[i] for i in own], seed)
        for name, own in sorted(indexes_by(names).items(), key=lambda item: str(item[0]))
    }


Value = tuple[float, Hashable]  # with its query


def pair_ranking(true: Sequence[int], verdicts: Sequence[int | None], contexts: Sequence[Hashable]) -> list[Value]:
    """Of each pair of responses to one query with different true scores: 1 where the verdicts are in the same order,
    0.5 where they are equal, 0 where they are not or one is missing."""
    values: list[Value] = []
    for context, indexes in indexes_by(contexts).items():
        for one, other in itertools.combinations(indexes, 2):
            better, worse = (one, other) if true[one] > true[other] else (other, one)
            if true[better] == true[worse]:
                continue
            high, low = verdicts[better], verdicts[worse]
            value = 0.0 if high is None or low is None else 1.0 if high > low else 0.5 if high == low else 0.0
            values.append((value, context))
    return values


def best_of_n(true: Sequence[int], verdicts: Sequence[int | None], contexts: Sequence[Hashable]) -> list[Value]:
    """Of each query whose responses differ in true score: the chance that the response with the highest verdict is one
    of the truly best, where equal verdicts are drawn among; 0 without any verdict. RewardBench-2's accuracy."""
    values: list[Value] = []
    for context, indexes in indexes_by(contexts).items():
        best = max(true[index] for index in indexes)
        if all(true[index] == best for index in indexes):
            continue
        given = [verdict for index in indexes if (verdict := verdicts[index]) is not None]
        chosen = [index for index in indexes if given and verdicts[index] == max(given)]
        right = sum(true[index] == best for index in chosen)
        values.append((right / len(chosen) if chosen else 0.0, context))
    return values


def indexes_by(names: Sequence[Hashable]) -> dict[Hashable, list[int]]:
    """Name -> where it stands, in the order of first appearance."""
    indexes: dict[Hashable, list[int]] = {}
    for index, name in enumerate(names):
        indexes.setdefault(name, []).append(index)
    return indexes
