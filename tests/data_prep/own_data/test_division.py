"""Which rule splits a text with separators. Whole cells are in test_cells.py."""

import pytest

from data_prep.own_data import division
from data_prep.own_data.division import RULES, CatalogLookup, Piece, split_items
from tests.user_errors import refuses_record

TITLES = {"Dune", "Alien", "Love, Rosie", "Steins;Gate"}
LOOKUP = CatalogLookup(
    is_item=TITLES.__contains__, is_title=TITLES.__contains__, is_dated_item=lambda text: False, has_years=False
)
LEAVE_UNDIVIDED = division._leave_undivided
DIVIDE_UNAMBIGUOUSLY = division._divide_unambiguously
REFUSE = division._refuse_two_readings
LEAVE_WHOLE = division._leave_whole


@pytest.mark.parametrize(
    ("text", "is_entry", "rule", "items"),
    [
        ("Dune", False, LEAVE_UNDIVIDED, ["Dune"]),
        ("Love, Rosie", True, LEAVE_UNDIVIDED, ["Love, Rosie"]),
        ("Love, Rosie", False, DIVIDE_UNAMBIGUOUSLY, ["Love, Rosie"]),
        ("Love, Rosie; Dune, Alien", False, DIVIDE_UNAMBIGUOUSLY, ["Love, Rosie", "Dune", "Alien"]),
        ("Dune, Alien", True, DIVIDE_UNAMBIGUOUSLY, ["Dune", "Alien"]),
        ("Nowhere, Nobody", False, LEAVE_WHOLE, ["Nowhere, Nobody"]),
        ("Dune, Nowhere", True, LEAVE_WHOLE, ["Dune, Nowhere"]),
    ],
)
def test_the_first_rule_with_an_answer_decides(text: str, is_entry: bool, rule: object, items: list[str]) -> None:
    answers = {each: each(Piece(text, LOOKUP, is_entry)) for each in RULES[: RULES.index(rule) + 1]}
    assert [each for each, answer in answers.items() if answer is not None] == [rule]
    assert split_items(text, LOOKUP, is_entry=is_entry) == answers[rule] == items


@pytest.mark.parametrize("text", ["Dune, Nowhere", "Nowhere; Nobody", "Dune & Alien", "Love, Rosie | Dune & Alien"])
def test_a_text_with_two_readings_is_refused(text: str) -> None:
    with refuses_record("cell.one-or-several-items", "2 ("):
        split_items(text, LOOKUP)


def test_semicolons_divide_where_one_part_is_a_title() -> None:
    assert split_items("Dune; Nowhere, Nobody; Steins;Gate", LOOKUP) == ["Dune", "Nowhere, Nobody", "Steins", "Gate"]
