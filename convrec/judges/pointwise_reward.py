"""The reward of a pointwise judge, as verl calls it: answer text and true score -> reward.

True score 0 or 1: 1 for exactly that score, else 0. True score 2 to 4: 1 - |predicted - true| / 4. On another scale
the two lowest want exactly that score, and differences count in parts of the range. An answer without a readable score
in range earns `malformed`, 0 by default, whatever the truth.
"""

from collections.abc import Mapping
from numbers import Real

from convrec.base.errors import UserError
from convrec.judges.criteria import SCORES, Scores
from convrec.judges.verdict import get_truth, pointwise_reward, score_verdict


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: object,
    extra_info: Mapping | None = None,
    malformed: float = 0.0,
    **_: object,
) -> dict[str, float | int]:
    """Score one answer. `ground_truth`: {"helpfulness": score}, the number itself, or either as JSON.

    extra_info: `scores`, the lowest and the highest (0 and 4), and `in_thinking`, whether the prompt opened the
    thinking (no). Returns always the same keys, numbers only; -1 stands for no verdict. Raises UserError for a truth
    that is no whole number of the range: what a model writes may be wrong, data may not.
    """
    extra = extra_info or {}
    low, high = extra.get("scores", SCORES)
    true = true_score(ground_truth, (low, high))
    predicted = score_verdict(solution_str, (low, high), in_thinking=extra.get("in_thinking", False))
    return {
        "score": pointwise_reward(predicted, true, (low, high), malformed),
        "exact_match": int(predicted == true),
        "no_verdict": int(predicted is None),
        "predicted_helpfulness": -1 if predicted is None else predicted,
        "true_helpfulness": true,
    }


def true_score(ground_truth: object, scores: Scores = SCORES) -> int:
    low, high = scores
    value = get_truth(ground_truth, "helpfulness")
    if isinstance(value, bool) or not isinstance(value, Real) or value not in range(low, high + 1):
        raise UserError(
            f'ground truth {ground_truth!r} of a pointwise judge: expected {{"helpfulness": {low}-{high}}}, a whole '
            "number; convrec data judge writes it"
        )
    return int(float(value))
