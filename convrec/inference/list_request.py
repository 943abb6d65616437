"""A request for a list that is ready for the engine: its prompt, and what the list may hold."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from convrec.inference.served_catalog.snapshot import Snapshot, TrieFile

if TYPE_CHECKING:
    from vllm import SamplingParams


@dataclass(frozen=True)
class EncodedPrompt:
    """The prompt as the model reads it, and whether the conversation has lost its beginning."""

    token_ids: list[int]
    is_truncated: bool


@dataclass(frozen=True)
class AllowedItems:
    """The items that a list may hold, in one snapshot of the catalog.

    Attributes:
        snapshot: of the catalog.
        trie: of the items that are allowed.
        excluded: numbers of those among them that the list must not hold.
        length: items of the list.
        shortage: why those are fewer than were asked for; None where they are not.
    """

    snapshot: Snapshot
    trie: TrieFile
    excluded: list[int]
    length: int
    shortage: str | None

    def remaining(self) -> set[int]:
        """The numbers of the items that the list may hold."""
        return set(self.trie.trie.item_W.tolist()) - set(self.excluded)


@dataclass(frozen=True)
class ListRequest:
    """What one list is written from.

    Attributes:
        prompt: as the model reads it.
        allowed: the items that it may name.
        num_items: items that the model writes; beside a retrieval they can be more than the list has.
        questions: that it may ask in place of a list, as walks have them.
        retrieved: all items that may be listed, as the retrieval ranks them; [] without one.
        liked: items that a sentence may compare with; None: no sentences are wanted.
    """

    prompt: EncodedPrompt
    allowed: AllowedItems
    num_items: int
    questions: list[int]
    retrieved: list[int]
    liked: set[int] | None

    @property
    def walk_exclusions(self) -> list[int]:
        """`excluded` of convrec.features.constrained.walk: the questions that are open, then the excluded items."""
        return self.questions + self.allowed.excluded

    def sampling(self, streamed: bool) -> "SamplingParams":
        """vLLM's parameters. streamed: whether tokens come as they are written."""
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
