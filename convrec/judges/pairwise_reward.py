"""The reward of a pairwise judge, as verl calls it: 1 when the answer prefers the truly better response, else 0.

An answer that names neither, or both, earns `malformed`, 0 by default, whatever the truth.
"""

from collections.abc import Mapping

from convrec.base.errors import UserError
from convrec.judges.verdict import TIE, get_truth, preference_verdict


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: object,
    extra_info: Mapping | None = None,
    malformed: float = 0.0,
    **_: object,
) -> dict[str, float | int]:
    """Score one answer. `ground_truth`: {"preference": "A" | "B"}, the letter itself, or that mapping as JSON.

    extra_info: `in_thinking`, whether the prompt opened the thinking (no). Returns always the same keys, numbers only.
    `prefers_a`: its mean beside the share of truths that are A shows a judge's bias for a position. The truth "tie",
    which no training data have, is no verdict's: none equals it. Raises UserError for any other truth: what a model
    writes may be wrong, data may not.
    """
    true = true_preference(ground_truth)
    predicted = preference_verdict(solution_str, in_thinking=(extra_info or {}).get("in_thinking", False))
    right = int(predicted == true)
    return {
        "score": malformed if predicted is None else float(right),
        "accuracy": right,
        "no_verdict": int(predicted is None),
        "prefers_a": int(predicted == "A"),
        "true_a": int(true == "A"),
    }


def true_preference(ground_truth: object) -> str:
    value = get_truth(ground_truth, "preference")
    if value not in ("A", "B", TIE):
        raise UserError(
            f'ground truth {ground_truth!r} of a pairwise judge: expected {{"preference": "A" or "B"}}; '
            "convrec data judge writes it"
        )
    return str(value)
