import pytest

from convrec.titles.catalog import Catalog
from convrec.titles.matching import Matcher
from tests.convrec.titles.matching_films import FILMS


@pytest.fixture
def fuzzy():
    return Matcher(Catalog.from_items(FILMS), "fuzzy")


@pytest.fixture
def exact():
    return Matcher(Catalog.from_items(FILMS), "exact")
