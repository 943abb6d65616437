"""The choices in a list, compared with the walk's allowed tokens."""

import random
from typing import Any

import pytest

from convrec.features.constrained.catalog_trie import CatalogTrie
from convrec.features.constrained.choices import ChoiceReader
from convrec.features.constrained.walk import Walk
from tests.convrec.features.constrained.conftest import BYTE_LEVEL, DUMMY_PREFIX

pytestmark = pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, DUMMY_PREFIX], indirect=True)


def sampled(catalog: CatalogTrie, num_items: int, excluded: list[int], rng: random.Random) -> list[int]:
    walk, tokens = Walk(catalog, num_items, excluded), []
    while len(walk.items) < walk.num_items:
        tokens.append(rng.choice(walk.allowed()))
        walk.advance(tokens[-1])
    return tokens


def test_choices_are_the_places_with_more_than_one_allowed_token(catalog: CatalogTrie) -> None:
    rng, reader, trie = random.Random(0), ChoiceReader(catalog), catalog.trie
    forced = 0
    for excluded in ([], [3, 5], [0, 1, 2, 999]):
        tokens = sampled(catalog, 3, excluded, rng)
        choices = reader.read(tokens, [3, *excluded])
        walk, free = Walk(catalog, 3, excluded), {}
        for place, token in enumerate(tokens):
            if len(allowed := walk.allowed()) > 1:
                free[place] = allowed
            walk.advance(token)
        assert choices.place_F.tolist() == list(free)
        for choice, (place, allowed) in enumerate(free.items()):
            children = set(range(*trie.first_child[[choices.node_F[choice], choices.node_F[choice] + 1]]))
            closed = set(choices.closed_X[choices.closed_at_X == choice].tolist())
            assert closed <= children
            assert sorted(trie.token_L[list(children - closed)].tolist()) == allowed
            assert trie.token_L[choices.chosen_F[choice]] == tokens[place]
        forced += len(tokens) - len(free)
    assert forced


def test_a_response_outside_the_constraint_raises(catalog: CatalogTrie, tokenizer: Any) -> None:
    tokens = [*tokenizer.encode("Up (2009)"), tokenizer.eos_token_id]
    reader = ChoiceReader(catalog)
    assert len(reader.read(tokens, [1]).place_F)
    with pytest.raises(ValueError, match="not allowed"):
        reader.read(tokens, [1, 11])
    with pytest.raises(ValueError, match="not allowed"):
        reader.read(tokens, [2])
