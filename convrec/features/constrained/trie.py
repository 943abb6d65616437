"""A trie of token sequences in arrays, where the tokens that may follow a prefix are one slice.

Nodes are numbered level by level, within a level by parent and then by token. So the children of a node are adjacent
(compressed sparse rows), their tokens ascend, and a node also stands for the edge that leads to it. All arrays are
int32: 20 bytes per node.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Trie:
    """S sequences below R roots, L nodes: nodes 0 to R - 1 are the roots.

    Attributes:
        token_L: the token that leads to a node, -1 for roots.
        parent_L: the parent, -1 for roots.
        first_child: the children of node n are first_child[n] to first_child[n + 1] - 1; L + 1 entries.
        leaves_L: how many sequences end at or below a node.
        sequence_L: the sequence that ends in a node, which then has no children; -1 for none.
        own_S: each sequence's first node that no other sequence has; from there on its tokens are forced.
    """

    token_L: Int32s
    parent_L: Int32s
    first_child: Int32s
    leaves_L: Int32s
    sequence_L: Int32s
    own_S: Int32s


def build_trie(tokens: Int32s, ends_S: Int64s, root_S: Int32s) -> Trie:
    """Build the trie of S sequences level by level: one sort per level, no Python loop over sequences.

    Example: the sequences (5, 8), (5, 9) and (6, 8) below one root, node 0. Level 1 has nodes 1 and 2, for tokens 5 and
    6; level 2 has nodes 3, 4 and 5, for (5, 8), (5, 9) and (6, 8). The first child of node 0 is 1, of node 1 it is 3,
    of node 2 it is 5, and of each leaf 6, one more than the last node.

    Args:
        tokens: of all sequences, concatenated.
        ends_S: sequence s is tokens[ends_S[s - 1]:ends_S[s]].
        root_S: the root of each sequence.

    Raises:
        ValueError: a sequence is empty, equals another or is a prefix of another; the message has their numbers.
    """
    num_sequences = len(ends_S)
    num_roots = int(root_S.max(initial=-1)) + 1
    next_token_S = np.concatenate([[0], ends_S[:-1]]).astype(np.int64)
    is_empty_S = next_token_S >= ends_S
    if is_empty_S.any():
        raise ValueError(f"sequence {int(np.argmax(is_empty_S))} is empty")

    token_of_level, parent_of_level, leaf_S = _build_levels(tokens, next_token_S, ends_S, root_S, num_roots)
    parent_L = np.concatenate(parent_of_level)
    num_nodes = len(parent_L)
    # nodes are numbered by parent, so the children of a node are adjacent
    first_child = np.searchsorted(parent_L, np.arange(num_nodes + 1)).astype(np.int32)
    sequence_L = np.full(num_nodes, -1, np.int32)
    sequence_L[leaf_S] = np.arange(num_sequences, dtype=np.int32)
    _refuse_prefixes(leaf_S, sequence_L, first_child)
    leaves_L = _count_leaves(sequence_L, parent_of_level)
    return Trie(
        token_L=np.concatenate(token_of_level),
        parent_L=parent_L,
        first_child=first_child,
        leaves_L=leaves_L,
        sequence_L=sequence_L,
        own_S=_find_own_nodes(leaf_S, parent_L, leaves_L, num_roots),
    )


def _build_levels(
    tokens: Int32s, first_token_S: Int64s, ends_S: Int64s, root_S: Int32s, num_roots: int
) -> tuple[list[Int32s], list[Int32s], Int64s]:
    """Return the tokens and parents of each level's nodes, roots first, and the node in which each sequence ends."""
    next_token_S = first_token_S.copy()
    num_words = int(tokens.max(initial=0)) + 1
    node_S = root_S.astype(np.int64)  # the node that each sequence has reached
    token_of_level = [np.full(num_roots, -1, np.int32)]
    parent_of_level = [np.full(num_roots, -1, np.int32)]
    unfinished = np.arange(len(ends_S))
    num_nodes = num_roots
    while len(unfinished):
        # an edge is one number, parent * num_words + token: sorted, by parent and then by token
        edges = node_S[unfinished] * num_words + tokens[next_token_S[unfinished]]
        unique_edges, edge_of_sequence = np.unique(edges, return_inverse=True)
        token_of_level.append((unique_edges % num_words).astype(np.int32))
        parent_of_level.append((unique_edges // num_words).astype(np.int32))
        node_S[unfinished] = num_nodes + edge_of_sequence
        num_nodes += len(unique_edges)
        next_token_S[unfinished] += 1
        unfinished = unfinished[next_token_S[unfinished] < ends_S[unfinished]]
    return token_of_level, parent_of_level, node_S


def _count_leaves(sequence_L: Int32s, parent_of_level: list[Int32s]) -> Int32s:
    """Count the sequences that end at or below each node: each level adds its counts to its parents."""
    leaves_L = (sequence_L >= 0).astype(np.int32)
    stop = len(leaves_L)
    for parents in reversed(parent_of_level[1:]):
        start = stop - len(parents)
        np.add.at(leaves_L, parents, leaves_L[start:stop])
        stop = start
    return leaves_L


def _find_own_nodes(leaf_S: Int64s, parent_L: Int32s, leaves_L: Int32s, num_roots: int) -> Int32s:
    """Climb from each sequence's leaf while no other sequence is below the parent, and the parent is not a root."""
    own_S = leaf_S
    while True:
        parent_S = parent_L[own_S]
        is_alone_S = (leaves_L[parent_S] == 1) & (parent_S >= num_roots)
        if not is_alone_S.any():
            return own_S.astype(np.int32)
        own_S = np.where(is_alone_S, parent_S, own_S)


def _refuse_prefixes(leaf_S: Int64s, sequence_L: Int32s, first_child: Int32s) -> None:
    ending_S = sequence_L[leaf_S]  # among equal sequences, the last one
    equal = np.flatnonzero(ending_S != np.arange(len(leaf_S)))
    if len(equal):
        raise ValueError(f"the sequences {int(equal[0])} and {int(ending_S[equal[0]])} are equal")
    longer = np.flatnonzero(first_child[leaf_S] < first_child[leaf_S + 1])
    if len(longer):
        raise ValueError(f"sequence {int(longer[0])} is a prefix of another")
