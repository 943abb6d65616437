"""Titles that begin or end as another one does: letters too many are typos only as far as wrong ones are."""

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
def test_three_letters_more_make_another_title(written: str, title: str) -> None:
    for one, other in ((written, title), (title, written)):
        matcher = Matcher(Catalog.from_items([(other, 2003), ("Heat", 1995)]))
        assert matcher.identify(one, 2003).index == -1
        assert matcher.identify(other, 2003).index == 0


@pytest.mark.parametrize("written", ["The Matrixx", "The Mattrixx", "The Mtrix", "The Matirx"])
def test_typos_are_still_typos(written: str) -> None:
    assert Matcher(Catalog.from_items([("The Matrix", 1999)])).identify(written, 1999).index == 0
