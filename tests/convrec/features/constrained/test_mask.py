"""The mask of a batch, compared with each walk's allowed tokens."""

import random

import numpy as np
import pytest
import torch

from convrec.features.constrained.catalog_trie import CatalogTrie
from convrec.features.constrained.vllm_lists import TrieMask
from convrec.features.constrained.walk import Walk
from tests.convrec.features.constrained.conftest import BYTE_LEVEL, DUMMY_PREFIX

pytestmark = pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, DUMMY_PREFIX], indirect=True)


def test_mask_applies_to_each_walks_row_and_leaves_others_alone(catalog: CatalogTrie) -> None:
    rng, mask = random.Random(0), TrieMask(catalog, "cpu")
    walks = {0: Walk(catalog, 2, [3]), 2: Walk(catalog, 3), 3: Walk(catalog, 3, [0, 5, 6, 9])}
    vocabulary = 400
    while any(walk.allowed() != [catalog.eos_token_id] for walk in walks.values()):
        for rows in (walks, {row: walks[row] for row in (3, 0)}):
            logits_BV = torch.randn(4 if rows is walks else 5, vocabulary)
            expected_BV = logits_BV.clone()
            for row, walk in rows.items():
                expected_BV[row] = -torch.inf
                expected_BV[row, walk.allowed()] = logits_BV[row, walk.allowed()]
            nodes = [walk.node for walk in rows.values()]
            closed = {
                place: walk.closed[walk.node] for place, walk in enumerate(rows.values()) if walk.node in walk.closed
            }
            assert torch.equal(mask.apply(logits_BV, np.array([*rows]), np.array(nodes), closed), expected_BV)
        for walk in walks.values():
            walk.advance(rng.choice(walk.allowed()))
