"""Constrained lists in vLLM: the arguments of a request, and the state of its list.

    LLM(..., logits_processors=[PROCESSOR], additional_config={TRIE: "catalog.parquet.trie-KEY.npz"})
    SamplingParams(..., extra_args={ITEMS: 20, EXCLUDE: [rows of items]})

A request may name another trie, {VERSION: "NAME.npz"}, a file next to the first one. So the catalog can change while
lists are written, and each list is finished with the trie that it began with. vLLM's model runners call
`vllm_processor`.
"""

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from convrec.base.errors import UserError
from convrec.features.constrained.catalog_trie import (
    END,
    CatalogTrie,
    cache_tries,
    load_catalog_trie,
    select_lines,
)
from convrec.features.constrained.trie import Int64s
from convrec.features.constrained.walk import Walk

PROCESSOR = "convrec.features.constrained.vllm_processor:CatalogLogitsProcessor"
TRIE = "constrained_trie"  # key of additional_config
# keys of extra_args, which are vllm_xargs in vLLM's server
ITEMS = "constrained_items"
EXCLUDE = "constrained_exclude"
VERSION = "constrained_version"
MAX_CACHED_TRIES = 8  # besides those of unfinished lists
_FILE_NAME = re.compile(r"\w[\w.-]*\.npz")
_log = logging.getLogger("vllm.constrained")  # a child of vLLM's logger, whose handlers it uses
ReadTokens = Callable[[Int64s, Int64s], Int64s]


class TrieMask:
    """The trie's arrays on a device. A step sends a few numbers per list, not its allowed tokens."""

    def __init__(self, catalog: CatalogTrie, device: torch.device | str):
        trie = catalog.trie
        self._first_child = trie.first_child
        self._sequence_L = trie.sequence_L
        self._token_L = torch.from_numpy(trie.token_L).to(device)
        self._num_words = int(trie.token_L.max()) + 1
        # Parent and token of each node are one number, which ascends because nodes are numbered by parent, then token.
        self._edge_L = trie.parent_L.astype(np.int64) * self._num_words + trie.token_L

    def find_children(self, node_B: Int64s, token_B: Int64s) -> Int64s:
        """Return the children to which these tokens lead; -1 for none."""
        edge_B = node_B * self._num_words + token_B
        child_B = np.searchsorted(self._edge_L, edge_B)
        is_edge_B = (token_B >= 0) & (token_B < self._num_words)
        is_edge_B &= self._edge_L[np.minimum(child_B, len(self._edge_L) - 1)] == edge_B
        return np.where(is_edge_B, child_B, -1)

    def ends_line(self, node_B: Int64s) -> npt.NDArray[np.bool_]:
        """Return whether a line or question ends at each of these nodes."""
        return self._sequence_L[node_B] >= 0

    def count_children(self, node_B: Int64s) -> Int64s:
        return (self._first_child[node_B + 1] - self._first_child[node_B]).astype(np.int64)

    def apply(
        self, logits_BV: torch.Tensor, rows_B: Int64s, node_B: Int64s, closed: Mapping[int, Sequence[int]]
    ) -> torch.Tensor:
        """Set the logits of all tokens that a row's list does not allow to -inf, in place.

        Args:
            logits_BV: a step's logits.
            rows_B: rows with a list, at least one; other rows are not changed.
            node_B: the node that each list has reached.
            closed: index into `rows_B` -> the node's closed children.

        Returns:
            The same tensor.
        """
        counts_B = self.count_children(node_B)
        ends_B = counts_B.cumsum()
        shifts_B = self._first_child[node_B] - (ends_B - counts_B)  # from a token's index among all to its node
        closed_places = [child - int(shifts_B[place]) for place, children in closed.items() for child in children]
        sent = torch.from_numpy(np.stack([rows_B, shifts_B, counts_B])).to(logits_BV.device)
        rows_W, shift_W, counts_W = sent.unbind()
        which = torch.repeat_interleave(counts_W, output_size=int(ends_B[-1]))  # index into `rows_B` of each token
        nodes_ = torch.arange(len(which), device=which.device) + shift_W[which]
        allowed = (rows_W[which], self._token_L[nodes_].long())
        allowed_logits = logits_BV[allowed]
        if closed_places:
            allowed_logits[torch.tensor(closed_places, device=allowed_logits.device)] = -torch.inf
        logits_BV.index_fill_(0, rows_W, -torch.inf)
        logits_BV[allowed] = allowed_logits
        return logits_BV


