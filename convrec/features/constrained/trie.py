"""Token sequences as a tree, in arrays: what may follow a prefix is one slice.

Nodes are numbered level by level, within a level by parent and then by token. So the children of a node stand side by
side (compressed sparse rows), their tokens ascend, and a node is also the edge that leads to it. All is int32: 20 bytes
a node.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Trie:
    """S sequences below R roots, L nodes: the nodes 0 to R - 1 are the roots.

    token_L: the token that leads to a node, -1 for roots. parent_L: -1 for roots. The children of node n are the nodes
    first_child[n] to first_child[n + 1] - 1; first_child has L + 1 entries. leaves_L: how many sequences end at or
    below a node. sequence_L: the sequence that ends in a node, which has no children, -1 for none. own_S: of each
    sequence the first node that no other sequence has; from there on it is forced.
    """

    token_L: Int32s
    parent_L: Int32s
    first_child: Int32s
    leaves_L: Int32s
    sequence_L: Int32s
    own_S: Int32s


def build_trie(tokens: Int32s, ends_S: Int64s, root_S: Int32s) -> Trie:
    """The trie of S sequences: sequence s is tokens[ends_S[s - 1]:ends_S[s]] below the root root_S[s].

    One sort a level, no Python over sequences. Raises ValueError for an empty sequence, for two that are equal and for
    one that begins another, with their numbers.
    """
    num_sequences, num_roots = len(ends_S), int(root_S.max(initial=-1)) + 1
    place_S = np.concatenate([[0], ends_S[:-1]]).astype(np.int64)  # of the next token
    if (place_S >= ends_S).any():
        raise ValueError(f"sequence {int(np.argmax(place_S >= ends_S))} is empty")
    width = int(tokens.max(initial=0)) + 1
    node_S = root_S.astype(np.int64)
    token_of_level = [np.full(num_roots, -1, np.int32)]
    parent_of_level = [np.full(num_roots, -1, np.int32)]
    going_on, num_nodes = np.arange(num_sequences), num_roots
    while len(going_on):
        edges, which = np.unique(node_S[going_on] * width + tokens[place_S[going_on]], return_inverse=True)
        token_of_level.append((edges % width).astype(np.int32))
        parent_of_level.append((edges // width).astype(np.int32))
        node_S[going_on] = num_nodes + which
        num_nodes += len(edges)
        place_S[going_on] += 1
        going_on = going_on[place_S[going_on] < ends_S[going_on]]
    parent_L = np.concatenate(parent_of_level)
    first_child = np.searchsorted(parent_L, np.arange(num_nodes + 1)).astype(np.int32)
    sequence_L = np.full(num_nodes, -1, np.int32)
    sequence_L[node_S] = np.arange(num_sequences, dtype=np.int32)
    _refuse_prefixes(node_S, sequence_L, first_child)
    leaves_L = (sequence_L >= 0).astype(np.int32)
    stop = num_nodes
    for parents in reversed(parent_of_level[1:]):
        np.add.at(leaves_L, parents, leaves_L[stop - len(parents) : stop])
        stop -= len(parents)
    own_S = node_S
    while (alone := (leaves_L[parent_L[own_S]] == 1) & (parent_L[own_S] >= num_roots)).any():
        own_S = np.where(alone, parent_L[own_S], own_S)
    return Trie(np.concatenate(token_of_level), parent_L, first_child, leaves_L, sequence_L, own_S.astype(np.int32))


def _refuse_prefixes(leaf_S: Int64s, sequence_L: Int32s, first_child: Int32s) -> None:
    other_S = sequence_L[leaf_S]
    if len(equal := np.flatnonzero(other_S != np.arange(len(leaf_S)))):
        raise ValueError(f"the sequences {int(equal[0])} and {int(other_S[equal[0]])} are equal")
    if len(longer := np.flatnonzero(first_child[leaf_S] < first_child[leaf_S + 1])):
        raise ValueError(f"sequence {int(longer[0])} begins another")
