"""Log-probs of the constrained policy: log-softmax over the allowed tokens; no other logits are computed.

Choices at the same node of the trie share their candidates, the node's children. If a node has many logits, they are
one matrix product of hidden states and rows of the head; the other logits are separate dot products. Forced tokens cost
nothing.

Shapes: T positions of hidden states, D their size, V words of the vocabulary, W words of the trie, F choices, C
children of a node, P pairs of a choice and a candidate.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from convrec.features.constrained.catalog_trie import CatalogTrie
from convrec.features.constrained.choices import Choices
from convrec.features.constrained.trie import Int32s

Longs = npt.NDArray[np.int64]
MIN_MATRIX_LOGITS = 4096  # from this many logits on, a node gets a matrix product
PAIRS_PER_CHUNK = 1 << 14  # rows of the head that are copied at a time for dot products


@dataclass(frozen=True)
class NodeMatrix:
    """Choices at one node, whose logits are one matrix product.

    Attributes:
        start, stop: the range of choices in the plan's order.
        words_C: words of the node's children.
        column_F: each choice's chosen child, as a column.
        closed: (choices, columns) that are not allowed; choices are counted from start.
    """

    start: int
    stop: int
    words_C: Longs
    column_F: Longs
    closed: tuple[Longs, Longs]


@dataclass(frozen=True)
class Pairs:
    """Choices whose logits are separate dot products: all from `start` on in the plan's order.

    Attributes:
        start: the first of the choices.
        which_P: each pair's choice, counted from start.
        word_P: each pair's allowed word.
        chosen_F: each choice's chosen pair.
    """

    start: int
    which_P: Longs
    word_P: Longs
    chosen_F: Longs


@dataclass(frozen=True)
class _ClosedCandidates:
    """Candidates that are not allowed, sorted by choice.

    Attributes:
        choice_X: the choice, in the plan's order.
        column_X: the column of the child.
    """

    choice_X: Longs
    column_X: Longs

    def select(self, start: int, stop: int | None = None) -> tuple[Longs, Longs]:
        """Return the candidates of the choices start to stop, with choices counted from start."""
        first = np.searchsorted(self.choice_X, start)
        last = len(self.choice_X) if stop is None else np.searchsorted(self.choice_X, stop)
        return self.choice_X[first:last] - start, self.column_X[first:last]


@dataclass(frozen=True)
class Plan:
    """How the log-probs of each choice are computed.

    Attributes:
        order_F: the choices in the order of computation: those of each matrix, then those of the pairs.
        matrices: for nodes with many logits.
        pairs: for all other choices.
    """

    order_F: Longs
    matrices: list[NodeMatrix]
    pairs: Pairs


class ConstrainedHead:
    """Computes a model's log-probs under the constraint of a catalog."""

    def __init__(self, catalog: CatalogTrie):
        trie = catalog.trie
        words, self.word_L = np.unique(np.maximum(trie.token_L, 0), return_inverse=True)  # roots get an arbitrary word
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
        """Compute log-probs and entropies of choices.

        Args:
            hidden_TD: hidden states.
            weight_VD: weight of the head.
            choices: a choice's place is the position of the hidden state that predicts its token.
            temperature: divides the logits.
            with_entropy: whether to compute entropies.

        Returns:
            (T,) log-probs of the chosen tokens, and (T,) entropies without gradient; both are 0 at all other
            positions. float32, or float64 if the hidden states are.
        """
        plan = self._plan(choices)
        places_F = torch.from_numpy(choices.place_F[plan.order_F].astype(np.int64)).to(hidden_TD.device)
        hidden_FD = hidden_TD.index_select(0, places_F)
        weight_WD = weight_VD.index_select(0, self.token_W.to(weight_VD.device))
        parts = [
            _compute_matrix_log_probs(hidden_FD, weight_WD, matrix, temperature, with_entropy)
            for matrix in plan.matrices
        ]
        parts.append(_compute_pair_log_probs(hidden_FD, weight_WD, plan.pairs, temperature, with_entropy))
        log_probs_F, entropy_F = (torch.cat(values) for values in zip(*parts, strict=True))
        zeros_T = torch.zeros(len(hidden_TD), dtype=log_probs_F.dtype, device=hidden_TD.device)
        return zeros_T.index_put((places_F,), log_probs_F), zeros_T.index_put((places_F,), entropy_F)

    def _plan(self, choices: Choices) -> Plan:
        """Group the choices by node, with a matrix for each node that has many logits.

        Example: choices 0 to 3 are at nodes 7, 3, 7 and 5, and only node 7 has enough logits for a matrix. Then order_F
        is 0, 2, 1, 3: choices 0 and 2 are the matrix of node 7, start 0 and stop 2; the pairs start at 2.
        """
        nodes, group_F, group_sizes = np.unique(choices.node_F, return_inverse=True, return_counts=True)
        num_children = self.first_child[nodes + 1] - self.first_child[nodes]
        is_matrix = group_sizes * num_children >= MIN_MATRIX_LOGITS

        # the choices of matrices come first, node by node; those of pairs keep their order
        after_all_matrices = len(nodes)
        order_F = np.argsort(np.where(is_matrix[group_F], group_F, after_all_matrices), kind="stable")
        node_F = choices.node_F[order_F]
        first_child_F = self.first_child[node_F]
        column_F = choices.chosen_F[order_F] - first_child_F

        # closed candidates refer to their choice by its number before reordering
        new_number_F = np.argsort(order_F)
        closed_choice_X = new_number_F[choices.closed_at_X]
        by_choice = np.argsort(closed_choice_X, kind="stable")
        closed_choice_X = closed_choice_X[by_choice]
        closed_column_X = choices.closed_X[by_choice] - first_child_F[closed_choice_X]
        closed = _ClosedCandidates(closed_choice_X, closed_column_X)

        matrices = []
        start = 0
        for node, size in zip(nodes[is_matrix], group_sizes[is_matrix], strict=True):
            stop = start + int(size)
            words_C = self.word_L[self.first_child[node] : self.first_child[node + 1]]
            matrices.append(NodeMatrix(start, stop, words_C, column_F[start:stop], closed.select(start, stop)))
            start = stop
        pairs = self._make_pairs(start, node_F[start:], column_F[start:], closed.select(start))
        return Plan(order_F, matrices, pairs)

    def _make_pairs(self, start: int, node_F: Int32s, column_F: Longs, closed: tuple[Longs, Longs]) -> Pairs:
        """Pair each choice with all children of its node except the closed ones.

        Example: two choices at nodes with 2 and 3 children, where column 0 of the second is closed. Of the candidates
        (0, 0) (0, 1) (1, 0) (1, 1) (1, 2), as choice and column, all except the third are pairs: which_P is 0, 0, 1, 1.
        If column 2 of the second choice was chosen, its pair is number 3.
        """
        first_child_F = self.first_child[node_F]
        num_children_F = self.first_child[node_F + 1] - first_child_F
        first_candidate_F = num_children_F.cumsum() - num_children_F  # all candidates, choice after choice

        is_open = np.ones(int(num_children_F.sum()), bool)
        closed_choice_X, closed_column_X = closed
        is_open[first_candidate_F[closed_choice_X] + closed_column_X] = False

        which = np.repeat(np.arange(len(node_F)), num_children_F)
        column = np.arange(len(which)) - first_candidate_F[which]
        child = first_child_F[which] + column
        pair_number = is_open.cumsum() - 1  # of a candidate that is open
        return Pairs(
            start=start,
            which_P=which[is_open],
            word_P=self.word_L[child[is_open]],
            chosen_F=pair_number[first_candidate_F + column_F],
        )