class OpenList(NamedTuple):
    """A request's list: its walk, which advances at the end of each line, and the mask of its trie."""

    walk: Walk
    mask: TrieMask


class OpenLists:
    """The lists of a batch, with their nodes in arrays, so that all take a token at once.

    Python runs a walk only at the end of a line. Each list has a key. K: keys, B: lists of a step.
    """

    def __init__(self) -> None:
        self._lists: dict[int, OpenList] = {}
        self._mask_K = np.zeros(0, np.int64)  # the identity of the list's mask, 0 without a list
        self._num_taken_K = np.zeros(0, np.int64)
        self._node_K = np.zeros(0, np.int64)

    def put(self, key: int, open_list: OpenList) -> None:
        """Begin a list, replacing any that had this key."""
        self._reserve(key + 1)
        self._lists[key] = open_list
        self._mask_K[key] = id(open_list.mask)
        self._num_taken_K[key] = 0
        self._node_K[key] = open_list.walk.node

    def remove(self, key: int) -> None:
        if self._lists.pop(key, None):
            self._mask_K[key] = 0

    def has_list(self, keys_B: Int64s) -> npt.NDArray[np.bool_]:
        """Return whether each of these keys has a list."""
        self._reserve(int(keys_B.max(initial=-1)) + 1)
        return self._mask_K[keys_B] > 0

    def _reserve(self, num_keys: int) -> None:
        lacking = num_keys - len(self._mask_K)
        if lacking > 0:
            lacking = max(lacking, len(self._mask_K))  # doubled: lists come one by one
            self._mask_K = np.pad(self._mask_K, (0, lacking))
            self._num_taken_K = np.pad(self._num_taken_K, (0, lacking))
            self._node_K = np.pad(self._node_K, (0, lacking))

    def catch_up(self, keys_B: Int64s, num_tokens_B: Int64s, read: ReadTokens) -> None:
        """Take the tokens that the walks lack: one per list, or all tokens of a list that was preempted.

        Args:
            keys_B: the keys of the lists.
            num_tokens_B: each list's number of tokens; lower than before while vLLM processes its prompt again.
            read: (indices into `keys_B`, numbers of preceding tokens) -> the next token of each.

        Raises:
            ValueError: a token is not allowed.
        """
        while True:
            num_taken_B = self._num_taken_K[keys_B]
            lagging = np.flatnonzero(num_tokens_B > num_taken_B)
            if not len(lagging):
                return
            self._take(keys_B[lagging], read(lagging, num_taken_B[lagging]))

    def _take(self, keys_B: Int64s, token_B: Int64s) -> None:
        self._num_taken_K[keys_B] += 1
        for mask, places in self._group_by_mask(keys_B):
            keys = keys_B[places]
            node = self._node_K[keys]
            is_open = node != END  # tokens after the end are ignored
            keys = keys[is_open]
            child = mask.find_children(node[is_open], token_B[places][is_open])
            for place in np.flatnonzero(child < 0).tolist():
                self._refuse(int(keys[place]), int(token_B[places][is_open][place]))
            self._node_K[keys] = child
            for place in np.flatnonzero(mask.ends_line(child)).tolist():
                key = int(keys[place])
                walk = self._lists[key].walk
                walk.end_line(int(child[place]))
                self._node_K[key] = walk.node

    def _refuse(self, key: int, token: int) -> None:
        num_items = len(self._lists[key].walk.items)
        raise ValueError(f"token {token} is not allowed after {num_items} items (node {self._node_K[key]})")

    def mask(self, logits_BV: torch.Tensor, rows_B: Int64s, keys_B: Int64s) -> torch.Tensor:
        """Mask the rows of these lists in place; other rows are not changed.

        Args:
            logits_BV: logits of a step. A token that the list must not take gets -inf.
            rows_B: the row of each list.
            keys_B: the key of each list.

        Returns:
            The same tensor.
        """
        for mask, places in self._group_by_mask(keys_B):
            keys = keys_B[places]
            node = self._node_K[keys]
            closed = {}
            # A forced token is never closed: the list could not have reached this node.
            for place in np.flatnonzero(mask.count_children(node) > 1).tolist():
                children = self._lists[int(keys[place])].walk.closed.get(int(node[place]))
                if children:
                    closed[place] = children
            mask.apply(logits_BV, rows_B[places], node, closed)
        return logits_BV

    def _group_by_mask(self, keys_B: Int64s) -> Iterator[tuple[TrieMask, Int64s]]:
        """Yield each mask and the indices into `keys_B` of its lists."""
        mask_B = self._mask_K[keys_B]
        for identity in np.unique(mask_B):
            places = np.flatnonzero(mask_B == identity)
            yield self._lists[int(keys_B[places[0]])].mask, places


