"""Cells with items: items joined in any way are split again, and ambiguous cells are refused with both readings."""

import contextlib
import json
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from convrec.data.damage import BadRecord
from convrec.titles.catalog import Catalog
from convrec.titles.item import format_item
from convrec.titles.matching import Matcher
from data_prep.own_data.catalog import ItemIds
from data_prep.own_data.cells import ItemReader
from tests.user_errors import refuses_record

TWO_READINGS = "cell.one-or-several-items"
TITLES = ("Heat", "Alien", "Dune", "M", "Lock, Stock and Two Smoking Barrels", "Steins;Gate", "1984", "Love, Rosie")
YEARS = (1995, 1979, 2021, 1931, 1998, 2011, 1984, 2014)


def reader(items: Any, ids: Any = None) -> ItemReader:
    catalog = Catalog.from_items(items, item_ids=ids)
    return ItemReader(Matcher(catalog), ItemIds(catalog))


DATED = reader(zip(TITLES, YEARS, strict=True))
UNDATED = reader([(title, None) for title in (*TITLES, "The Lord of the Rings", "1. FC Köln")])

JOINED = {
    "JSON": json.dumps,
    "Python": repr,
    "numpy": lambda parts: str(np.array(parts, dtype=object)),
    "lines": "\n".join,
    "Windows' lines": "\r\n".join,
    "old Mac's lines": "\r".join,
    "|": " | ".join,
    ";": "; ".join,
    ",": ", ".join,
    "numbers": lambda parts: "\n".join(f"{n}. {part}" for n, part in enumerate(parts, 1)),
    "numbers in a line": lambda parts: " ".join(f"{n}) {part}" for n, part in enumerate(parts, 1)),
    "numbers alone": lambda parts: "\n".join(f"{n}\t{part}" for n, part in enumerate(parts, 1)),
    "numbers in brackets": lambda parts: "\n".join(f"({n}) {part}" for n, part in enumerate(parts, 1)),
    "numbers and colons": lambda parts: "\n".join(f"{n}: {part}" for n, part in enumerate(parts, 1)),
    "numbers without a space": lambda parts: "\n".join(f"{n}.{part}" for n, part in enumerate(parts, 1)),
    "letters": lambda parts: "\n".join(f"{letter}) {part}" for letter, part in zip("abcdefghi", parts, strict=False)),
    "a numpy array's name": lambda parts: f"array({list(parts)!r}, dtype=object)",
    "bullets": lambda parts: "\n".join(f"- {part}" for part in parts),
    "commas at the lines' ends": ",\n".join,
}
OTHER_MARKS = (" and ", " & ", " / ", " - ", "\t", "<br>", "\\n", " • ", "、", "；")
ROWS = st.lists(st.sampled_from(range(len(TITLES))), min_size=2, max_size=6, unique=True)


@pytest.mark.parametrize("way", JOINED)
@settings(max_examples=40, deadline=None)
@given(rows=ROWS)
def test_items_joined_in_any_way_come_apart(way: str, rows: list[int]) -> None:
    titles, lines = [TITLES[row] for row in rows], [format_item(TITLES[row], YEARS[row]) for row in rows]
    assume("," not in JOINED[way]("ab") or "1984" not in titles[1:])  # "Heat, 1984" may be Heat of that year
    assert DATED.read_items(JOINED[way](lines)) == [(TITLES[row], YEARS[row]) for row in rows]
    assert DATED.read_titles(JOINED[way](lines)) == titles
    assert DATED.read_titles(JOINED[way](titles)) == titles
    assert [item.title for item in UNDATED.read_items(JOINED[way](titles))] == titles
    assert UNDATED.read_titles(JOINED[way](titles)) == titles


