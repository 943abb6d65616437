"""The items that a request allows."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from convrec.features.constrained.catalog_trie import CatalogTrie
from convrec.inference.list_request import AllowedItems

ITEMS = [7, 2, 2, 9, 4]  # item 2 has two spellings


@pytest.mark.parametrize(
    ("excluded", "remaining"),
    [([], [2, 4, 7, 9]), ([2], [4, 7, 9]), ([4, 9], [2, 7]), ([3], [2, 4, 7, 9]), ([2, 4, 7, 9], [])],
)
def test_remaining_items_are_each_item_once_without_the_excluded(excluded: list[int], remaining: list[int]) -> None:
    none = np.zeros(0, np.int32)
    trie = CatalogTrie(none, none.astype(np.int64), np.arange(5, dtype=np.int32), np.array(ITEMS, np.int32), none, 0)
    snapshot: Any = SimpleNamespace(popular_M=np.array([9, 2, 7, 4]))
    file: Any = SimpleNamespace(trie=trie)
    allowed = AllowedItems(snapshot=snapshot, trie=file, excluded=excluded, length=3, shortage=None)
    assert allowed.remaining.tolist() == remaining
    assert trie.num_items == 4
    assert allowed.find_popular(4, known=[7]) == [item for item in (9, 2, 4) if item in remaining]
