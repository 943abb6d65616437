"""The walk and its definition: a token is allowed if some valid list continues with it."""

import itertools
import random
from typing import Any

import pytest

from convrec.features.constrained.catalog_trie import CatalogTrie
from convrec.features.constrained.walk import Walk
from convrec.titles.matching import Matcher
from tests.convrec.features.constrained.conftest import BYTE_LEVEL, DUMMY_PREFIX

pytestmark = pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, DUMMY_PREFIX], indirect=True)


def take(walk: Walk, tokens: list[int]) -> None:
    for token in tokens:
        walk.advance(token)


def all_lists(tokenizer: Any, texts: dict[int, list[str]], num_items: int) -> list[list[int]]:
    """Encode every list of num_items different items, in every order, as a whole; `texts` maps items to lines."""
    lists = [
        "\n".join(lines)
        for items in itertools.permutations(texts, num_items)
        for lines in itertools.product(*(texts[item] for item in items))
    ]
    encoded = tokenizer(lists, add_special_tokens=False)["input_ids"]
    return [[*tokens, tokenizer.eos_token_id] for tokens in encoded]


@pytest.mark.parametrize("excluded", [(), (3, 5), (0, 1, 2, 6, 999)])
def test_exactly_the_tokens_of_valid_lists_are_allowed(
    catalog: CatalogTrie, matcher: Matcher, tokenizer: Any, excluded: tuple[int, ...]
) -> None:
    texts: dict[int, list[str]] = {}
    for row, item in zip(catalog.row_W.tolist(), catalog.item_W.tolist(), strict=True):
        if item not in excluded:
            texts.setdefault(item, []).append(f"{matcher.catalog.titles[row]} ({matcher.catalog.years[row]})")
    rng, lists = random.Random(0), all_lists(tokenizer, texts, 3)
    for _ in range(4):
        walk, tokens, going_on = Walk(catalog, 3, excluded), [], lists
        while len(walk.items) < 3:
            assert walk.allowed() == sorted({whole[len(tokens)] for whole in going_on})
            assert walk.count_choices() == len(walk.allowed())
            tokens.append(rng.choice(walk.allowed()))
            walk.advance(tokens[-1])
            going_on = [whole for whole in going_on if whole[len(tokens) - 1] == tokens[-1]]
        assert tokens[-1] == tokenizer.eos_token_id
        lines = tokenizer.decode(tokens, skip_special_tokens=True).split("\n")
        assert matcher.match_lines(lines, (), None).catalog_index == walk.items
        assert len(set(walk.items)) == 3
        assert set(walk.items).isdisjoint(excluded)


def test_disallowed_token_raises_and_trailing_ones_are_ignored(catalog: CatalogTrie, tokenizer: Any) -> None:
    (heat, up) = ([*tokenizer.encode(f"{line}\n")] for line in ("Heat (1995)", "Up (2009)"))
    walk = Walk(catalog, 2, [11])
    with pytest.raises(ValueError, match=r"not allowed after 0 items"):
        take(walk, up)
    walk = Walk(catalog, 2)
    take(walk, heat)
    with pytest.raises(ValueError, match=r"not allowed after 1 items"):
        take(walk, heat)  # a repeat
    walk = Walk(catalog, 1)
    take(walk, [*tokenizer.encode("Up (2009)"), tokenizer.eos_token_id, 5, -1])
    assert (walk.items, walk.allowed()) == ([11], [tokenizer.eos_token_id])


def test_list_is_shorter_when_fewer_items_remain(catalog: CatalogTrie, tokenizer: Any) -> None:
    walk = Walk(catalog, 5, [item for item in range(12) if item not in (3, 11)])
    assert walk.num_items == 2
    rng = random.Random(1)
    while len(walk.items) < 2:
        walk.advance(rng.choice(walk.allowed()))
    assert sorted(walk.items) == [3, 11]  # one of the two spellings of item 3
    assert Walk(catalog, 5, range(12)).allowed() == [tokenizer.eos_token_id]
