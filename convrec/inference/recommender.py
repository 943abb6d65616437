"""`Recommender`: a trained model and a catalog, asked for lists of items.

    with Recommender.load("checkpoints/books", "data/books/catalog.parquet") as recommender:
        for item in recommender.recommend("Something short and funny, please.", k=5):
            print(item.rank, item.title, item.item_id)

Lists hold items of the catalog only, none twice and none that was seen or excluded (convrec.features.constrained). They
are written greedily: the same request has the same list.
"""

import asyncio
import contextlib
import tempfile
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence, Set
from contextlib import ExitStack
from functools import partial
from itertools import islice
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, Unpack

from convrec.base.errors import UserError
from convrec.data.schema import SPEAKERS, before_questions, prompt_text
from convrec.data.template import inference_arguments
from convrec.data.tokenizer import load_tokenizer
from convrec.features.asking.attributes import load_attributes
from convrec.features.asking.turns import question_text
from convrec.features.candidates.prompts import with_candidates
from convrec.features.constrained.walk import Walk
from convrec.inference.conversation import Conversation, conversation_text
from convrec.inference.list_request import AllowedItems, EncodedPrompt, ListRequest
from convrec.inference.lists import Filters, ItemNames, Question, Recommendations, RecommendedItem
from convrec.inference.prompts import encode_prompts
from convrec.inference.request_threads import RequestThreads
from convrec.inference.retrieval import ServedRetrieval
from convrec.inference.served_catalog.columns import check_columns, find_items
from convrec.inference.served_catalog.items import ServedCatalog
from convrec.inference.served_catalog.mentions import COLUMN
from convrec.inference.served_catalog.snapshot import CatalogItem, Snapshot
from convrec.inference.served_model import ServedModel, find_model
from convrec.inference.why import sentence
from convrec.titles.item import NO_YEAR, format_item

if TYPE_CHECKING:
    from convrec.inference.engines.async_engine import Engine

ANSWERS = 12  # to a question, that are offered
FOLLOW_SECONDS = 0.2  # between two looks for changes of other processes
FEW_LIKED = 100  # items that a sentence is chosen among in less than a millisecond
LEAST_CONVERSATION = 64  # tokens of it that are read at least, however long a list can be