@pytest.mark.parametrize("way", sorted({*JOINED} - {",", ";", "commas at the lines' ends"}))
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), rows=ROWS)
def test_items_outside_the_catalog_come_apart_too(way: str, seed: int, rows: list[int]) -> None:
    others = [f"Qwx {number} Zjk" for number in random.Random(seed).sample(range(100, 1000), 3)]
    titles = [*(TITLES[row] for row in rows), *others]
    random.Random(seed).shuffle(titles)
    assert UNDATED.read_titles(JOINED[way](titles)) == titles
    lines = [format_item(title, 2001) for title in titles]
    assert [item.title for item in DATED.read_items(JOINED[way](lines))] == titles


@given(st.text(max_size=60), st.sampled_from([DATED, UNDATED]))
def test_no_text_makes_the_reader_fail(cell: str, of: ItemReader) -> None:
    for read in (of.read_items, of.read_titles):
        with contextlib.suppress(BadRecord):
            assert all(read(cell))


@pytest.mark.parametrize(
    ("cell", "titles"),
    [  # among them the table of docs/how-to/item-cells.md
        ("Heat (1995)\nAlien (1979)", ["Heat", "Alien"]),
        ("1. Heat (1995)\n2. **Alien (1979)** - a ship", ["Heat", "Alien"]),
        ("Dune (2021), Alien (1979)", ["Dune", "Alien"]),
        ("Dune (2021), Nowhere (1999)", ["Dune", "Nowhere"]),
        ("Dune (2021), Heat (1995), and Alien (1979)", ["Dune", "Heat", "Alien"]),
        ("{Dune (2021),Heat (1995)}", ["Dune", "Heat"]),  # Postgres
        ("set()", []),
        ("Lock, Stock and Two Smoking Barrels (1998), Heat (1995)", ["Lock, Stock and Two Smoking Barrels", "Heat"]),
        ("Nowhere, Nobody (1999)", ["Nowhere, Nobody"]),
        ('[["Dune", 2021], {"title": "Heat", "year": 1995}]', ["Dune", "Heat"]),
        ('{"title": "Heat", "year": 1995}', ["Heat"]),
        ("[]", []),
        (" ", []),
        (["Heat (1995) | Alien (1979)"], ["Heat", "Alien"]),
        (["Nowhere | Nobody (1979)"], ["Nowhere | Nobody"]),  # an entry of a list can be a title with a bar
        (["Heat (1995)\nAlien (1979)", ["Dune", 2021]], ["Heat", "Alien", "Dune"]),
    ],
)
def test_cells_of_a_catalog_with_years(cell: Any, titles: list[str]) -> None:
    assert [item.title for item in DATED.read_items(cell)] == titles
    assert DATED.read_titles(cell) == titles


@pytest.mark.parametrize(
    ("cell", "titles"),
    [
        ("Dune\nHeat\nAlien", ["Dune", "Heat", "Alien"]),
        ("['Dune', 'Alien']", ["Dune", "Alien"]),
        ("Dune; Nowhere", ["Dune", "Nowhere"]),
        ("The Lord of the\nRings", ["The Lord of the Rings"]),  # a line that was broken
        ("1. FC Köln", ["1. FC Köln"]),
        ("1. 1. FC Köln\n2. Heat", ["1. FC Köln", "Heat"]),
        ("Nowhere, Nobody", ["Nowhere, Nobody"]),  # nothing that the catalog knows is in it
    ],
)
def test_cells_of_a_catalog_without_years(cell: str, titles: list[str]) -> None:
    assert UNDATED.read_titles(cell) == [item.title for item in UNDATED.read_items(cell)] == titles


