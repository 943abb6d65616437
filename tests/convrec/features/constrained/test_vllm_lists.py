"""The arrays that track vLLM's lists, compared with walks that take every token."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch

from convrec.features.constrained.catalog_trie import CatalogTrie, save_catalog_trie
from convrec.features.constrained.vllm_lists import (
    EXCLUDE,
    ITEMS,
    MAX_CACHED_TRIES,
    TRIE,
    VERSION,
    ListWriter,
    OpenList,
    OpenLists,
    TrieMask,
)
from convrec.features.constrained.walk import Walk
from tests.convrec.features.constrained.conftest import BYTE_LEVEL, DUMMY_PREFIX

pytestmark = pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, DUMMY_PREFIX], indirect=True)

NUM_ITEMS, EXCLUDED, VOCABULARY = 4, [3, 5], 400


@pytest.fixture
def mask(catalog: CatalogTrie) -> TrieMask:
    return TrieMask(catalog, torch.device("cpu"))


def write_list(catalog: CatalogTrie, seed: int) -> list[int]:
    """Return the tokens of a list, and one more after its end."""
    rng = random.Random(seed)
    walk = Walk(catalog, NUM_ITEMS, EXCLUDED)
    tokens = []
    while len(walk.items) < NUM_ITEMS:
        tokens.append(rng.choice(walk.allowed()))
        walk.advance(tokens[-1])
    return [*tokens, catalog.eos_token_id]


def catch_up(lists: OpenLists, written: dict[int, list[int]]) -> None:
    """Make the lists take the tokens written so far, key -> tokens."""
    tokens = list(written.values())

    def read(places: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        return np.array([tokens[place][number] for place, number in zip(places, numbers, strict=True)])

    lists.catch_up(np.array([*written]), np.array([*map(len, tokens)]), read)


@pytest.mark.parametrize("step", [1, 2, 7], ids=lambda step: f"{step} tokens at once")
def test_a_batch_is_masked_as_walks_of_every_token_would(catalog: CatalogTrie, mask: TrieMask, step: int) -> None:
    """Lists take several tokens at once, as after preemption. One list has another trie, as after a catalog change."""
    rng = random.Random(0)
    written = [write_list(catalog, seed) for seed in range(6)]
    lists = OpenLists()
    keys = [5, 0, 2, 9, 1, 3]
    one_by_one = [OpenList(Walk(catalog, NUM_ITEMS, EXCLUDED), mask) for _ in keys]
    one_by_one[4] = one_by_one[4]._replace(mask=TrieMask(catalog, "cpu"))
    for key, one in zip(keys, one_by_one, strict=True):
        lists.put(key, one)
    walks = [Walk(catalog, NUM_ITEMS, EXCLUDED) for _ in keys]
    for length in range(step, max(map(len, written)) + 1, step):
        going_on = [number for number, tokens in enumerate(written) if length <= len(tokens)]
        rng.shuffle(going_on)
        catch_up(lists, {keys[number]: written[number][:length] for number in going_on})
        rows = rng.sample(range(8), len(going_on))
        keys_B = np.array([keys[number] for number in going_on])
        logits_BV = lists.mask(torch.zeros(8, VOCABULARY), np.array(rows), keys_B)
        for row, number in zip(rows, going_on, strict=True):
            for token in written[number][length - step : length]:
                walks[number].advance(token)
            assert torch.isfinite(logits_BV[row]).nonzero().flatten().tolist() == walks[number].allowed()
        assert torch.isfinite(logits_BV[[row for row in range(8) if row not in rows]]).all()
    if step == 1:
        assert [one.walk.items for one in one_by_one] == [walk.items for walk in walks]


def test_a_token_without_a_child_raises(catalog: CatalogTrie, mask: TrieMask) -> None:
    tokens = write_list(catalog, 1)
    for place in range(len(tokens) - 1):
        for wrong in (-1, 10**6):
            lists = OpenLists()
            lists.put(0, OpenList(Walk(catalog, NUM_ITEMS, EXCLUDED), mask))
            with pytest.raises(ValueError, match=f"token {wrong} is not allowed after"):
                catch_up(lists, {0: [*tokens[:place], wrong]})


def test_an_item_that_is_excluded_or_repeated_raises(catalog: CatalogTrie, mask: TrieMask) -> None:
    tokens = write_list(catalog, 1)
    walk = Walk(catalog, NUM_ITEMS, EXCLUDED)
    while not walk.items:
        walk.advance(tokens.pop(0))
    lists = OpenLists()
    lists.put(0, OpenList(Walk(catalog, NUM_ITEMS, [*EXCLUDED, *walk.items]), mask))
    with pytest.raises(ValueError, match=f"item {walk.items[0]} is excluded or already in the list"):
        catch_up(lists, {0: write_list(catalog, 1)})


def test_a_list_whose_trie_is_gone_is_empty_and_disturbs_no_other(catalog: CatalogTrie, tmp_path: Path) -> None:
    """A cancelled request's trie is deleted before the engine begins it; that of the start, after a change."""
    names = [f"{number}.npz" for number in range(1 + MAX_CACHED_TRIES)]
    for name in names:
        save_catalog_trie(tmp_path / name, catalog)
    writer = ListWriter({TRIE: str(tmp_path / names[0])}, torch.device("cpu"))
    (tmp_path / names[0]).unlink()
    for name in names[1:]:  # the first one is no longer cached
        other = writer.begin({ITEMS: NUM_ITEMS, EXCLUDE: EXCLUDED, VERSION: name})
    empty = writer.begin({ITEMS: NUM_ITEMS, EXCLUDE: EXCLUDED, VERSION: "gone.npz"})
    assert other is not None
    assert empty is not None
    lists = OpenLists()
    lists.put(0, other)
    lists.put(1, empty)
    allowed = [Walk(catalog, NUM_ITEMS, EXCLUDED).allowed(), [catalog.eos_token_id]]
    for _ in range(2):
        logits_BV = lists.mask(torch.zeros(2, VOCABULARY), np.array([0, 1]), np.array([0, 1]))
        assert [torch.isfinite(row).nonzero().flatten().tolist() for row in logits_BV] == allowed
        catch_up(lists, {1: write_list(catalog, 1)})  # it may have begun before it was preempted
