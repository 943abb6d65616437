"""Marked lists and tables, for a page or a terminal."""

import math

from convrec.report.page import (
    HIT,
    MISS,
    NOT_AN_ITEM,
    OUT_OF_CATALOG,
    REPEATED,
    SEEN,
    format_table,
    make_table_row,
    mark_list,
)
from convrec.titles.catalog import Catalog
from convrec.titles.matching import Matcher


def test_each_line_of_a_list_gets_its_marks() -> None:
    matcher = Matcher(Catalog.from_items([("Alien", 1979), ("Heat", 1995), ("Toy Story", 1995)]))
    text = "Toy Story (1995)\nAlien (1979)\nAlien (1979)\nNo Such Film (2001)\n\nSorry!\nHeat (1995)\nAlien (1979)"
    lines = mark_list(text, matcher, [("Alien", "1979")], ["Toy Story"], num_items=6)
    assert [line.marks for line in lines] == [
        (SEEN,),
        (HIT,),
        (REPEATED,),
        (OUT_OF_CATALOG,),
        (NOT_AN_ITEM,),
        (MISS,),
    ]


def test_the_terminal_table_is_aligned_and_shows_errors() -> None:
    summary = {
        "recall@5": {"mean": 0.125, "se": 0.01},
        "ndcg@5": {"mean": 0.0625, "se": math.nan},
        "catalog_hit_ratio": 0.5,
        "distinct_items": 1234,
        "list_length_errors": 2,
        "n": 40,
        "repeats_per_list": 0.25,
    }
    text = format_table([make_table_row("popularity", summary, [5]), make_table_row("sft", summary, [5])])
    assert text.splitlines() == [
        "                       popularity             sft",
        "Recall@5           0.1250 ±0.0100  0.1250 ±0.0100",
        "NDCG@5                  0.0625 ±–       0.0625 ±–",
        "in catalog                 0.5000          0.5000",
        "distinct items              1,234           1,234",
        "wrong list length         2 of 40         2 of 40",
        "repeats in a list          0.2500          0.2500",
    ]
