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

import torch

from convrec.constrained.catalog_trie import CatalogTrie, load_catalog_trie
from convrec.constrained.mask import TrieMask
from convrec.constrained.walk import Walk
from convrec.errors import UserError

PROCESSOR = "convrec.constrained.vllm_processor:CatalogLogitsProcessor"
TRIE = "constrained_trie"  # of additional_config
# of extra_args, which are vllm_xargs of vLLM's server
ITEMS, EXCLUDE, VERSION = "constrained_items", "constrained_exclude", "constrained_version"
TRIES_KEPT = 8  # besides those of lists that are being written
_FILE_NAME = re.compile(r"\w[\w.-]*\.npz")
_log = logging.getLogger("vllm.constrained")  # below vLLM's, whose handlers it has


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
