"""Rows that are the two orders of one pair, and the joint reward of their answers."""

from convrec.judges.orders import compute_consistent_scores, pair_swapped_rows
from convrec.judges.schema import make_row, swap_row
from tests.user_errors import refuses


def row(query: str, first: str = "x", second: str = "y") -> dict:
    return make_row([{"role": "user", "content": query}], [first, second], "A", "")


def test_pairs_are_found_in_any_position() -> None:
    rows = [row("a"), row("b"), swap_row(row("a")), row("a", "z"), swap_row(row("b")), swap_row(row("a", "z"))]
    assert pair_swapped_rows(rows, "train.parquet") == [(0, 2), (1, 4), (3, 5)]


def test_rows_without_the_other_order_are_named() -> None:
    rows = [row("a"), swap_row(row("a")), row("b"), row("a")]
    with refuses("judges.missing-order", "train.parquet", "rows 2, 3", "--both-orders"):
        pair_swapped_rows(rows, "train.parquet")


def info(accuracy: int, no_verdict: int = 0, score: float = 0.0) -> dict[str, float]:
    return {"accuracy": accuracy, "no_verdict": no_verdict, "score": score}


def test_an_answer_earns_1_only_if_its_partner_is_also_right() -> None:
    """Pair 0: session 0 is right in both orders, session 1 in one. Pair 1: one answer malformed, one unpaired."""
    answers = [(0, 0), (0, 1), (0, 0), (0, 1), (1, 0), (1, 0), (1, 1)]
    infos = [info(1), info(1), info(1), info(0), info(0, 1, -1.0), info(1), info(1)]
    assert compute_consistent_scores(answers, infos) == [1, 0, 1, 0, -1, 0, 0]
