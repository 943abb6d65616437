"""Which rows are the two orders of one pair, and what their answers earn together."""

import pytest

from convrec.base.errors import UserError
from convrec.judges.orders import consistent_scores, pair_swapped_rows
from convrec.judges.schema import make_row, swapped_row


def row(query: str, first: str = "x", second: str = "y") -> dict:
    return make_row([{"role": "user", "content": query}], [first, second], "A", "")


def test_pairs_are_found_wherever_they_stand() -> None:
    rows = [row("a"), row("b"), swapped_row(row("a")), row("a", "z"), swapped_row(row("b")), swapped_row(row("a", "z"))]
    assert pair_swapped_rows(rows, "train.parquet") == [(0, 2), (1, 4), (3, 5)]


def test_a_row_in_one_order_alone_is_named_with_the_fix() -> None:
    rows = [row("a"), swapped_row(row("a")), row("b"), row("a")]
    with pytest.raises(UserError, match=r"train\.parquet: rows 2, 3 are there in one order alone.*--both-orders"):
        pair_swapped_rows(rows, "train.parquet")


def info(accuracy: int, no_verdict: int = 0, score: float = 0.0) -> dict[str, float]:
    return {"accuracy": accuracy, "no_verdict": no_verdict, "score": score}


def test_an_answer_earns_where_its_partner_is_right_too() -> None:
    """Pair 0: session 0 right both ways, session 1 right one way. Pair 1: one answer malformed, one alone."""
    answers = [(0, 0), (0, 1), (0, 0), (0, 1), (1, 0), (1, 0), (1, 1)]
    infos = [info(1), info(1), info(1), info(0), info(0, 1, -1.0), info(1), info(1)]
    assert consistent_scores(answers, infos) == [1, 0, 1, 0, -1, 0, 0]
