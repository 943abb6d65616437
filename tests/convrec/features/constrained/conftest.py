"""A catalog with the items that are easiest to get wrong: spellings, shared titles and equal lines."""

from typing import Any

import pytest

from convrec.features.constrained.catalog_trie import CatalogTrie, build_catalog_trie
from convrec.titles.catalog import Catalog
from convrec.titles.matching import Matcher
from tests.convrec.small_tokenizers import read_sentencepiece, train_sentencepiece

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


BYTE_LEVEL = "byte-level"
# The normalizer adds the dummy prefix, so an item has different tokens at the top of a list than below it.
DUMMY_PREFIX = "dummy prefix"


@pytest.fixture(scope="session")
def dummy_prefix_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A sentencepiece tokenizer like Mistral 7B's."""
    from transformers import PreTrainedTokenizerFast

    texts = [f"{title} ({year})" for title, year in ITEMS] * 4
    model_file = train_sentencepiece(tmp_path_factory.mktemp("sentencepiece"), texts)
    backend = read_sentencepiece(model_file, "normalizer")
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>", name_or_path="dummy-prefix")


@pytest.fixture(scope="session")
def tokenizer(request: pytest.FixtureRequest, line_tokenizer: Any) -> Any:
    """The tokenizer named by the parameter, BYTE_LEVEL by default."""
    if getattr(request, "param", BYTE_LEVEL) == BYTE_LEVEL:
        return line_tokenizer
    return request.getfixturevalue("dummy_prefix_tokenizer")


@pytest.fixture(scope="session")
def matcher() -> Matcher:
    return Matcher(Catalog.from_items(ITEMS))


@pytest.fixture(scope="session")
def catalog(tokenizer: Any, matcher: Matcher) -> CatalogTrie:
    return build_catalog_trie(matcher, tokenizer, "\n")
