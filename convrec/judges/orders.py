"""The two orders of a pair of responses: finding their rows, and rewarding their answers together.

J1 (arXiv 2505.10320) gives 1 only if both orders are judged correctly. EIS-GRPO (J4R, arXiv 2505.13346) compares the
answers to both orders with each other: a judge that always says A then has answers that earn 1 and answers that earn 0,
whereas within each order all earn the same and give no gradient.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from convrec.base.errors import UserError
from convrec.data.damage import format_rows
from convrec.judges.prompt import format_query
from convrec.settings.choices import Orders

SEPARATE: Orders = "separate"
CONSISTENT: Orders = "consistent"


def pair_swapped_rows(rows: Sequence[Mapping[str, Any]], name: str) -> list[tuple[int, int]]:
    """Pair each row with the same comparison in the other order.

    Args:
        rows: rows of `judge_schema`.
        name: the file or files, for error messages.

    Returns:
        The indices of both rows of each pair, sorted.

    Raises:
        UserError: some rows have no partner.
    """
    from convrec.judges.schema import get_responses  # it imports pyarrow, which the settings must not

    waiting: dict[tuple[str, str, str], list[int]] = {}
    pairs = []
    for index, row in enumerate(rows):
        query = format_query(row["input"])
        first, second = get_responses(row)
        if others := waiting.get((query, second, first)):
            pairs.append((others.pop(), index))
        else:
            waiting.setdefault((query, first, second), []).append(index)
    if unpaired := [index for indices in waiting.values() for index in indices]:
        raise UserError(
            "judges.missing-order",
            f"{name}: {format_rows(unpaired, 'row')}: the other order is missing, but convrec.orders needs both. Make "
            f"the data with convrec data judge --both-orders, or set convrec.orders={SEPARATE}.",
        )
    return sorted(pairs)


def compute_consistent_scores(answers: Sequence[tuple[int, int]], infos: Sequence[Mapping[str, float]]) -> list[float]:
    """Compute rewards for the answers to both orders together.

    Args:
        answers: (pair, session) of each answer. Two answers with the same values are partners, one for each order; an
            answer without a partner counts as wrong.
        infos: the reward function's infos.

    Returns:
        `score` for an answer without a verdict; otherwise 1 if the answer and its partner are right, else 0.
    """
    right: dict[tuple[int, int], list[bool]] = {}
    for answer, info in zip(answers, infos, strict=True):
        right.setdefault(answer, []).append(bool(info["accuracy"]))
    return [
        info["score"] if info["no_verdict"] else float(len(right[answer]) == 2 and all(right[answer]))
        for answer, info in zip(answers, infos, strict=True)
    ]
