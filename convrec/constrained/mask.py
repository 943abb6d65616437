"""The constraint on the logits of a batch, as tensors: what is not allowed gets -inf."""

from collections.abc import Mapping

import numpy as np
import torch

from convrec.constrained.catalog_trie import CatalogTrie
from convrec.constrained.walk import Walk


class TrieMask:
    """The trie's arrays on a device. A step sends a few numbers a list, not its allowed tokens."""

    def __init__(self, catalog: CatalogTrie, device: torch.device | str):
        self._first_child = catalog.trie.first_child
        self._token_L = torch.from_numpy(catalog.trie.token_L).to(device)

    def apply(self, logits_BV: torch.Tensor, walks: Mapping[int, Walk]) -> torch.Tensor:
        """Set the logits of all tokens to -inf that a row's walk does not allow, in place; the others stay as they are.

        walks: row of the batch -> its list; one at least. Other rows are left alone.
        """
        nodes = np.fromiter((walk.node for walk in walks.values()), np.int64, len(walks))
        starts = self._first_child[nodes].astype(np.int64)
        counts = self._first_child[nodes + 1] - starts
        ends = counts.cumsum()
        closed = [
            end - count + child - start
            for walk, start, count, end in zip(walks.values(), starts, counts, ends, strict=True)
            for child in walk.closed.get(walk.node, ())
        ]
        rows = np.fromiter(walks, np.int64, len(walks))
        sent = torch.from_numpy(np.stack([rows, starts - (ends - counts), counts])).to(logits_BV.device)
        rows_W, shift_W, counts_W = sent.unbind()
        which = torch.repeat_interleave(counts_W, output_size=int(ends[-1]))  # row of `walks` of each allowed token
        nodes_ = torch.arange(len(which), device=which.device) + shift_W[which]
        places = (rows_W[which], self._token_L[nodes_].long())
        kept = logits_BV[places]
        if closed:
            kept[torch.tensor(closed, device=kept.device)] = -torch.inf
        logits_BV.index_fill_(0, rows_W, -torch.inf)
        logits_BV[places] = kept
        return logits_BV
