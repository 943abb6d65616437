import pytest

from convrec.lists.catalog import Catalog
from convrec.lists.matching import Matcher
from tests.convrec.lists.matching_films import FILMS


@pytest.fixture(scope="module")
def fuzzy():
    return Matcher(Catalog.from_items(FILMS), "fuzzy")


@pytest.fixture(scope="module")
def exact():
    return Matcher(Catalog.from_items(FILMS), "exact")
