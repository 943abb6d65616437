"""Log-probs of the constrained policy: log-softmax over the allowed tokens alone, whose logits are all that is made.

Choices at one node of the trie share their candidates, the node's children. Where these are many logits, they are a
product of two matrices, hidden states and rows of the head; the others are dot products one by one. Forced tokens cost
nothing.

Shapes: T places of hidden states, D their size, V words of the vocabulary, W words of the trie, F choices, C children
of a node, P pairs of a choice and a candidate.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from convrec.features.constrained.catalog_trie import CatalogTrie
from convrec.features.constrained.choices import Choices
from convrec.features.constrained.trie import Int32s

Longs = npt.NDArray[np.int64]
MATRIX = 4096  # so many logits of one node, or more, are a product of matrices
PAIRS_AT_ONCE = 1 << 14  # rows of the head that are copied at a time for dot products


class NodeMatrix(NamedTuple):
    """Choices start to stop, all at one node; its children are words_C. column_F: the chosen ones. closed: (choice,
    column), choices counted from start."""

    start: int
    stop: int
    words_C: Longs
    column_F: Longs
    closed: tuple[Longs, Longs]


class Pairs(NamedTuple):
    """Choices from start on with their allowed words: which_P the choice, counted from start, word_P the word, and
    chosen_F the pair that was taken."""

    start: int
    which_P: Longs
    word_P: Longs
    chosen_F: Longs


class ConstrainedHead:
    """What a model's head computes under the constraint of a catalog."""

    def __init__(self, catalog: CatalogTrie):
        trie = catalog.trie
        words, self.word_L = np.unique(np.maximum(trie.token_L, 0), return_inverse=True)  # of roots any word
        self.first_child = trie.first_child.astype(np.int64)
        self.token_W = torch.from_numpy(words.astype(np.int64))

    def log_probs(
        self,
        hidden_TD: torch.Tensor,
        weight_VD: torch.Tensor,
        choices: Choices,
        temperature: float = 1.0,
        with_entropy: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(T,): at the places of the choices the log-prob of the token that was taken, and, without gradient, the
        entropy of the choice if it is asked for; 0 everywhere else. float32, or float64 when the hidden states are.

        choices: a place is that of the hidden state which the choice was made from.
        """
        order, matrices, pairs = self._plan(choices)
        places_F = torch.from_numpy(choices.place_F[order].astype(np.int64)).to(hidden_TD.device)
        hidden_FD = hidden_TD.index_select(0, places_F)
        weight_WD = weight_VD.index_select(0, self.token_W.to(weight_VD.device))
        parts = [_of_matrix(hidden_FD, weight_WD, matrix, temperature, with_entropy) for matrix in matrices]
        parts.append(_of_pairs(hidden_FD, weight_WD, pairs, temperature, with_entropy))
        log_probs_F, entropy_F = (torch.cat(values) for values in zip(*parts, strict=True))
        zeros_T = torch.zeros(len(hidden_TD), dtype=log_probs_F.dtype, device=hidden_TD.device)
        return zeros_T.index_put((places_F,), log_probs_F), zeros_T.index_put((places_F,), entropy_F)

    def _plan(self, choices: Choices) -> tuple[Longs, list[NodeMatrix], Pairs]:
        """The order to take the choices in, and then who computes which of them."""
        nodes, which_F, times = np.unique(choices.node_F, return_inverse=True, return_counts=True)
        num_children = self.first_child[nodes + 1] - self.first_child[nodes]
        is_matrix = times * num_children >= MATRIX
        order = np.argsort(np.where(is_matrix[which_F], which_F, len(nodes)), kind="stable")
        place_of = np.argsort(order)
        node_F = choices.node_F[order]
        first_F = self.first_child[node_F]
        column_F = choices.chosen_F[order] - first_F
        at_X = place_of[choices.closed_at_X]
        by_place = np.argsort(at_X, kind="stable")
        at_X = at_X[by_place]
        column_X = choices.closed_X[by_place] - first_F[at_X]

        matrices, start = [], 0
        for node, count in zip(nodes[is_matrix], times[is_matrix], strict=True):
            stop = start + int(count)
            closed = slice(*np.searchsorted(at_X, [start, stop]))
            words_C = self.word_L[self.first_child[node] : self.first_child[node + 1]]
            matrices.append(
                NodeMatrix(start, stop, words_C, column_F[start:stop], (at_X[closed] - start, column_X[closed]))
            )
            start = stop
        rest = slice(np.searchsorted(at_X, start), None)
        return order, matrices, self._pairs(start, node_F[start:], column_F[start:], at_X[rest] - start, column_X[rest])

    def _pairs(self, start: int, node_F: Int32s, column_F: Longs, at_X: Longs, column_X: Longs) -> Pairs:
        """at_X, column_X: the closed candidates."""
        first_F = self.first_child[node_F]
        counts_F = self.first_child[node_F + 1] - first_F
        begins_F = counts_F.cumsum() - counts_F
        is_open = np.ones(int(counts_F.sum()), bool)
        is_open[begins_F[at_X] + column_X] = False
        which_P = np.repeat(np.arange(len(first_F)), counts_F)
        child_P = np.arange(len(which_P)) + (first_F - begins_F)[which_P]
        chosen_F = (is_open.cumsum() - 1)[begins_F + column_F]
        return Pairs(start, which_P[is_open], self.word_L[child_P[is_open]], chosen_F)


def _of_matrix(
    hidden_FD: torch.Tensor, weight_WD: torch.Tensor, matrix: NodeMatrix, temperature: float, with_entropy: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    device = hidden_FD.device
    words_C, column_F, *closed = (
        torch.from_numpy(array).to(device) for array in (matrix.words_C, matrix.column_F, *matrix.closed)
    )
    # in float32 as pairs are: a choice has one log-prob, however many others its micro-batch has at the node
    dtype = torch.promote_types(hidden_FD.dtype, torch.float32)
    rows_FD, weight_CD = hidden_FD[matrix.start : matrix.stop].to(dtype), weight_WD.index_select(0, words_C).to(dtype)
    with torch.autocast(device.type, enabled=False):
        logits_FC = torch.nn.functional.linear(rows_FD, weight_CD) / temperature
    logits_FC[tuple(closed)] = -torch.inf
    log_probs_F = -torch.nn.functional.cross_entropy(logits_FC, column_F, reduction="none")
    with torch.no_grad():
        entropy_F = torch.special.entr(logits_FC.softmax(-1)).sum(-1) if with_entropy else torch.zeros_like(log_probs_F)
    return log_probs_F, entropy_F


def _of_pairs(
    hidden_FD: torch.Tensor, weight_WD: torch.Tensor, pairs: Pairs, temperature: float, with_entropy: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    device = hidden_FD.device
    which_P, word_P, chosen_F = (torch.from_numpy(array).to(device) for array in pairs[1:])
    logits_P = _PairDots.apply(hidden_FD[pairs.start :], weight_WD, which_P, word_P) / temperature
    zeros_F = torch.zeros(len(chosen_F), dtype=logits_P.dtype, device=device)
    largest_F = zeros_F.scatter_reduce(0, which_P, logits_P.detach(), "amax", include_self=False)
    shifted_P = logits_P - largest_F[which_P]
    sums_F = zeros_F.index_add(0, which_P, shifted_P.exp())
    log_probs_F = shifted_P[chosen_F] - sums_F.log()
    with torch.no_grad():
        entropy_F = zeros_F
        if with_entropy:
            entropy_F = zeros_F.index_add(0, which_P, torch.special.entr(shifted_P.exp() / sums_F[which_P]))
    return log_probs_F, entropy_F


class _PairDots(torch.autograd.Function):
    """(P,): hidden[which_p] . weight[word_p], in float32 at least. Neither forward nor backward holds all P rows."""

    @staticmethod
    def forward(
        ctx: Any, hidden_FD: torch.Tensor, weight_WD: torch.Tensor, which_P: torch.Tensor, word_P: torch.Tensor
    ) -> torch.Tensor:
        ctx.save_for_backward(hidden_FD, weight_WD, which_P, word_P)
        dtype = torch.promote_types(hidden_FD.dtype, torch.float32)
        dots = [hidden_FD.new_zeros(0, dtype=dtype)]
        for which, word in _parts(which_P, word_P):
            dots.append((hidden_FD[which].to(dtype) * weight_WD[word].to(dtype)).sum(-1))
        return torch.cat(dots)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_P: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None, None]:
        hidden_FD, weight_WD, which_P, word_P = ctx.saved_tensors
        grad_hidden, grad_weight = (torch.zeros_like(tensor, dtype=grad_P.dtype) for tensor in (hidden_FD, weight_WD))
        for which, word, grad in _parts(which_P, word_P, grad_P[:, None]):
            grad_hidden.index_add_(0, which, grad * weight_WD[word])
            grad_weight.index_add_(0, word, grad * hidden_FD[which])
        return grad_hidden.to(hidden_FD.dtype), grad_weight.to(weight_WD.dtype), None, None


def _parts(*tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    return zip(*(tensor.split(PAIRS_AT_ONCE) for tensor in tensors), strict=True)
