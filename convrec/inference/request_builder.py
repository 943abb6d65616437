"""Build the request for a list from the arguments of `Recommender.recommend`: what they mean, and what the model reads.

A request says which items the list may contain, which the retrieval ranks first, and what the prompt is. Nothing here
needs an engine.
"""

from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from numbers import Integral
from typing import Any

from convrec.base.errors import UserError
from convrec.data.schema import SPEAKERS, format_prompt, strip_questions
from convrec.features.candidates.prompts import with_candidates
from convrec.inference.conversation import Conversation, conversation_text
from convrec.inference.list_request import AllowedItems, EncodedPrompt, ListRequest
from convrec.inference.lists import ItemNames, Question
from convrec.inference.prompts import encode_prompts
from convrec.inference.retrieval import ServedRetrieval
from convrec.inference.served_catalog.columns import find_items
from convrec.inference.served_catalog.items import ServedCatalog
from convrec.inference.served_catalog.snapshot import Snapshot
from convrec.inference.served_model import ServedModel
from convrec.retrieval.retriever import DEPTH
from convrec.titles.item import NO_YEAR, format_item


@dataclass
class RequestBuilder:
    """Builds the requests of a model with a served catalog. Thread-safe.

    Attributes:
        model: the model, and the prompts that it was trained on.
        catalog: the served catalog.
        tokenizer: the model's tokenizer.
        template_arguments: arguments of the chat template besides the messages.
        max_prompt_length: tokens of a prompt.
        context: tokens of a prompt and its list.
        retrieval: ranks the items of a request; None without one.
        questions: the questions that the model may ask, in the order of its walk.
    """

    model: ServedModel
    catalog: ServedCatalog
    tokenizer: Any
    template_arguments: Mapping[str, Any]
    max_prompt_length: int
    context: int
    retrieval: ServedRetrieval | None = None
    questions: Sequence[Question] = ()

    def build(
        self,
        conversation: Conversation,
        k: int,
        seen: ItemNames = (),
        allow: ItemNames | None = None,
        exclude: ItemNames = (),
        where: Mapping[str, Any] | None = None,
        why: bool = False,
        liked: ItemNames = (),
        may_ask: bool = False,
        ignore_case: bool = False,
        waits: bool = True,
    ) -> ListRequest:
        """Build a request from the arguments of `Recommender.recommend`.

        Args:
            conversation: see `Recommender.recommend`; also for the other arguments.
            k: number of items, 1 to `catalog.max_items`.
            seen: items that must not be in the list, and that count as named in the conversation.
            allow: the only items that may be in the list; None for the whole catalog.
            exclude: further items that must not be in the list.
            where: conditions on columns; None for none.
            why: whether to explain items.
            liked: items that explanations may refer to, and that count as named in the conversation.
            may_ask: whether the model may ask a question instead.
            ignore_case: whether `where` ignores the case of texts.
            waits: whether to wait for changes of the catalog that are being applied; if not, the changing items are
                excluded.

        Raises:
            UserError: an argument is invalid; the message names it.
        """
        text = conversation_text(conversation)
        snapshot, changing = (self.catalog.snapshot, ()) if waits else self.catalog.read_without_waiting()
        find_matches = partial(self._find_matches, where, ignore_case) if where is not None else None
        exclude = [*exclude, *changing] if changing else exclude
        allowed = self._choose_items(snapshot, k, seen, allow, exclude, find_matches)
        liked_items = self.find_items("liked", liked, snapshot)
        num_items = allowed.length
        retrieved: list[int] = []
        if self.retrieval:
            first_turns = strip_questions(text) if self.questions else text  # an answer does not change candidates
            named = self.find_items("seen", seen, snapshot) | liked_items
            if self.retrieval.fusion:  # a model's list of the length for which the weight was chosen, whatever k is
                usual_length = min(self.model.lists.num_items, self.catalog.max_items)
                num_items = min(max(k, usual_length), len(allowed.remaining))
            num_retrieved = max(k, self.model.candidates, DEPTH)
            retrieved = self.retrieval.rank(first_turns, named, allowed, num_retrieved)
        return ListRequest(
            prompt=self._encode_prompt(text, k, allowed, num_items, retrieved),
            allowed=allowed,
            num_items=num_items,
            questions=self._find_open_questions(text) if may_ask else [],
            retrieved=retrieved,
            liked=liked_items if why else None,
        )

    def find_items(self, name: str, entries: ItemNames, snapshot: Snapshot) -> set[int]:
        """Find the items that the names of an argument stand for.

        Args:
            name: of the argument, for errors.
            entries: item ids and titles; names that the catalog lacks are ignored.
            snapshot: the catalog.

        Returns:
            The items' numbers.

        Raises:
            UserError: the argument is not a collection, or an entry is not a name.
        """
        if isinstance(entries, str | bytes | Mapping) or not isinstance(entries, Collection):
            raise UserError("recommender.items", f"{name}: expected a list of item ids or of `Title (Year)`.")
        names = set[tuple[type, Any]]()  # a title that occurs 10,000 times and has 10,000 editions is looked up once
        for index, entry in enumerate(entries):
            if isinstance(entry, bool) or not isinstance(entry, str | Integral):
                raise UserError(
                    "recommender.items", f"{name}[{index}] is {entry!r:.40}, not an item id or `Title (Year)`."
                )
            names.add((type(entry), entry))
        return {number for _, entry in names for number in self.catalog.find(entry, snapshot)}

    def _choose_items(
        self,
        snapshot: Snapshot,
        k: int,
        seen: ItemNames,
        allow: ItemNames | None,
        exclude: ItemNames,
        find_matches: Callable[[Snapshot], set[int]] | None,
    ) -> AllowedItems:
        if isinstance(k, bool) or not isinstance(k, int) or not 1 <= k <= self.catalog.max_items:
            raise UserError("recommender.k", f"k: {k!r:.20} is not a whole number from 1 to {self.catalog.max_items}.")
        excluded = self.find_items("seen", seen, snapshot) | self.find_items("exclude", exclude, snapshot)
        allowed: Set[int] = snapshot.items.keys()
        counts = f"{len(allowed)} items in the catalog"
        if allow is not None:
            allowed = self.find_items("allow", allow, snapshot)
            counts = f"{len(allowed)} items allowed"
        if find_matches is not None:
            allowed = allowed & find_matches(snapshot)
            counts += f", {len(allowed)} match `where`"
        is_part = 0 < len(allowed) < len(snapshot.items)
        trie = snapshot.select_trie(frozenset(allowed)) if is_part else snapshot.trie
        excluded &= allowed
        left = len(allowed) - len(excluded)
        shortage = None
        if left < k:
            shortage = f"{counts}, {len(excluded)} seen or excluded: {left} left for a list of {k}"
        return AllowedItems(
            snapshot=snapshot, trie=trie, excluded=sorted(excluded), length=min(k, left), shortage=shortage
        )

    def _find_matches(self, where: Any, ignore_case: bool, snapshot: Snapshot) -> set[int]:
        return find_items(where, self.catalog.columns, snapshot.items, snapshot.get_values, ignore_case)

    def _encode_prompt(
        self, conversation: str, k: int, allowed: AllowedItems, num_items: int, retrieved: Sequence[int]
    ) -> EncodedPrompt:
        """Encode the prompt for `num_items` items, with candidates if the model was trained with them."""
        # a shorter list is the beginning of the list that the model was trained to write
        longest = max(k, self.model.lists.num_items)
        prompt = format_prompt(conversation, longest, self.model.item, self.catalog.dated)
        best = (allowed.snapshot.items[number] for number in retrieved[: self.model.candidates])
        prompt = with_candidates(prompt, [format_item(item.title, item.year or NO_YEAR) for item in best])
        limit = min(self.max_prompt_length, self.context - allowed.trie.longest_list(max(num_items, 1)))
        messages = [[{"role": "user", "content": prompt}]]
        (token_ids,), (is_truncated,) = encode_prompts(self.tokenizer, messages, limit, self.template_arguments)
        return EncodedPrompt(token_ids, is_truncated)

    def _find_open_questions(self, conversation: str) -> list[int]:
        """Return the questions not asked yet, in the form of `Walk`'s `excluded`; none in the last turn."""
        lines = conversation.split("\n")
        is_asked = [f"{SPEAKERS['assistant']}: {question.text}" in lines for question in self.questions]
        is_last_turn = sum(is_asked) >= self.model.max_turns - 1
        return [] if is_last_turn else [-1 - place for place, repeated in enumerate(is_asked) if not repeated]
