"""A catalog with what makes a constraint wrong easily."""

from typing import Any

import pytest

from convrec.features.constrained.catalog_trie import CatalogTrie, build_catalog_trie
from convrec.lists.catalog import Catalog
from convrec.lists.matching import Matcher

ITEMS = [
    ("Toy Story", 1995),
    ("Toy Story 2", 1999),
    ("Toy Story 3", 2010),
    ("Amelie", 2001),
    ("Amélie", 2001),  # the same item in another spelling
    ("Heat", 1995),
    ("Heat", 1986),  # the same title, another item
    ("Heat", 1995),  # the same line once more
    ("Heat (1995)", 2001),  # written out, another item's line
    ("Alien", 1979),
    ("Aliens", 1986),
    ("Up", 2009),
]


@pytest.fixture(scope="session")
def tokenizer(line_tokenizer: Any) -> Any:
    return line_tokenizer


@pytest.fixture(scope="session")
def matcher() -> Matcher:
    return Matcher(Catalog.from_items(ITEMS))


@pytest.fixture(scope="session")
def catalog(tokenizer: Any, matcher: Matcher) -> CatalogTrie:
    return build_catalog_trie(matcher, tokenizer, "\n")
