"""A pointwise judge as a ranker of the responses to one query: by pairs, and by the one that it would choose."""

import itertools
from collections.abc import Hashable, Sequence

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
