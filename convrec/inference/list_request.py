"""A request for a list, ready for the engine: its prompt, and the items that the list may contain."""

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from convrec.inference.served_catalog.snapshot import Snapshot, TrieFile

if TYPE_CHECKING:
    from vllm import SamplingParams


@dataclass(frozen=True)
class EncodedPrompt:
    """An encoded prompt.

    Attributes:
        token_ids: its tokens, with the beginning of the model's turn.
        is_truncated: whether the beginning of the conversation was cut to fit.
    """

    token_ids: list[int]
    is_truncated: bool


@dataclass(frozen=True)
class AllowedItems:
    """The items that a list may contain, in one snapshot of the catalog.

    Attributes:
        snapshot: the catalog.
        trie: the trie of the allowed items.
        excluded: numbers of the allowed items that the list must not contain.
        length: number of items in the list.
        shortage: why the list is shorter than requested; None if it is not.
    """

    snapshot: Snapshot
    trie: TrieFile
    excluded: list[int]
    length: int
    shortage: str | None

    @cached_property
    def remaining(self) -> npt.NDArray[np.int32]:
        """The numbers of the items that the list may contain, ascending."""
        items = self.trie.trie.items  # every request needs them, so they are sorted once per trie
        return items[np.isin(items, self.excluded, invert=True)]

    def find_popular(self, count: int, known: Collection[int] = ()) -> list[int]:
        """Return the `count` most popular items that the list may contain, without the known ones."""
        popular_M = self.snapshot.popular_M
        is_candidate_M = np.isin(popular_M, self.remaining) & ~np.isin(popular_M, [*known])
        return popular_M[is_candidate_M][:count].tolist()


@dataclass(frozen=True)
class ListRequest:
    """The inputs of one list.

    Attributes:
        prompt: the encoded prompt.
        allowed: the items that the list may contain.
        num_items: items that the model writes; with a retrieval, possibly more than the list has.
        questions: open questions, in the form of `Walk`'s `excluded`.
        retrieved: the first items that may be listed, as the retrieval ranks them; [] without a retrieval.
        liked: items that an explanation may refer to; None if no explanations were requested.
    """

    prompt: EncodedPrompt
    allowed: AllowedItems
    num_items: int
    questions: list[int]
    retrieved: list[int]
    liked: set[int] | None

    @property
    def walk_exclusions(self) -> list[int]:
        """`excluded` of convrec.features.constrained.walk.Walk: the open questions, then the excluded items."""
        return self.questions + self.allowed.excluded

    def make_sampling_params(self, streamed: bool) -> "SamplingParams":
        """Return vLLM's sampling parameters; `streamed` requests tokens as they are written."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        from convrec.features.constrained.vllm_lists import EXCLUDE, ITEMS, VERSION

        trie = self.allowed.trie
        return SamplingParams(
            temperature=0.0,
            max_tokens=trie.longest_list(self.num_items),
            logprobs=0,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA if streamed else RequestOutputKind.FINAL_ONLY,
            extra_args={ITEMS: self.num_items, EXCLUDE: self.walk_exclusions, VERSION: trie.path.name},
        )
