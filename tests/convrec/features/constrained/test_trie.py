"""The trie's arrays, compared with a dictionary of dictionaries."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from convrec.features.constrained.trie import Trie, build_trie

SEQUENCES = st.sets(st.lists(st.integers(0, 4), min_size=1, max_size=5).map(lambda s: (*s, 9)), min_size=1, max_size=30)


def trie_of(sequences: list[tuple[int, ...]], roots: list[int] | None = None) -> Trie:
    tokens = np.array([token for sequence in sequences for token in sequence], np.int32)
    ends = np.cumsum([len(sequence) for sequence in sequences], dtype=np.int64)
    return build_trie(tokens, ends, np.array(roots or [0] * len(sequences), np.int32))


def follow(trie: Trie, prefix: tuple[int, ...], root: int = 0) -> int:
    node = root
    for token in prefix:
        children = range(trie.first_child[node], trie.first_child[node + 1])
        (node,) = [child for child in children if trie.token_L[child] == token]
    return node


@given(SEQUENCES)
def test_trie_gives_children_and_counts_of_every_prefix(unique_sequences: set[tuple[int, ...]]) -> None:
    sequences = list(unique_sequences)
    trie = trie_of(sequences)
    for number, sequence in enumerate(sequences):
        for length in range(len(sequence) + 1):
            prefix = sequence[:length]
            going_on = [other for other in sequences if other[:length] == prefix]
            node = follow(trie, prefix)
            children = slice(trie.first_child[node], trie.first_child[node + 1])
            expected = sorted({other[length] for other in going_on if len(other) > length})
            assert trie.token_L[children].tolist() == expected
            assert trie.leaves_L[node] == len(going_on)
            assert (trie.parent_L[children] == node).all()
        assert trie.sequence_L[follow(trie, sequence)] == number
        alone = [n for n in range(1, len(sequence) + 1) if sum(s[:n] == sequence[:n] for s in sequences) == 1]
        assert trie.own_S[number] == follow(trie, sequence[: alone[0]])


def test_roots_share_nothing() -> None:
    trie = trie_of([(1, 2), (1, 3), (1, 2)], [0, 0, 1])
    assert trie.token_L.tolist() == [-1, -1, 1, 1, 2, 3, 2]
    assert [follow(trie, (1, 2), root) for root in (0, 1)] == [4, 6]
    assert trie.sequence_L.tolist() == [-1, -1, -1, -1, 0, 1, 2]


@pytest.mark.parametrize(
    ("sequences", "message"),
    [
        ([(1,), (1,)], "1 and 0|0 and 1"),
        ([(1,), (1, 2)], "sequence 0 is a prefix of another"),
        ([(1,), ()], "1 is empty"),
    ],
)
def test_sequences_without_a_leaf_of_their_own_are_refused(sequences: list[tuple[int, ...]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        trie_of(sequences)
