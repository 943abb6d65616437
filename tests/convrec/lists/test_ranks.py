"""The lines of a response and their ranks."""

import pytest

from convrec.lists.ranks import parse_items, replace_line
from convrec.titles.item import Item


def test_delimiter_is_any_character():
    assert parse_items("Heat (1995)|\n|Up (2009)", delimiter="|") == [Item("Heat", 1995), Item("Up", 2009)]


@pytest.mark.parametrize(
    ("text", "rank", "delimiter", "expected"),
    [
        ("\n\n A \n\nB\n", 0, "\n", "\n\n X \n\nB\n"),
        ("\n\n A \n\nB\n", 1, "\n", "\n\n A \n\nX\n"),
        ("A | B |", 1, "|", "A | X |"),
        ("A; A", 1, ";", "A; X"),
        ("\u00a0\nB", 1, "\n", "\u00a0\nX"),  # a no-break space is text
        ("\u00a0A\nB", 0, "\n", "X\nB"),
    ],
)
def test_a_line_is_replaced_in_place(text, rank, delimiter, expected):
    assert replace_line(text, rank, "X", delimiter) == expected
