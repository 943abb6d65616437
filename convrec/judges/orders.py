"""Both orders of a pair of responses, as what they are together: which rows they are, and what the two earn.

J1 (arXiv 2505.10320) gives 1 only where both orders are judged rightly. EIS-GRPO (J4R, arXiv 2505.13346) compares the
answers to both orders with each other: a judge that always says A then has answers that earn 1 and answers that earn 0,
where in each order alone all earn the same and nothing is learned.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from convrec.base.errors import UserError
from convrec.data.damage import named_rows
from convrec.judges.prompt import query_text
from convrec.settings.choices import Orders

SEPARATE: Orders = "separate"
CONSISTENT: Orders = "consistent"


def pair_swapped_rows(rows: Sequence[Mapping[str, Any]], name: str) -> list[tuple[int, int]]:
    """The indices of each row and of the same with A and B swapped. name: of the file or files, for the error.

    Raises UserError for rows that are there in one order alone.
    """
    from convrec.judges.schema import get_responses  # pyarrow; the settings import this module at once

    waiting: dict[tuple[str, str, str], list[int]] = {}
    pairs = []
    for index, row in enumerate(rows):
        query = query_text(row["input"])
        first, second = get_responses(row)
        if others := waiting.get((query, second, first)):
            pairs.append((others.pop(), index))
        else:
            waiting.setdefault((query, first, second), []).append(index)
    if alone := [index for indices in waiting.values() for index in indices]:
        raise UserError(
            f"{name}: {named_rows(alone, 'row')} are there in one order alone, and convrec.orders needs both: make the "
            f"data with convrec data judge --both-orders, or set convrec.orders={SEPARATE}"
        )
    return sorted(pairs)


def consistent_scores(answers: Sequence[tuple[int, int]], infos: Sequence[Mapping[str, float]]) -> list[float]:
    """Rewards where the answers to both orders count together: `score` where there is no verdict, else 1 where this
    answer and its partner are right, else 0.

    answers: (pair, session): the answers of a pair with one session are partners, one to each order. infos: what the
    reward returned for each. An answer without a partner cannot be right.
    """
    right: dict[tuple[int, int], list[bool]] = {}
    for answer, info in zip(answers, infos, strict=True):
        right.setdefault(answer, []).append(bool(info["accuracy"]))
    return [
        info["score"] if info["no_verdict"] else float(len(right[answer]) == 2 and all(right[answer]))
        for answer, info in zip(answers, infos, strict=True)
    ]
