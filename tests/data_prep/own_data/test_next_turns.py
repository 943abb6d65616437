"""Titles of the catalog in people's messages, and the rows that the next turns give."""

import pytest

from convrec.titles.catalog import Catalog
from convrec.titles.matching import Matcher
from data_prep.own_data.catalog import ItemIds
from data_prep.own_data.cells import ItemReader
from data_prep.own_data.next_turns import Mentions, iter_rows
from data_prep.own_data.rows import Turn

FILMS = [("Heat", 1995), ("Heat", 1986), ("Alien", 1979), ("Matrix, The", 1999), ("Blade Runner", 1982), ("It", 2017)]
FILMS += [("Despicable Me", 2010), ("Spider-Man", 2002), ("Suicide Squad", 2016), ("The Suicide Squad", 2021)]


def mentions(items: list) -> Mentions:
    catalog = Catalog.from_items(items)
    return Mentions(ItemReader(Matcher(catalog), ItemIds(catalog)))


DATED, UNDATED = mentions(FILMS), mentions([(title, None) for title, _ in FILMS[1:]])


@pytest.mark.parametrize(
    ("text", "titles"),
    [
        ("Heat (1995) and heat (1986), not Heat (1970)", [("Heat", 1995), ("Heat", 1986)]),
        ("1. **Alien (1979)** - a ship\n2. The Matrix (1999)", [("Alien", 1979), ("Matrix, The", 1999)]),
        ("Blade Runner, or Spider-Man.", [("Blade Runner", 1982), ("Spider-Man", 2002)]),
        ("the blade runner of the race", []),  # no capitals
        ('I mean "Alien".', [("Alien", 1979)]),
        ("Alien\nIt", [("Alien", 1979), ("It", 2017)]),  # a line each
        ("It is like Alien in space", []),  # single words are words
        ("Heat", []),  # two films
        ("Despicable Me 2, Blade Runner Two", []),  # another film
        ("Suicide Squad was garbage", []),  # one of two with one name
    ],
)
def test_titles_are_found_in_text(text: str, titles: list) -> None:
    assert DATED.find_in_text(text) == titles
    if "(" not in text and "Heat" not in text:
        assert UNDATED.find_in_text(text) == [(title, 0) for title, _ in titles]


def test_the_rows_of_a_conversation() -> None:
    texts = ["Hello", "I liked Heat (1995)", "Me too: Heat (1995), Alien (1979)", "Seen", "Alien (1979) is it", "ok"]
    texts += ["Blade Runner", "Or Spider-Man?", "Yes"]
    roles = ["assistant", "user", "assistant", "user", "assistant", "user", "assistant", "user", "assistant"]
    turns = [Turn(role, content) for role, content in zip(roles, texts, strict=True)]
    named = [DATED.find_in_text(turn.content) for turn in turns]
    rows = list(iter_rows({"split": "test"}, turns, named, DATED.matcher, also_user=True))
    assert [turns for _, turns in rows] == [turns[:2], turns[:6]]
    rows = [row for row, _ in rows]
    assert [row["ground_truth"] for row in rows] == [[["Alien", 1979]], [["Blade Runner", 1982], ["Spider-Man", 2002]]]
    assert [row["seen"] for row in rows] == [[["Heat"]], [["Heat"], ["Alien"]]]
    last = list(iter_rows({}, turns, named, DATED.matcher, also_user=False))[-1][0]
    assert last["ground_truth"] == [["Blade Runner", 1982]]
    assert rows[0]["split"] == "test"
