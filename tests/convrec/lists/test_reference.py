"""The reference's parser, with its faults, compared with recorded cases."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convrec.lists.reference import parse_items_reference
from convrec.titles.item import Item


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ("Heat (1995)\nno item\n\nUp (2009)", [("Heat", 1995), ("Up", 2009)]),  # packed to the left
        ("(1000) Nights of Rain (2009)", [("Nights of Rain", 2009)]),  # every parenthesis is removed
        ("Up(2009)", []),  # a space before the year is required
        ("#Up (2009)", [("Up", 2009)]),  # marks are removed, even if they are not bullets
        ("Up_* (2009)", [("Up", 2009)]),
        ("2.Up (2009)", [("2.Up", 2009)]),  # numbering needs a space after it
        ("3) 3) Up (2009)", [("Up", 2009)]),  # repeated numbering is removed
        ("“Up” (2009)", [("“Up”", 2009)]),  # straight quotes only
        ("'Up' (2009)", [("Up", 2009)]),
    ],
)
def test_reference_parser_keeps_the_reference_faults(text, items):
    assert parse_items_reference(text) == [Item(*item) for item in items]


@given(st.text(max_size=60))
def test_no_text_makes_the_reference_parser_fail(text):
    assert all(isinstance(item, Item) for item in parse_items_reference(text))


def test_reference_parser_agrees_with_every_recorded_case(golden):
    for case in golden("parse_match_cases")["parse_cases"]:
        assert [list(item) for item in parse_items_reference(case["input"])] == case["output"]["recs"], case["input"]
