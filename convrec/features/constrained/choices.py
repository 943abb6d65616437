"""The choices of written lists: where more than one token was allowed, and which ones were.

Every other token of a list was forced: its log-prob under the constraint is 0, and it trains nothing.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from convrec.features.constrained.catalog_trie import CatalogTrie
from convrec.features.constrained.trie import Int32s
from convrec.features.constrained.walk import Walk

REMEMBERED = 8192  # responses; old, reference and new log-probs of a step ask for the same ones


class Choices(NamedTuple):
    """F choices, of one response or of several, and X children that were closed at them.

    place_F: where the token stands that was chosen. node_F: the trie's node, whose children were allowed but for the
    closed ones. chosen_F: the child that was taken. closed_X: a closed child of the choice closed_at_X (0 to F - 1),
    which ascends.
    """

    place_F: Int32s
    node_F: Int32s
    chosen_F: Int32s
    closed_X: Int32s
    closed_at_X: Int32s


NONE = Choices(*[np.zeros(0, np.int32)] * 5)


class ChoiceReader:
    """Walks responses again. What it has walked it remembers."""

    def __init__(self, catalog: CatalogTrie):
        self.catalog = catalog
        self._of_one = lru_cache(maxsize=REMEMBERED)(self._walk)

    def read(self, tokens: Sequence[int], constraint: Sequence[int]) -> Choices:
        """constraint: the number of items, then the excluded items.

        Raises ValueError for a response that cannot have been written under it.
        """
        return self._of_one(tuple(tokens), tuple(constraint))

    def _walk(self, tokens: tuple[int, ...], constraint: tuple[int, ...]) -> Choices:
        walk = Walk(self.catalog, constraint[0], constraint[1:])
        taken: list[tuple[int, int, int]] = []
        closed: list[tuple[int, int]] = []
        for index, token in enumerate(tokens):
            node = walk.node
            is_free = walk.num_choices() > 1
            if is_free:
                closed += [(child, len(taken)) for child in walk.closed.get(node, ())]
            child = walk.advance(token)
            if is_free:
                taken.append((index, node, child))
        return Choices(*np.array(taken, np.int32).reshape(-1, 3).T, *np.array(closed, np.int32).reshape(-1, 2).T)


def joined(choices: Sequence[Choices], starts: Sequence[int]) -> Choices:
    """One of many, with the places of each counted on from its start."""
    choices = [NONE, *choices]
    starts = [0, *starts]
    counts = np.array([len(one.place_F) for one in choices])
    firsts = counts.cumsum() - counts
    return Choices(
        np.concatenate([one.place_F + np.int32(start) for one, start in zip(choices, starts, strict=True)]),
        np.concatenate([one.node_F for one in choices]),
        np.concatenate([one.chosen_F for one in choices]),
        np.concatenate([one.closed_X for one in choices]),
        np.concatenate([one.closed_at_X + np.int32(first) for one, first in zip(choices, firsts, strict=True)]),
    )
