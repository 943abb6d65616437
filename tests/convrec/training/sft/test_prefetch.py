"""Rows that a thread makes before they are read."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from convrec.base.errors import UserError
from convrec.training.sft.prefetch import PrefetchedRows


class Squares:
    """Row n is n * n, and made when `may_begin` says so; row 7 cannot be made."""

    def __init__(self) -> None:
        self.made: list[int] = []
        self.may_begin = threading.Event()

    def __len__(self) -> int:
        return 10

    def __getitem__(self, row: int) -> int:
        assert self.may_begin.wait(60)
        self.made.append(row)
        if row == 7:
            raise UserError("data.example", "row 7")
        return row * row


@pytest.fixture
def squares() -> Squares:
    return Squares()


@pytest.fixture
def rows(squares: Squares) -> Iterator[PrefetchedRows]:
    with ThreadPoolExecutor(max_workers=1) as executor:
        yield PrefetchedRows(squares, executor, num_ahead=3)
        squares.may_begin.set()


def wait_for_thread(rows: PrefetchedRows) -> None:
    rows.executor.submit(int).result(60)  # it comes after all that was submitted


def test_rows_are_prefetched_up_to_the_limit(rows: PrefetchedRows, squares: Squares) -> None:
    squares.may_begin.set()
    rows.expect([5, 2, 9, 0, 1])
    wait_for_thread(rows)
    assert squares.made == [5, 2, 9]
    assert rows[5] == 25
    wait_for_thread(rows)
    assert squares.made == [5, 2, 9, 0]
    assert [rows[row] for row in (2, 9, 0, 1)] == [4, 81, 0, 1]
    assert squares.made == [5, 2, 9, 0, 1]  # each once


def test_a_row_that_nobody_expected_is_made_when_it_is_read(rows: PrefetchedRows, squares: Squares) -> None:
    squares.may_begin.set()
    assert len(rows) == 10
    assert rows[3] == 9
    rows.expect([1, 2])
    assert rows[4] == 16
    assert rows[1] == 1
    assert sorted(squares.made) == [1, 2, 3, 4]


def test_another_order_drops_what_waits(rows: PrefetchedRows, squares: Squares) -> None:
    rows.expect([1, 2, 3])  # 1 is begun
    rows.expect([4])
    squares.may_begin.set()
    assert rows[4] == 16
    assert set(squares.made) <= {1, 4}


def test_a_row_that_cannot_be_made_fails_where_it_is_read(rows: PrefetchedRows, squares: Squares) -> None:
    squares.may_begin.set()
    rows.expect([7, 8])
    wait_for_thread(rows)
    assert rows[8] == 64
    with pytest.raises(UserError, match="row 7"):
        rows[7]
