"""The choices in sampled lists: the positions where more than one token was allowed, and the allowed tokens.

All other tokens were forced: their log-prob under the constraint is 0, and they contribute no gradient.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from convrec.features.constrained.catalog_trie import CatalogTrie
from convrec.features.constrained.trie import Int32s
from convrec.features.constrained.walk import Walk

MAX_CACHED_RESPONSES = 8192  # old, reference and new log-probs of a step read the same responses


class Choices(NamedTuple):
    """F choices in one or more responses, and X children that were closed at them.

    Attributes:
        place_F: the position of the chosen token.
        node_F: the trie's node; all its children were allowed except the closed ones.
        chosen_F: the child that was chosen.
        closed_X: a closed child.
        closed_at_X: the choice, 0 to F - 1, at which the child was closed; ascending.
    """

    place_F: Int32s
    node_F: Int32s
    chosen_F: Int32s
    closed_X: Int32s
    closed_at_X: Int32s


NONE = Choices(*[np.zeros(0, np.int32)] * 5)


class ChoiceReader:
    """Finds the choices in responses by walking them through the trie again, with a cache."""

    def __init__(self, catalog: CatalogTrie):
        self.catalog = catalog
        self._walk_cached = lru_cache(maxsize=MAX_CACHED_RESPONSES)(self._walk)

    def read(self, tokens: Sequence[int], constraint: Sequence[int]) -> Choices:
        """Return the choices in a response.

        Args:
            tokens: of the response.
            constraint: the number of items, then the excluded items.

        Raises:
            ValueError: the response cannot have been sampled under this constraint.
        """
        return self._walk_cached(tuple(tokens), tuple(constraint))

    def _walk(self, tokens: tuple[int, ...], constraint: tuple[int, ...]) -> Choices:
        walk = Walk(self.catalog, constraint[0], constraint[1:])
        taken: list[tuple[int, int, int]] = []
        closed: list[tuple[int, int]] = []
        for index, token in enumerate(tokens):
            node = walk.node
            is_free = walk.count_choices() > 1
            if is_free:
                closed += [(child, len(taken)) for child in walk.closed.get(node, ())]
            child = walk.advance(token)
            if is_free:
                taken.append((index, node, child))
        return Choices(*np.array(taken, np.int32).reshape(-1, 3).T, *np.array(closed, np.int32).reshape(-1, 2).T)


def joined(choices: Sequence[Choices], starts: Sequence[int]) -> Choices:
    """Concatenate the choices of several responses.

    Args:
        choices: the choices of each response.
        starts: for each response, what to add to its positions.
    """
    parts = [NONE, *choices]
    starts = [0, *starts]
    counts = np.array([len(part.place_F) for part in parts])
    firsts = counts.cumsum() - counts
    return Choices(
        place_F=np.concatenate([part.place_F + np.int32(start) for part, start in zip(parts, starts, strict=True)]),
        node_F=np.concatenate([part.node_F for part in parts]),
        chosen_F=np.concatenate([part.chosen_F for part in parts]),
        closed_X=np.concatenate([part.closed_X for part in parts]),
        closed_at_X=np.concatenate(
            [part.closed_at_X + np.int32(first) for part, first in zip(parts, firsts, strict=True)]
        ),
    )