class ListWriter:
    """Begins a list for each constrained request.

    Args:
        additional_config: vLLM's, with TRIE.
        device: of the logits.

    Raises:
        ValueError: additional_config has no TRIE.
    """

    def __init__(self, additional_config: Any, device: torch.device):
        file = dict(additional_config).get(TRIE)
        if not file:
            raise ValueError(f'constrained lists: start vLLM with additional_config={{"{TRIE}": FILE}}')
        self.file = Path(file)
        self.device = device
        catalog = load_catalog_trie(self.file)
        num_lines = len(catalog.row_W)
        self._trie = cache_tries(self._load_trie, _count_lines, most=MAX_CACHED_TRIES, num_lines=num_lines)
        self._trie(self.file.name)
        # An empty list also needs a trie, and every file may be gone by then. This one is small and stays in memory.
        one_line = select_lines(catalog, np.arange(num_lines) == 0)
        self._empty_list = (one_line, TrieMask(one_line, device))

    def _load_trie(self, name: str) -> tuple[CatalogTrie, TrieMask]:
        catalog = load_catalog_trie(self.file.with_name(name))
        return catalog, TrieMask(catalog, self.device)

    def begin(self, extra_args: Mapping[str, Any] | None) -> OpenList | None:
        """Begin the list of a request.

        Args:
            extra_args: those of the request's sampling parameters.

        Returns:
            The list; None for a request that is not constrained. If the trie that the request names cannot be read,
            an error is logged and the list is empty. A request's trie is deleted when the request is cancelled, maybe
            before the engine begins it; nobody reads that list. `Recommender` would not accept it, either: its tokens
            are not those of the trie.

        Raises:
            ValueError: an argument is invalid.
        """
        arguments = read_arguments(extra_args)
        if arguments is None:
            return None
        num_items, exclude, name = arguments
        try:
            catalog, mask = self._trie(name or self.file.name)
        except (FileNotFoundError, UserError) as error:  # must not end the engine's other requests
            _log.error("%s: returning an empty list, since the trie is not readable: %s", VERSION, error)
            catalog, mask = self._empty_list
            return OpenList(Walk(catalog, 0), mask)
        walk = Walk(catalog, num_items, exclude)
        if walk.num_items < num_items:
            _log.warning("a list gets %d items instead of %d: all others are excluded", walk.num_items, num_items)
        return OpenList(walk, mask)


def _count_lines(loaded: tuple[CatalogTrie, TrieMask]) -> int:
    return len(loaded[0].row_W)


def read_arguments(extra_args: Mapping[str, Any] | None) -> tuple[int, list[int], str] | None:
    """Read the arguments of a constrained request.

    Returns:
        (num_items, excluded items, name of the trie's file or ""); None for a request that is not constrained.

    Raises:
        ValueError: an argument is invalid.
    """
    arguments = extra_args or {}
    if ITEMS not in arguments and EXCLUDE not in arguments:
        return None
    num_items = arguments.get(ITEMS)
    exclude = arguments.get(EXCLUDE, [])
    name = arguments.get(VERSION, "")
    if type(num_items) is not int or num_items < 1:
        raise ValueError(f"{ITEMS} is {num_items!r}, not a positive number of items")
    if not isinstance(exclude, list) or any(type(item) is not int for item in exclude):
        raise ValueError(f"{EXCLUDE} is not a list of catalog rows")
    if not isinstance(name, str) or (name and not _FILE_NAME.fullmatch(name)):
        raise ValueError(f"{VERSION} is {name!r:.100}, not the name of a trie's file")
    return num_items, exclude, name
