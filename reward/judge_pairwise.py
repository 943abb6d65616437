"""The reward of a pairwise judge, as verl calls it: 1 when the answer prefers the truly better response, else 0.

An answer that names neither, or both, earns 0 whatever the truth.
"""

import json
from collections.abc import Mapping
from contextlib import suppress

from convrec.errors import UserError
from convrec.judges.verdict import preference_verdict


def compute_score(
    data_source: str, solution_str: str, ground_truth: object, extra_info: Mapping | None = None, **_: object
) -> dict[str, float | int]:
    """Score one answer. `ground_truth`: {"preference": "A" | "B"}, the letter itself, or that mapping as JSON.

    Returns always the same keys, numbers only. `prefers_a`: its mean beside the share of truths that are A shows a
    judge's bias for a position. The truth "tie", which data_prep.judge leaves out, earns nothing: no verdict equals it.
    Raises UserError for any other truth: what a model writes may be wrong, data may not.
    """
    true = true_preference(ground_truth)
    predicted = preference_verdict(solution_str)
    right = int(predicted == true)
    return {
        "score": float(right),
        "accuracy": right,
        "no_verdict": int(predicted is None),
        "prefers_a": int(predicted == "A"),
        "true_a": int(true == "A"),
    }


def true_preference(ground_truth: object) -> str:
    value = ground_truth
    if isinstance(value, str) and value.lstrip().startswith("{"):
        with suppress(json.JSONDecodeError):  # refused below
            value = json.loads(value)
    if isinstance(value, Mapping):
        value = value.get("preference")
    if value not in ("A", "B", "tie"):
        raise UserError(
            f'ground truth {ground_truth!r} of a pairwise judge: expected {{"preference": "A" or "B"}}; '
            "python -m data_prep.judge writes it"
        )
    return str(value)
