"""The reward of a pointwise judge, as verl calls it: answer text and true score -> reward.

True score 0 or 1: 1 for exactly that score, else 0. True score 2 to 4: 1 - |predicted - true| / 4. An answer without a
readable score in range earns 0 whatever the truth.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from numbers import Real

from convrec.errors import UserError
from convrec.judges.verdict import MAX_SCORE, score_verdict


def pointwise_reward(predicted: int | None, true: int) -> float:
    """predicted: None for no verdict. In [0, 1]; 1 only for the true score."""
    if predicted is None:
        return 0.0
    if true <= 1:  # a bad response called mediocre is as wrong as one called excellent
        return float(predicted == true)
    return 1 - abs(predicted - true) / MAX_SCORE


def compute_score(
    data_source: str, solution_str: str, ground_truth: object, extra_info: Mapping | None = None, **_: object
) -> dict[str, float | int]:
    """Score one answer. `ground_truth`: {"helpfulness": 0-4}, the number itself, or either as JSON.

    Returns always the same keys, numbers only; -1 stands for no verdict. Raises UserError for a truth that is no
    whole number from 0 to 4: what a model writes may be wrong, data may not.
    """
    true = true_score(ground_truth)
    predicted = score_verdict(solution_str)
    return {
        "score": pointwise_reward(predicted, true),
        "exact_match": int(predicted == true),
        "no_verdict": int(predicted is None),
        "predicted_helpfulness": -1 if predicted is None else predicted,
        "true_helpfulness": true,
    }


def true_score(ground_truth: object) -> int:
    value = ground_truth
    if isinstance(value, str):
        with suppress(json.JSONDecodeError):  # what is no number either is refused below
            value = json.loads(value)
    if isinstance(value, Mapping):
        value = value.get("helpfulness")
    if isinstance(value, bool) or not isinstance(value, Real) or value not in range(MAX_SCORE + 1):
        raise UserError(
            f'ground truth {ground_truth!r} of a pointwise judge: expected {{"helpfulness": 0-4}}, a whole number; '
            "python -m data_prep.judge writes it"
        )
    return int(float(value))
