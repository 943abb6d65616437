"""Catalogs without years: titles alone decide, and equal years are no evidence."""

import pytest

from convrec.lists.ranks import parse_items
from convrec.titles.catalog import Catalog
from convrec.titles.item import parse_item
from convrec.titles.matching import Matcher
from tests.user_errors import refuses

UNDATED = [("Oak Desk (2020)", None), ("Blue Lamp", None), ("Kettle 2", None), ("Kettle 3", None), ("Blue Lamps", "")]


@pytest.mark.parametrize(
    ("written", "row"),
    [
        ("Oak Desk (2020)", 0),
        ("oak  desk (2020)", 0),
        ("Oak Desk", -1),
        ("Oak Desk (2021)", -1),  # its year is part of the title
        ("The Blue Lamp", 1),
        ("Blue Lamp (1999)", 1),  # the model added a year
        ("Blue Lamp (1999) (2001)", 1),
        ("Blue Lamp (1999) deluxe", -1),
        ("Kettle II", 2),
        ("Kettle 4", -1),
        ("Blue Lmap", -1),  # ratio 88.9 < 90; SAME_YEAR would lift it above
        ("Blue Lampss", 4),  # ratio 2 * 10 / 21 = 95.2 with `Blue Lamps`
    ],
)
def test_items_without_years_are_found_by_title(written, row):
    matcher = Matcher(Catalog.from_items(UNDATED))
    assert matcher.identify(*parse_item(written, dated=False)).index == row


def test_relevance_without_years():
    matcher = Matcher(Catalog.from_items(UNDATED))
    text = "1. blue lamp\nKettle 2\nBlue Lamp\nUnknown Chair\nOak Desk (2020)\nKettle 3"
    truth = [["Blue Lamp", ""], ["Kettle 2", None], ["Kettle 3", "2001"]]
    seen = ["kettle ii", "Oak Desk (2020)"]
    result = matcher.match(parse_items(text, dated=False), truth, seen)
    assert result.relevance == [1, 0, 0, 0, 0, 1]  # Kettle 2 and the desk were seen, the lamp repeats
    assert result.seen == [False, True, False, False, True, False]
    assert result.duplicate == [False, False, True, False, False, False]
    assert result.in_catalog == [True, True, True, False, True, True]


def test_wrong_year_hides_neither_seen_title_nor_repeat():
    matcher = Matcher(Catalog.from_items(UNDATED))
    result = matcher.match(parse_items("Blue Lamp (1999)\nKettle 3\nBlue Lamp", dated=False), [], ["Kettle 3 (2001)"])
    assert result.in_catalog == [True, True, True]
    assert result.seen == [False, True, False]
    assert result.duplicate == [False, False, True]


def test_numbers_and_years_around_a_title_are_stripped():
    matcher = Matcher(Catalog.from_items(UNDATED))
    assert matcher.identify(*parse_item("1: 2: Blue Lamp (1999)", dated=False)).index == 1


def test_reference_matching_needs_years():
    with refuses("matching.missing-years", "`reference`"):
        Matcher(Catalog.from_items(UNDATED), "reference")


@pytest.mark.parametrize("looping", ["9" * 5000, "1: " * 2000 + "x", "A " + "(1999) " * 2000, "Part 1 " * 1000])
@pytest.mark.parametrize("mode", ["exact", "fuzzy"])
def test_the_text_of_a_looping_model_is_not_a_title(looping, mode):
    for items in ([("Heat", 1995)], UNDATED):
        matcher = Matcher(Catalog.from_items(items), mode)
        result = matcher.match_lines([f"{looping} (1995)", looping], [("Heat", 1995)], [looping])
        assert result.in_catalog == [False, False]
