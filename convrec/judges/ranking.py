"""A pointwise judge as a ranker of the responses to one query: by pairs, and by the one that it would choose."""

import itertools
from collections.abc import Hashable, Iterator, Sequence

Value = tuple[float, Hashable]  # with its query


def pair_ranking(true: Sequence[int], verdicts: Sequence[int | None], contexts: Sequence[Hashable]) -> list[Value]:
    """Of each pair of responses to one query with different true scores: 1 where the verdicts are in the same order,
    0.5 where they are equal, 0 where they are not or one is missing."""
    values: list[Value] = []
    for context, places in _queries(contexts):
        for one, other in itertools.combinations(places, 2):
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
    for context, places in _queries(contexts):
        best = max(true[place] for place in places)
        if all(true[place] == best for place in places):
            continue
        given = [verdict for place in places if (verdict := verdicts[place]) is not None]
        chosen = [place for place in places if given and verdicts[place] == max(given)]
        right = sum(true[place] == best for place in chosen)
        values.append((right / len(chosen) if chosen else 0.0, context))
    return values


def constant_best_of_n(true: Sequence[int], contexts: Sequence[Hashable]) -> float:
    """Of a judge that gives all the same score."""
    values = best_of_n(true, [0] * len(true), contexts)
    return sum(value for value, _ in values) / len(values)


def _queries(contexts: Sequence[Hashable]) -> Iterator[tuple[Hashable, list[int]]]:
    places: dict[Hashable, list[int]] = {}
    for place, context in enumerate(contexts):
        places.setdefault(context, []).append(place)
    yield from places.items()
