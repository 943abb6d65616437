"""The reward of a pointwise judge, as verl calls it.

If the true score is 0 or 1, only that exact score earns 1, any other 0. If it is 2 to 4, an answer earns 1 - |predicted
- true| / 4. On another scale, the two lowest scores must be exact, and differences are divided by the range. An answer
without a valid score earns `malformed`, 0 by default, whatever the ground truth.
"""

from collections.abc import Mapping
from numbers import Real

from convrec.base.errors import UserError
from convrec.judges.criteria import SCORES, Scores
from convrec.judges.verdict import get_truth, parse_score_verdict, pointwise_reward


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: object,
    extra_info: Mapping | None = None,
    malformed: float = 0.0,
    **_: object,
) -> dict[str, float | int]:
    """Score one answer.

    Args:
        data_source: not used.
        solution_str: the answer.
        ground_truth: {"helpfulness": score}, the number, or either as JSON.
        extra_info: `scores`, the lowest and the highest (default 0 and 4), and `in_thinking`, whether the prompt opens
            the thinking (default False).
        malformed: the score of an answer without a verdict.

    Returns:
        Always the same keys, numbers only; -1 stands for no verdict.

    Raises:
        UserError: the ground truth is not a whole number in the range. A model's answer may be wrong, data may not.
    """
    extra = extra_info or {}
    low, high = extra.get("scores", SCORES)
    true = parse_score(ground_truth, (low, high))
    predicted = parse_score_verdict(solution_str, (low, high), in_thinking=extra.get("in_thinking", False))
    return {
        "score": pointwise_reward(predicted, true, (low, high), malformed),
        "exact_match": int(predicted == true),
        "no_verdict": int(predicted is None),
        "predicted_helpfulness": -1 if predicted is None else predicted,
        "true_helpfulness": true,
    }


def parse_score(ground_truth: object, scores: Scores = SCORES) -> int:
    """Read the true score.

    Raises:
        UserError: the ground truth is not a whole number in the range.
    """
    low, high = scores
    value = get_truth(ground_truth, "helpfulness")
    if isinstance(value, bool) or not isinstance(value, Real) or value not in range(low, high + 1):
        raise UserError(
            "judges.invalid-score",
            f'ground truth {ground_truth!r} of a pointwise judge: expected {{"helpfulness": {low}-{high}}} with a '
            "whole number, as `convrec data judge` writes it.",
        )
    return int(float(value))
