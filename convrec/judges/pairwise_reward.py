"""The reward of a pairwise judge, as verl calls it: 1 if the answer prefers the truly better response, else 0.

An answer that names neither or both earns `malformed`, 0 by default, whatever the ground truth.
"""

from collections.abc import Mapping

from convrec.base.errors import UserError
from convrec.judges.verdict import TIE, get_truth, parse_preference_verdict


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
        ground_truth: {"preference": "A" | "B"}, the letter, or the mapping as JSON. No answer matches "tie", which
            occurs only in test data.
        extra_info: `in_thinking`, whether the prompt opens the thinking (default False).
        malformed: the score of an answer without a verdict.

    Returns:
        Always the same keys, numbers only. The means of `prefers_a` and `true_a` show a position bias.

    Raises:
        UserError: the ground truth is invalid. A model's answer may be wrong, data may not.
    """
    true = parse_preference(ground_truth)
    predicted = parse_preference_verdict(solution_str, in_thinking=(extra_info or {}).get("in_thinking", False))
    right = int(predicted == true)
    return {
        "score": malformed if predicted is None else float(right),
        "accuracy": right,
        "no_verdict": int(predicted is None),
        "prefers_a": int(predicted == "A"),
        "true_a": int(true == "A"),
    }


def parse_preference(ground_truth: object) -> str:
    """Read the true preference: "A", "B" or "tie".

    Raises:
        UserError: the ground truth is none of these.
    """
    value = get_truth(ground_truth, "preference")
    if value not in ("A", "B", TIE):
        raise UserError(
            "judges.invalid-preference",
            f'ground truth {ground_truth!r} of a pairwise judge: expected {{"preference": "A" or "B"}}, as `convrec '
            "data judge` writes it.",
        )
    return str(value)
