"""Titles that extend another one: inserted letters are typos only as far as wrong letters are."""

import pytest

from convrec.titles.catalog import Catalog
from convrec.titles.matching import Matcher


@pytest.mark.parametrize(
    ("written", "title"),
    [
        ("The Animatrix", "The Matrix"),
        ("Matrixena", "Matrix"),
        ("Dwarvenaut", "Dwarven"),
        ("The Death of Stalingrad", "The Death of Stalin"),
    ],
)
def test_three_more_letters_make_another_title(written: str, title: str) -> None:
    for query, catalog_title in ((written, title), (title, written)):
        matcher = Matcher(Catalog.from_items([(catalog_title, 2003), ("Heat", 1995)]))
        assert matcher.identify(query, 2003).index == -1
        assert matcher.identify(catalog_title, 2003).index == 0


@pytest.mark.parametrize("written", ["The Matrixx", "The Mattrixx", "The Mtrix", "The Matirx"])
def test_typos_are_still_typos(written: str) -> None:
    assert Matcher(Catalog.from_items([("The Matrix", 1999)])).identify(written, 1999).index == 0