def _compute_matrix_log_probs(
    hidden_FD: torch.Tensor, weight_WD: torch.Tensor, matrix: NodeMatrix, temperature: float, with_entropy: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the log-probs of a node's choices, and their entropies (0 if not requested)."""
    device = hidden_FD.device
    words_C = torch.from_numpy(matrix.words_C).to(device)
    column_F = torch.from_numpy(matrix.column_F).to(device)
    closed = tuple(torch.from_numpy(array).to(device) for array in matrix.closed)
    # Logits are float32, as for pairs: a choice's log-prob must not depend on how many others are at the node.
    dtype = torch.promote_types(hidden_FD.dtype, torch.float32)
    rows_FD = hidden_FD[matrix.start : matrix.stop].to(dtype)
    weight_CD = weight_WD.index_select(0, words_C).to(dtype)
    with torch.autocast(device.type, enabled=False):
        logits_FC = torch.nn.functional.linear(rows_FD, weight_CD) / temperature
    logits_FC[closed] = -torch.inf
    log_probs_F = -torch.nn.functional.cross_entropy(logits_FC, column_F, reduction="none")
    with torch.no_grad():
        entropy_F = torch.special.entr(logits_FC.softmax(-1)).sum(-1) if with_entropy else torch.zeros_like(log_probs_F)
    return log_probs_F, entropy_F


def _compute_pair_log_probs(
    hidden_FD: torch.Tensor, weight_WD: torch.Tensor, pairs: Pairs, temperature: float, with_entropy: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute log-probs by a softmax over each choice's pairs, and entropies (0 if not requested)."""
    device = hidden_FD.device
    which_P = torch.from_numpy(pairs.which_P).to(device)
    word_P = torch.from_numpy(pairs.word_P).to(device)
    chosen_F = torch.from_numpy(pairs.chosen_F).to(device)
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
    """hidden[which_p] . weight[word_p], (P,), at least float32. Neither forward nor backward holds all P rows."""

    @staticmethod
    def forward(
        ctx: Any, hidden_FD: torch.Tensor, weight_WD: torch.Tensor, which_P: torch.Tensor, word_P: torch.Tensor
    ) -> torch.Tensor:
        ctx.save_for_backward(hidden_FD, weight_WD, which_P, word_P)
        dtype = torch.promote_types(hidden_FD.dtype, torch.float32)
        dots = [hidden_FD.new_zeros(0, dtype=dtype)]
        for which, word in _iter_chunks(which_P, word_P):
            dots.append((hidden_FD[which].to(dtype) * weight_WD[word].to(dtype)).sum(-1))
        return torch.cat(dots)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_P: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None, None]:
        hidden_FD, weight_WD, which_P, word_P = ctx.saved_tensors
        grad_hidden = torch.zeros_like(hidden_FD, dtype=grad_P.dtype)
        grad_weight = torch.zeros_like(weight_WD, dtype=grad_P.dtype)
        for which, word, grad in _iter_chunks(which_P, word_P, grad_P[:, None]):
            grad_hidden.index_add_(0, which, grad * weight_WD[word])
            grad_weight.index_add_(0, word, grad * hidden_FD[which])
        return grad_hidden.to(hidden_FD.dtype), grad_weight.to(weight_WD.dtype), None, None


def _iter_chunks(*tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    return zip(*(tensor.split(PAIRS_PER_CHUNK) for tensor in tensors), strict=True)
