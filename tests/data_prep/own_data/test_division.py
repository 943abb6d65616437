"""Which rule decides about a text with dividers. Whole cells are in test_cells.py."""

import pytest

from convrec.data.damage import BadRecord
from data_prep.own_data import division
from data_prep.own_data.division import RULES, KnownTexts, Piece, divide

TITLES = {"Dune", "Alien", "Love, Rosie", "Steins;Gate"}
KNOWN = KnownTexts(
    is_item=TITLES.__contains__, is_title=TITLES.__contains__, is_dated_item=lambda text: False, dated=False
)
UNDIVIDED = division._leave_undivided
ONLY_WAY = division._divide_in_the_only_way
TWO_READINGS = division._refuse_two_readings
WHOLE = division._leave_whole


@pytest.mark.parametrize(
    ("text", "is_entry", "rule", "items"),
    [
        ("Dune", False, UNDIVIDED, ["Dune"]),
        ("Love, Rosie", True, UNDIVIDED, ["Love, Rosie"]),
        ("Love, Rosie", False, ONLY_WAY, ["Love, Rosie"]),
        ("Love, Rosie; Dune, Alien", False, ONLY_WAY, ["Love, Rosie", "Dune", "Alien"]),
        ("Dune, Alien", True, ONLY_WAY, ["Dune", "Alien"]),
        ("Nowhere, Nobody", False, WHOLE, ["Nowhere, Nobody"]),
        ("Dune, Nowhere", True, WHOLE, ["Dune, Nowhere"]),
    ],
)
def test_the_first_rule_with_an_answer_decides(text: str, is_entry: bool, rule: object, items: list[str]) -> None:
    answers = {each: each(Piece(text, KNOWN, is_entry)) for each in RULES[: RULES.index(rule) + 1]}
    assert [each for each, answer in answers.items() if answer is not None] == [rule]
    assert divide(text, KNOWN, is_entry=is_entry) == answers[rule] == items


@pytest.mark.parametrize("text", ["Dune, Nowhere", "Nowhere; Nobody", "Dune & Alien", "Love, Rosie | Dune & Alien"])
def test_a_text_with_two_readings_is_refused(text: str) -> None:
    with pytest.raises(BadRecord, match="which can be one item or 2"):
        divide(text, KNOWN)


def test_semicolons_divide_where_one_part_is_a_title() -> None:
    assert divide("Dune; Nowhere, Nobody; Steins;Gate", KNOWN) == ["Dune", "Nowhere, Nobody", "Steins", "Gate"]
