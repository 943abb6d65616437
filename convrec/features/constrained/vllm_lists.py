"""The lists that an engine of vLLM writes under the constraint: what a request says, and the state of its list.

    LLM(..., logits_processors=[PROCESSOR], additional_config={TRIE: "catalog.parquet.trie-KEY.npz"})
    SamplingParams(..., extra_args={ITEMS: 20, EXCLUDE: [rows of items]})

A request may name another trie, {VERSION: "NAME.npz"}, a file beside the first: so a catalog changes while lists are
written, and each is finished with the trie that it began with. What vLLM's model runners call is `vllm_processor`.
"""

import logging
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from convrec.errors import UserError
from convrec.features.constrained.catalog_trie import CatalogTrie, load_catalog_trie
from convrec.features.constrained.walk import Walk

PROCESSOR = "convrec.features.constrained.vllm_processor:CatalogLogitsProcessor"
TRIE = "constrained_trie"  # of additional_config
# of extra_args, which are vllm_xargs of vLLM's server
ITEMS, EXCLUDE, VERSION = "constrained_items", "constrained_exclude", "constrained_version"
TRIES_KEPT = 8  # besides those of lists that are being written
_FILE_NAME = re.compile(r"\w[\w.-]*\.npz")
_log = logging.getLogger("vllm.constrained")  # below vLLM's, whose handlers it has


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


class OpenList:
    """A request's walk, the mask of its trie and how many of its tokens the walk has taken."""

    def __init__(self, walk: Walk, mask: TrieMask):
        self.walk, self.mask, self.num_taken = walk, mask, 0

    def take(self, tokens: Iterable[int]) -> None:
        for token in tokens:
            self.walk.advance(token)
            self.num_taken += 1


class ListWriter:
    """Begins lists and masks logits for them. additional_config: vLLM's, with TRIE."""

    def __init__(self, additional_config: Any, device: torch.device):
        file = dict(additional_config).get(TRIE)
        if not file:
            raise ValueError(f'constrained lists: start vLLM with additional_config={{"{TRIE}": FILE}}')
        self.file, self.device = Path(file), device
        self._trie = lru_cache(TRIES_KEPT)(self._load_trie)
        self._trie(self.file.name)

    def _load_trie(self, name: str) -> tuple[CatalogTrie, TrieMask]:
        catalog = load_catalog_trie(self.file.with_name(name))
        return catalog, TrieMask(catalog, self.device)

    def begin(self, extra_args: Mapping[str, Any] | None) -> OpenList | None:
        """The list of a request; None for a request that is not constrained."""
        arguments = read_arguments(extra_args)
        if arguments is None:
            return None
        num_items, exclude, name = arguments
        try:
            catalog, mask = self._trie(name or self.file.name)
        except (FileNotFoundError, UserError) as error:  # of one request: the engine has others
            _log.error("%s: an empty list, since its trie cannot be read: %s", VERSION, error)
            (catalog, mask), num_items = self._trie(self.file.name), 0
        walk = Walk(catalog, num_items, exclude)
        if walk.num_items < arguments[0]:
            _log.warning("a list of %d items, not %d: the others are excluded", walk.num_items, arguments[0])
        return OpenList(walk, mask)

    @staticmethod
    def mask(logits_BV: torch.Tensor, lists: Mapping[int, OpenList]) -> torch.Tensor:
        """In place. lists: row of the batch -> its list; other rows are left alone."""
        walks_of: dict[TrieMask, dict[int, Walk]] = {}
        for row, one in lists.items():
            walks_of.setdefault(one.mask, {})[row] = one.walk
        for mask, walks in walks_of.items():
            mask.apply(logits_BV, walks)
        return logits_BV


def read_arguments(extra_args: Mapping[str, Any] | None) -> tuple[int, list[int], str] | None:
    """(num_items, excluded items, name of the trie's file or "") of a constrained request, None for another. Raises
    ValueError."""
    given = extra_args or {}
    if ITEMS not in given and EXCLUDE not in given:
        return None
    num_items, exclude, name = given.get(ITEMS), given.get(EXCLUDE, []), given.get(VERSION, "")
    if type(num_items) is not int or num_items < 1:
        raise ValueError(f"{ITEMS} is {num_items!r}, not a number of items from 1 on")
    if not isinstance(exclude, list) or any(type(item) is not int for item in exclude):
        raise ValueError(f"{EXCLUDE} is no list of rows of the catalog")
    if not isinstance(name, str) or (name and not _FILE_NAME.fullmatch(name)):
        raise ValueError(f"{VERSION} is {name!r:.100}, not the name of a trie's file")
    return num_items, exclude, name