class Recommender:
    """Safe to use from several threads and event loops. Make one with `load`."""

    _show: Sequence[str] = ()
    _max_prompt_length = _context = 0  # tokens of a prompt; of a prompt and its list
    _retrieval: ServedRetrieval | None = None
    _template_arguments: Mapping[str, Any] = {}
    _questions: Sequence[Question] = ()

    def __init__(self, model: ServedModel, catalog: ServedCatalog, tokenizer: Any, engine: "Engine"):
        self.model = model
        self.catalog = catalog
        self.engine = engine
        self._tokenizer = tokenizer
        self._threads = RequestThreads()
        self._is_closed = threading.Event()

    @classmethod
    def load(
        cls,
        model: str | Path,
        catalog: str | Path,
        *,
        state: str | Path | None = None,
        item: str | None = None,
        num_items: int | None = None,
        max_items: int = 100,
        max_prompt_length: int = 2048,
        show: Sequence[str] = (),
        retrieval: str | Path | None = None,
        with_engine: bool = True,
        tensor_parallel: int = 1,
        **engine_settings: Any,
    ) -> Self:
        """Start the engine; some 10 s and more.

        model: a run folder (its best checkpoint), RUN/global_step_N, a Hugging Face folder or id. catalog: .parquet or
        .pkl, as in training. state: a folder that keeps what `add_items` and `remove_items` change; several processes
        may share it. item, num_items: what the prompt calls an item and for how many it asks; None: as in training,
        where the run or the catalog says so, else "movie" and 20. max_items: the largest k; less where
        the model's context has no room for such lists (`recommender.catalog.max_items`). max_prompt_length: tokens, or
        the run's if those are more; a longer conversation loses its beginning. show: columns of the catalog that items
        have in answers. retrieval: a folder of `convrec retrieval fit`, whose lists are fused with the model's, and
        whose candidates a model reads that was trained with some. with_engine: without one, there is `popular` alone.
        engine_settings: further arguments of vLLM's engine (dtype, gpu_memory_utilization, ...).

        Raises UserError for a model, catalog or state that cannot be used.
        """
        found = find_model(model, Path(catalog), item, num_items)
        found.check(retrieval)
        max_prompt_length = max(max_prompt_length, found.max_prompt_length)
        if max_items < 1:
            raise UserError(f"max_items {max_items}: at least 1")
        tokenizer, context = load_tokenizer(found.path)
        template_arguments = inference_arguments(tokenizer, found.chat_template_kwargs)
        with ExitStack() as opened:
            folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="convrec-serving-")))
            text = prompt_text("USER: \n", max(max_items, found.lists.num_items), found.item)
            instruction = [{"role": "user", "content": text}]
            (ids,), _ = encode_prompts(tokenizer, [instruction], context, template_arguments)
            least = min(max_prompt_length, len(ids) + LEAST_CONVERSATION)
            served = ServedCatalog(
                Path(catalog),
                tokenizer,
                found.lists,
                folder,
                Path(state) if state else None,
                max_items=max_items,
                max_tokens=context - least,
                questions=[question_text(name) for name in found.ask],
            )
            check_columns(show, served.columns, "show")
            fuses = with_engine and not found.candidates
            beside = ServedRetrieval(Path(retrieval), Path(catalog), found.lists, fuses) if retrieval else None
            asked = load_attributes(catalog, found.ask, "the model was trained with ASK =") if found.ask else None
            trie = served.snapshot.trie
            context = min(context, max_prompt_length + trie.longest_list(served.max_items))
            served.max_tokens = context - least  # of what is put from now on
            engine: Any = None
            if with_engine:
                from convrec.inference.engines.async_engine import Engine  # imports vLLM

                engine = Engine(
                    found.path,
                    str(trie.path),
                    max_model_len=context,
                    tensor_parallel=tensor_parallel,
                    **engine_settings,
                )
                opened.callback(engine.close)
            recommender = cls(found, served, tokenizer, engine)
            recommender._show = show
            recommender._retrieval = beside
            recommender._template_arguments = template_arguments
            recommender._max_prompt_length = max_prompt_length
            recommender._context = context
            if asked:
                recommender._questions = [
                    Question(question_text(name), name, asked.commonest(name, ANSWERS)) for name in asked.names
                ]
            opened.callback(recommender._is_closed.set)
            recommender._end = weakref.finalize(recommender, opened.pop_all().close)
            return recommender

    _end: Any = None

    @property
    def model_version(self) -> str:
        """The checkpoint's name and the beginning of the hash of its contents."""
        return self.model.version

    # ---- lists

    def recommend(self, conversation: Conversation, k: int = 20, **filters: Unpack[Filters]) -> Recommendations:
        """The list of k items for a conversation; fewer, with a reason, where fewer are left.

        conversation: a text, which is the user's; messages {"role": "user" | "assistant", "content": text}, the user's
        last; or "USER: ...\\nSYSTEM: ...\\nUSER: ...\\n", as in the data. seen, exclude: items that must not be in the
        list; what the catalog lacks is passed over. allow: the only items that may be; None: all of the catalog.
        where: conditions on columns that every item fits, as {"category": ["Mystery"], "price": {"max": 20},
        "in_stock": True}. why: give items a sentence, where one is so; it may compare them with what the user `liked`.
        may_ask: a model that was trained with ASK may answer with a `question` and no items; the next call has it as a
        turn of the conversation, and what the user said to it.

        Raises UserError, which names the argument, for what cannot be read.
        """
        request = self._prepare(conversation, k, **filters)
        return self.engine.run(self._write(request))

    async def arecommend(self, conversation: Conversation, k: int = 20, **filters: Unpack[Filters]) -> Recommendations:
        """`recommend` for asynchronous code; cancelled, the engine stops writing."""
        request = await self._threads.run(self._prepare, conversation, k, **filters)
        return await self.engine.arun(self._write(request))

    def recommend_batch(
        self, conversations: Sequence[Conversation], k: int = 20, filters: Sequence[Filters] | None = None
    ) -> list[Recommendations]:
        """A list for each conversation, written together. filters: `seen`, `allow`, `where`, ... of each.

        Raises UserError, which names the conversation by its number from 0, before any list is written.
        """
        all_filters = [Filters()] * len(conversations) if filters is None else filters
        if len(all_filters) != len(conversations):
            raise UserError(f"filters: {len(all_filters)} for {len(conversations)} conversations; give one each")
        requests = []
        for number, (said, given) in enumerate(zip(conversations, all_filters, strict=True)):
            try:
                requests.append(self._prepare(said, k, **given))
            except UserError as error:
                raise UserError(f"conversation {number}: {error}") from None

        async def write_all() -> list[Recommendations]:
            return await asyncio.gather(*map(self._write, requests))

        return self.engine.run(write_all())

    def open_stream(
        self, conversation: Conversation, k: int = 20, **filters: Unpack[Filters]
    ) -> tuple[Recommendations, AsyncIterator[RecommendedItem | Question]]:
        """(what is known of the list before its first item, with no items; the items, each as soon as its line is
        finished, or a question alone). Where the items are closed early, the engine stops."""
        return self._stream(self._prepare(conversation, k, **filters))

    async def aopen_stream(
        self, conversation: Conversation, k: int = 20, **filters: Unpack[Filters]
    ) -> tuple[Recommendations, AsyncIterator[RecommendedItem | Question]]:
        """`open_stream` for asynchronous code, whose event loop the request does not hold up."""
        return self._stream(await self._threads.run(self._prepare, conversation, k, **filters))

    def popular(self, conversation: Conversation, k: int = 20, **filters: Unpack[Filters]) -> Recommendations:
        """`recommend` without the engine, at once: the list of the retrieval that was loaded, without one items that
        are wanted most often, whatever was said. For when no list comes in time, or the engine is gone. Raises
        UserError as well where nothing is known of popularity."""
        if not self._retrieval and self.catalog.latest.mentions is None and COLUMN not in self.catalog.columns.names:
            raise UserError(f"fallback: nothing says what is popular; give --train, or the catalog a column {COLUMN}")
        request = self._prepare(conversation, k, waits=False, **filters)
        allowed = request.allowed
        remaining = allowed.remaining()
        ranked = request.retrieved or (number for number in allowed.snapshot.popular if number in remaining)
        best = enumerate(islice(ranked, allowed.length), 1)
        items = tuple(self._item(request, number, rank, None) for rank, number in best)
        return self._answer(request, items, fallback=True)

    async def apopular(self, conversation: Conversation, k: int = 20, **filters: Unpack[Filters]) -> Recommendations:
        """`popular` for asynchronous code, whose event loop the request does not hold up."""
        return await self._threads.run(self.popular, conversation, k, **filters)

    # ---- the catalog

    def add_items(self, items: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
        """Add items, or replace those with the same item_id: {"item_id", "title", "year" where items have years} and
        further columns of the catalog; what is left out has no value.

        The next request can have them; lists that are being written do not change. Raises UserError, and adds none.
        Returns the columns that had a value and have none now, by item_id.
        """
        return self.catalog.put(items)

    def change_items(self, items: Sequence[Mapping[str, Any]]) -> None:
        """Change single fields of items: {"item_id"} and what changes; None takes a value away.

        Raises UserError, and changes none, for an item that is not in the catalog.
        """
        self.catalog.patch(items)

    def remove_items(self, ids: Sequence[str | int]) -> list[str]:
        """Remove items by their ids. Returns those that are not there."""
        return self.catalog.delete(ids)

    def follow_changes(self) -> None:
        """Take changes of other processes as they come, in a thread of this object until it is closed, so that no
        request waits for them. What cannot be read is said by requests."""
        self.warm()

        def follow() -> None:
            while not self._is_closed.wait(FOLLOW_SECONDS):
                with contextlib.suppress(UserError, OSError):
                    self.warm()

        threading.Thread(target=follow, name="convrec-changes", daemon=True).start()

    def warm(self) -> None:
        """Make now what the first request after a change of the catalog would make."""
        snapshot = self.catalog.snapshot
        snapshot.warm()
        if self._retrieval:
            self._retrieval.warm(snapshot)

    # ---- the end

    def close(self) -> None:
        """End the engine; lists that are being written fail. Also at the end of the process, and of a `with`."""
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # ---- parts

    def _prepare(
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
        """waits: for changes of the catalog that are being applied; else the items that they are of are left out."""
        text = conversation_text(conversation)
        snapshot, changing = (self.catalog.snapshot, ()) if waits else self.catalog.at_once()
        where_fits = partial(self._items_where, where, ignore_case) if where is not None else None
        exclude = [*exclude, *changing] if changing else exclude
        allowed = self._choose_items(snapshot, k, seen, allow, exclude, where_fits)
        liked_items = self._find("liked", liked, snapshot)
        num_items = allowed.length
        retrieved: list[int] = []
        if self._retrieval:
            remaining = allowed.remaining()
            first = before_questions(text) if self._questions else text  # an answer leaves the candidates as they were
            known = self._find("seen", seen, snapshot) | liked_items
            retrieved = self._retrieval.rank(first, known, remaining, snapshot)
            if self._retrieval.fusion:  # the model's list as it was weighed, whatever k is
                num_items = min(max(k, min(self.model.lists.num_items, self.catalog.max_items)), len(remaining))
        return ListRequest(
            prompt=self._encode_prompt(text, k, allowed, num_items, retrieved),
            allowed=allowed,
            num_items=num_items,
            questions=self._open_questions(text) if may_ask else [],
            retrieved=retrieved,
            liked=liked_items if why else None,
        )

    def _encode_prompt(
        self, conversation: str, k: int, allowed: AllowedItems, num_items: int, retrieved: Sequence[int]
    ) -> EncodedPrompt:
        """The prompt for `num_items` items, with the best of the retrieval where the model was trained with some."""
        # Shorter lists are the beginning of the list that the model was trained to write.
        longest = max(k, self.model.lists.num_items)
        prompt = prompt_text(conversation, longest, self.model.item, self.catalog.dated)
        best = (allowed.snapshot.items[number] for number in retrieved[: self.model.candidates])
        prompt = with_candidates(prompt, [format_item(item.title, item.year or NO_YEAR) for item in best])
        limit = min(self._max_prompt_length, self._context - allowed.trie.longest_list(max(num_items, 1)))
        messages = [[{"role": "user", "content": prompt}]]
        (token_ids,), (is_truncated,) = encode_prompts(self._tokenizer, messages, limit, self._template_arguments)
        return EncodedPrompt(token_ids, is_truncated)

    def _open_questions(self, conversation: str) -> list[int]:
        """As walks have them; none twice, and none where the turn that is left is the list's."""
        said = conversation.split("\n")
        asked = [f"{SPEAKERS['assistant']}: {question.text}" in said for question in self._questions]
        is_last = sum(asked) >= self.model.max_turns - 1
        return [] if is_last else [-1 - place for place, again in enumerate(asked) if not again]

    def _choose_items(
        self,
        snapshot: Snapshot,
        k: int,
        seen: ItemNames,
        allow: ItemNames | None,
        exclude: ItemNames,
        items_where: Callable[[Snapshot], set[int]] | None,
    ) -> AllowedItems:
        if isinstance(k, bool) or not isinstance(k, int) or not 1 <= k <= self.catalog.max_items:
            raise UserError(f"k: {k!r:.20}; give a whole number from 1 to {self.catalog.max_items}")
        excluded = self._find("seen", seen, snapshot) | self._find("exclude", exclude, snapshot)
        allowed: Set[int] = snapshot.items.keys()
        of = f"the catalog's {len(allowed)} items"
        if allow is not None:
            allowed = self._find("allow", allow, snapshot)
            of = f"the {len(allowed)} items allowed"
        if items_where is not None:
            allowed = allowed & items_where(snapshot)
            of += f", of which {len(allowed)} fit `where`,"
        is_part = 0 < len(allowed) < len(snapshot.items)
        trie = snapshot.trie_with(frozenset(allowed)) if is_part else snapshot.trie
        excluded &= allowed
        left = len(allowed) - len(excluded)
        shortage = None
        if left < k:
            shortage = f"of {of} {len(excluded)} are seen or excluded, which leaves {left} for a list of {k}"
        return AllowedItems(
            snapshot=snapshot, trie=trie, excluded=sorted(excluded), length=min(k, left), shortage=shortage
        )

    def _items_where(self, where: Any, ignore_case: bool, snapshot: Snapshot) -> set[int]:
        return find_items(where, self.catalog.columns, snapshot.items, snapshot.get_values, ignore_case)

    def _find(self, name: str, entries: ItemNames, snapshot: Snapshot) -> set[int]:
        if isinstance(entries, str | bytes | Mapping) or not isinstance(entries, Collection):
            raise UserError(f"{name}: write a list of item ids or of `Title (Year)`")
        names = set[tuple[type, Any]]()  # a title that is there 10,000 times, and has 10,000 editions, is found once
        for index, entry in enumerate(entries):
            if isinstance(entry, bool) or not isinstance(entry, str | Integral):
                raise UserError(f"{name}[{index}] is {entry!r:.40}; write an item id or `Title (Year)`")
            names.add((type(entry), entry))
        return {number for _, entry in names for number in self.catalog.find(entry, snapshot)}

    def _stream(self, request: ListRequest) -> tuple[Recommendations, AsyncIterator[RecommendedItem | Question]]:
        return self._answer(request, ()), self.engine.iterate(self._items(request))

    async def _write(self, request: ListRequest) -> Recommendations:
        written = [entry async for entry in self._items(request, streamed=False)]
        items = tuple(entry for entry in written if isinstance(entry, RecommendedItem))
        question = next((entry for entry in written if isinstance(entry, Question)), None)
        return self._answer(request, items, question=question)

    def _answer(
        self,
        request: ListRequest,
        items: tuple[RecommendedItem, ...],
        question: Question | None = None,
        fallback: bool = False,
    ) -> Recommendations:
        return Recommendations(
            items=items,
            reason=request.allowed.shortage,
            model_version=self.model_version,
            prompt_truncated=request.prompt.is_truncated,
            question=question,
            fallback=fallback,
        )

    async def _items(self, request: ListRequest, streamed: bool = True) -> AsyncIterator[RecommendedItem | Question]:
        """On the engine's loop. With a retrieval all come once the model's list is whole."""
        if self._retrieval is None or not self._retrieval.fusion:
            rank = 0
            async for number, score in self._written(request, streamed):
                rank += 1
                if number < 0:
                    yield self._questions[-1 - number]
                else:
                    yield await self._described(request, number, rank, score)
            return
        scores = {number: score async for number, score in self._written(request, streamed=False)}
        if (asked := -1 - min(scores, default=0)) >= 0:
            yield self._questions[asked]
            return
        fused = self._retrieval.fusion.of([*scores], request.retrieved)[: request.allowed.length]
        for rank, number in enumerate(fused, 1):
            yield await self._described(request, number, rank, scores.get(number))

    async def _written(self, request: ListRequest, streamed: bool) -> AsyncIterator[tuple[int, float]]:
        """The items that the model writes, by their numbers, with their scores; -1 - q, if it asks its question q."""
        if request.num_items == 0:
            return
        walk = Walk(request.allowed.trie.trie, request.num_items, request.walk_exclusions)
        # of the item that is being written
        total = 0.0
        choices = 0
        async for output in self.engine.outputs(request.prompt.token_ids, request.sampling(streamed)):
            answer = output.outputs[0]
            for token, token_log_probs in zip(answer.token_ids, answer.logprobs or (), strict=True):
                if walk.num_choices() > 1:
                    total = total + token_log_probs[token].logprob
                    choices = choices + 1
                written = len(walk.items)
                walk.advance(token)
                if len(walk.items) > written:
                    score = total / choices if choices else 0.0
                    total = 0.0
                    choices = 0
                    yield walk.items[-1], score

    async def _described(self, request: ListRequest, number: int, rank: int, score: float | None) -> RecommendedItem:
        """`_item`; in a thread where its sentence is chosen among many liked items."""
        if len(request.liked or ()) <= FEW_LIKED:
            return self._item(request, number, rank, score)
        return await asyncio.to_thread(self._item, request, number, rank, score)

    def _item(self, request: ListRequest, number: int, rank: int, score: float | None) -> RecommendedItem:
        item = request.allowed.snapshot.items[number]
        why = None if request.liked is None else sentence(number, request.liked, request.allowed.snapshot)
        columns = self.shown_columns(item)
        return RecommendedItem(item.item_id, item.title, item.clean_title, item.year, columns, rank, score, why)

    def shown_columns(self, item: CatalogItem) -> dict[str, Any]:
        """The columns of an item that answers have."""
        return {name: item.columns[name] for name in self._show}
