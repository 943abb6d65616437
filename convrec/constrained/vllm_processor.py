"""vLLM's batch logits processor: requests that say `constrained_items` write lists of the catalog only.

    LLM(..., logits_processors=[PROCESSOR], additional_config={TRIE: "catalog.parquet.trie-KEY.npz"})
    SamplingParams(..., extra_args={ITEMS: 20, EXCLUDE: [rows of items]})

A request may name another trie, {VERSION: "NAME.npz"}, a file beside the first: so a catalog changes while lists are
written, and each is finished with the trie that it began with.

The state of a request is a `Walk` over its tokens so far. vLLM hands over a live list of these tokens; a preempted
request comes back with its tokens and is walked again. With asynchronous scheduling the list holds -1 for a token that
is still on the device, until vLLM repairs it right before `apply` (vLLM issue 52461: it does so where a processor is
given by name, as this one, and not for those registered in other ways). So tokens are read in `apply` alone, and a -1
there is an error, not a token.
"""

import logging
import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates

from convrec.constrained.catalog_trie import CatalogTrie, load_catalog_trie
from convrec.constrained.mask import TrieMask
from convrec.constrained.walk import Walk
from convrec.errors import UserError

if TYPE_CHECKING:
    from vllm.config import VllmConfig


TRIE = "constrained_trie"  # of additional_config
# of extra_args, which are vllm_xargs of vLLM's server
ITEMS, EXCLUDE, VERSION = "constrained_items", "constrained_exclude", "constrained_version"
TRIES_KEPT = 8  # besides those of lists that are being written
_FILE_NAME = re.compile(r"\w[\w.-]*\.npz")
_log = logging.getLogger("vllm.constrained")  # below vLLM's, whose handlers it has


class _List:
    """A request's walk, the mask of its trie and how many of its tokens it has taken."""

    def __init__(self, walk: Walk, mask: TrieMask, tokens: Sequence[int]):
        self.walk, self.mask, self.tokens, self.taken = walk, mask, tokens, 0

    def catch_up(self) -> None:
        for token in self.tokens[self.taken :]:
            if token < 0:
                raise RuntimeError(
                    "vLLM's asynchronous scheduling hid a token from the constraint (vLLM issue 52461): give the "
                    "processor by its name, or start vLLM with async_scheduling=False"
                )
            self.walk.advance(token)
            self.taken += 1


class CatalogLogitsProcessor(LogitsProcessor):
    """Masks the rows of constrained requests; others are left alone."""

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        _arguments(sampling_params)

    def __init__(self, vllm_config: "VllmConfig", device: torch.device, is_pin_memory: bool):
        file = dict(vllm_config.additional_config).get(TRIE)
        if not file:
            raise ValueError(f'constrained lists: start vLLM with additional_config={{"{TRIE}": FILE}}')
        self.file, self.device = Path(file), device
        self.lists: dict[int, _List] = {}
        self._trie = lru_cache(TRIES_KEPT)(self._load_trie)
        self._trie(self.file.name)

    def _load_trie(self, name: str) -> tuple[CatalogTrie, TrieMask]:
        catalog = load_catalog_trie(self.file.with_name(name))
        return catalog, TrieMask(catalog, self.device)

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        process_dict_updates(self.lists, batch_update, self._new_list)

    def _new_list(self, params: SamplingParams, _: list[int] | None, tokens: list[int]) -> _List | None:
        arguments = _arguments(params)
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
        return _List(walk, mask, tokens)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        walks_of: dict[TrieMask, dict[int, Walk]] = {}
        for row, one in self.lists.items():
            one.catch_up()
            walks_of.setdefault(one.mask, {})[row] = one.walk
        for mask, walks in walks_of.items():
            mask.apply(logits, walks)
        return logits


def _arguments(params: SamplingParams) -> tuple[int, list[int], str] | None:
    """(num_items, excluded items, name of the trie's file or "") of a constrained request, None for another. Raises
    ValueError."""
    given: dict[str, Any] = params.extra_args or {}
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


PROCESSOR = f"{__name__}:{CatalogLogitsProcessor.__name__}"