@pytest.mark.parametrize(
    ("of", "cell", "code", "value"),
    [
        (DATED, "Alien, Heat (1995)", TWO_READINGS, "2 (Alien | Heat (1995))"),
        (DATED, "Dune, Alien", TWO_READINGS, "2 (Dune | Alien)"),
        (UNDATED, "Dune, Nowhere", TWO_READINGS, "2 (Dune | Nowhere)"),
        *((UNDATED, f"Dune{mark}Alien", TWO_READINGS, "2 (Dune | Alien)") for mark in OTHER_MARKS),
        (UNDATED, "- Dune - Alien", TWO_READINGS, "2 (Dune | Alien)"),
        (UNDATED, "Nowhere; Nobody", TWO_READINGS, "2 (Nowhere | Nobody)"),
        (DATED, "Heat (1995) Alien (1979)", "cell.two-years", "'Heat (1995) Alien (1979)'"),
        (DATED, "Heat (1995) - Alien", "cell.ignored-text", "'- Alien'"),
        (DATED, "Heat (1995) and Alien", "cell.ignored-text", "'and Alien'"),
        (DATED, "['Heat (1995)', 'Alien (1979)", "cell.broken-list", "Alien (1979)"),
        (DATED, ["Heat (1995)", "Dune"], "cell.missing-year", "'Dune'"),
    ],
)
def test_an_ambiguous_cell_is_refused_with_both_readings(of: ItemReader, cell: Any, code: str, value: str) -> None:
    with refuses_record(code, value):
        of.read_items(cell)


def test_separator_of_catalog_items_splits_no_other_title() -> None:
    for title in ("Dune and Nowhere", "Nowhere / Nobody", "Fire & Ice", "Face/Off"):
        assert UNDATED.read_titles(title) == UNDATED.read_titles([title]) == [title]
    assert UNDATED.read_titles(["Dune and Alien"]) == ["Dune and Alien"]  # as the message suggests
    both = reader([("Dune", None), ("Alien", None), ("Dune & Alien", None)])
    assert both.read_titles("Dune & Alien") == ["Dune & Alien"]


def test_a_title_that_is_all_of_another_two() -> None:
    both = reader([("Love", None), ("Rosie", None), ("Love, Rosie", None)])
    with refuses_record(TWO_READINGS, "2 (Love | Rosie)"):
        both.read_titles("Love, Rosie")
    assert both.read_titles(["Love, Rosie"]) == ["Love, Rosie"]  # as the message suggests


def test_ids_are_items_too() -> None:
    of = reader([("Heat", 1995), ("Dune", 2021)], ["tt0113277", "tt1160419"])
    for cell in ("tt0113277, tt1160419", "tt0113277\ntt1160419", "['tt0113277', 'tt1160419']"):
        assert of.read_items(cell) == [("Heat", 1995), ("Dune", 2021)]


@pytest.mark.parametrize(
    "cell", ["Star Wars (1977)", ["Haet (1995)"], [["Star Wars", 1977]], "Haet (1995)|Star Wars (1977)"]
)
def test_seen_item_found_only_with_its_year_is_seen_by_reward(cell: Any) -> None:
    films = reader([("Star Wars: Episode IV - A New Hope", 1977), ("Heat", 1995)])
    titles = films.read_titles(cell)
    wanted = {0: "Star" in str(cell), 1: "Haet" in str(cell)}
    assert films.matcher.seen_rows(titles) == [row for row, is_seen in wanted.items() if is_seen]


def test_brackets_and_quotes_of_a_list_are_no_part_of_titles() -> None:
    for cell in ("[Heat (1995), Alien (1979)]", '"Heat (1995)", "Alien (1979)"', "[('Heat', 1995), ('Alien', 1979)]"):
        assert [item.title for item in DATED.read_items(cell)] == ["Heat", "Alien"]
    films = reader([("Heat", None), ("Alien", None), ("[Rec]", None), ("'71", None)])
    for cell in ("[Heat, Alien]", '"Heat", "Alien"', "'Heat', 'Alien'", '"Heat"\n"Alien"'):
        assert [item.title for item in films.read_items(cell)] == ["Heat", "Alien"], cell
        assert films.read_titles(cell) == ["Heat", "Alien"], cell
    for title in ("[Rec]", "'71"):
        assert [item.title for item in films.read_items(title)] == [title]


@pytest.mark.parametrize("cell", ["None", "nan", "NaN", "null"])
def test_what_programs_write_for_an_empty_cell_is_no_item(cell: str) -> None:
    assert (UNDATED.read_items(cell), UNDATED.read_titles(cell), DATED.read_items(cell)) == ([], [], [])
    assert [item.title for item in reader([("Null", None)]).read_items("null")] == ["null"]
