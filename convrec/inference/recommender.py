"""`Recommender`: recommends items of a catalog with a trained model.

    with Recommender.load("checkpoints/books", "data/books/catalog.parquet") as recommender:
        for item in recommender.recommend("Something short and funny, please.", k=5):
            print(item.rank, item.title, item.item_id)

Lists contain only items of the catalog, none twice and none that was seen or excluded (convrec.features.constrained).
Decoding is greedy: the same request gets the same list.
"""

import asyncio
import contextlib
import tempfile
import threading
import weakref
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, Unpack

from convrec.base.errors import UserError
from convrec.data.schema import format_prompt
from convrec.data.template import build_inference_arguments
from convrec.data.tokenizer import load_tokenizer
from convrec.features.asking.attributes import load_attributes
from convrec.features.asking.turns import format_question
from convrec.features.constrained.walk import Walk
from convrec.inference.conversation import Conversation
from convrec.inference.list_request import ListRequest
from convrec.inference.lists import Filters, Question, Recommendations, RecommendedItem
from convrec.inference.prompts import encode_prompts
from convrec.inference.request_builder import RequestBuilder
from convrec.inference.request_threads import RequestThreads
from convrec.inference.retrieval import ServedRetrieval
from convrec.inference.served_catalog.columns import check_columns
from convrec.inference.served_catalog.items import ServedCatalog
from convrec.inference.served_catalog.mentions import COLUMN
from convrec.inference.served_catalog.snapshot import CatalogItem
from convrec.inference.served_model import find_model
from convrec.inference.why import explain_item

if TYPE_CHECKING:
    from convrec.inference.engines.async_engine import Engine

MAX_ANSWERS = 12  # answers offered for a question
FOLLOW_SECONDS = 0.2  # between two checks for changes by other processes
FEW_LIKED = 100  # up to this many liked items, explaining an item takes less than a millisecond
MIN_CONVERSATION_TOKENS = 64  # tokens of a conversation that always fit, however long a list can be


class Recommender:
    """Recommends items of a catalog with a trained model; make one with `load`.

    Safe to use from several threads and event loops.
    """

    def __init__(self, requests: RequestBuilder, engine: "Engine", show: Sequence[str] = ()):
        """Put the parts together that `load` makes.

        Args:
            requests: build requests, and have the model, the catalog, the retrieval and the questions.
            engine: writes lists.
            show: catalog columns to show with the items of a list.
        """
        self.model = requests.model
        self.catalog = requests.catalog
        self.engine = engine
        self._requests = requests
        self._show = show
        self._threads = RequestThreads()
        self._is_closed = threading.Event()
        self._end: Any = None  # set by `load`: ends the engine and removes the folder of tries

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
        """Start the engine, which takes 10 seconds or more.

        Args:
            model: a run folder (its best checkpoint), RUN/global_step_N, or a Hugging Face folder or id.
            catalog: .parquet or .pkl, as in training.
            state: a folder for the changes of `add_items` and `remove_items`, which several processes may share; None
                to lose them at the end.
            item: what the prompt calls an item. None: as in training, if the run or the catalog tells; else "movie".
            num_items: how many items the prompt asks for. None: as in training, if the run or the catalog tells; else
                20.
            max_items: the largest k. It is lowered if the model's context has no room for such lists
                (`recommender.catalog.max_items`).
            max_prompt_length: tokens of a prompt, or the run's setting if that is larger; a longer conversation loses
                its beginning.
            show: catalog columns to show with the items of a list.
            retrieval: a folder of `convrec retrieval fit`. Its lists are fused with the model's; a model trained with
                candidates gets them in its prompts instead.
            with_engine: False for `popular` only.
            tensor_parallel: GPUs of the engine.
            **engine_settings: further arguments of vLLM's engine (dtype, gpu_memory_utilization, ...).

        Raises:
            UserError: the model, catalog, state or retrieval cannot be used.
        """
        served_model = find_model(model, Path(catalog), item, num_items)
        served_model.check(retrieval)
        max_prompt_length = max(max_prompt_length, served_model.max_prompt_length)
        if max_items < 1:
            raise UserError("recommender.max-items", f"max_items {max_items}: must be at least 1.")
        tokenizer, context = load_tokenizer(served_model.path)
        template_arguments = build_inference_arguments(tokenizer, served_model.chat_template_kwargs)
        with ExitStack() as resources:
            folder = Path(resources.enter_context(tempfile.TemporaryDirectory(prefix="convrec-serving-")))
            text = format_prompt("USER: \n", max(max_items, served_model.lists.num_items), served_model.item)
            instruction = [{"role": "user", "content": text}]
            (instruction_ids,), _ = encode_prompts(tokenizer, [instruction], context, template_arguments)
            min_prompt_tokens = min(max_prompt_length, len(instruction_ids) + MIN_CONVERSATION_TOKENS)
            served_catalog = ServedCatalog(
                Path(catalog),
                tokenizer,
                served_model.lists,
                folder,
                Path(state) if state else None,
                max_items=max_items,
                max_tokens=context - min_prompt_tokens,
                questions=[format_question(name) for name in served_model.ask],
            )
            check_columns(show, served_catalog.columns, "show")
            fuses = with_engine and not served_model.candidates
            served_retrieval = None
            if retrieval:
                served_retrieval = ServedRetrieval(Path(retrieval), Path(catalog), served_model.lists, fuses)
            questions = _load_questions(catalog, served_model.ask)
            trie = served_catalog.snapshot.trie
            context = min(context, max_prompt_length + trie.longest_list(served_catalog.max_items))
            served_catalog.limit_tokens(context - min_prompt_tokens)
            engine: Any = None
            if with_engine:
                from convrec.inference.engines.async_engine import Engine  # imports vLLM

                engine = Engine(
                    served_model.path,
                    str(trie.path),
                    max_model_len=context,
                    tensor_parallel=tensor_parallel,
                    **engine_settings,
                )
                resources.callback(engine.close)
            requests = RequestBuilder(
                model=served_model,
                catalog=served_catalog,
                tokenizer=tokenizer,
                template_arguments=template_arguments,
                max_prompt_length=max_prompt_length,
                context=context,
                retrieval=served_retrieval,
                questions=questions,
            )
            recommender = cls(requests, engine, show)
            resources.callback(recommender._is_closed.set)
            recommender._end = weakref.finalize(recommender, resources.pop_all().close)
            return recommender

    @property
    def model_version(self) -> str:
        """The checkpoint's name and the beginning of a hash of its contents."""
        return self.model.version

    # ---- lists

    def recommend(self, conversation: Conversation, k: int = 20, **filters: Unpack[Filters]) -> Recommendations:
        """Recommend k items for a conversation.

        Args:
            conversation: a text, which is the user's; messages {"role": "user" | "assistant", "content": text} that end
                with the user's; or "USER: ...\\nSYSTEM: ...\\nUSER: ...\\n", as in the data.
            k: number of items, 1 to `catalog.max_items`.
            **filters: any of these:
                seen, exclude: items that must not be in the list; names that the catalog lacks are ignored.
                allow: the only items that may be in the list; None for the whole catalog.
                where: conditions on columns that every item meets, for example {"category": ["Mystery"], "price":
                    {"max": 20}, "in_stock": True}.
                ignore_case: whether `where` ignores the case of texts.
                why: whether to explain items, if a sentence about them is true; it may refer to items that the user
                    `liked`.
                may_ask: whether a model that was trained with ASK may return a `question` and no items. Add the
                    question and the user's answer to the conversation of the next call.

        Returns:
            The list; shorter, with a reason, if fewer than k items are left.

        Raises:
            UserError: an argument is invalid; the message names it.
        """
        request = self._requests.build(conversation, k, **filters)
        return self.engine.run(self._write(request))

    async def arecommend(self, conversation: Conversation, k: int = 20, **filters: Unpack[Filters]) -> Recommendations:
        """Recommend as `recommend` does, for asynchronous code; cancelling the call stops the engine's work on it.

        Args:
            conversation: see `recommend`.
            k: see `recommend`.
            **filters: see `recommend`.

        Raises:
            UserError: an argument is invalid; the message names it.
        """
        request = await self._threads.run(self._requests.build, conversation, k, **filters)
        return await self.engine.arun(self._write(request))

    def recommend_batch(
        self, conversations: Sequence[Conversation], k: int = 20, filters: Sequence[Filters] | None = None
    ) -> list[Recommendations]:
        """Recommend k items for each conversation, in one batch.

        Args:
            conversations: see `recommend`.
            k: number of items in each list.
            filters: the filters of each conversation; None for none.

        Raises:
            UserError: an argument is invalid; the message has the conversation's number from 0. No list is written.
        """
        all_filters = [Filters()] * len(conversations) if filters is None else filters
        if len(all_filters) != len(conversations):
            raise UserError(
                "recommender.filters",
                f"filters: {len(all_filters)} for {len(conversations)} conversations. Pass one for each.",
            )
        requests = []
        for number, (conversation, its_filters) in enumerate(zip(conversations, all_filters, strict=True)):
            try:
                requests.append(self._requests.build(conversation, k, **its_filters))
            except UserError as error:
                raise UserError(error.code, f"conversation {number}: {error}") from None

        async def write_all() -> list[Recommendations]:
            return await asyncio.gather(*map(self._write, requests))

        return self.engine.run(write_all())

    def open_stream(
        self, conversation: Conversation, k: int = 20, **filters: Unpack[Filters]
    ) -> tuple[Recommendations, AsyncIterator[RecommendedItem | Question]]:
        """Recommend as `recommend` does, item by item.

        Args:
            conversation: see `recommend`.
            k: see `recommend`.
            **filters: see `recommend`.

        Returns:
            The list without its items, and an iterator of the items as soon as each line is finished, or of a single
            question. Closing the iterator early stops the engine's work on the list.

        Raises:
            UserError: an argument is invalid; the message names it.
        """
        return self._stream(self._requests.build(conversation, k, **filters))

    async def aopen_stream(
        self, conversation: Conversation, k: int = 20, **filters: Unpack[Filters]
    ) -> tuple[Recommendations, AsyncIterator[RecommendedItem | Question]]:
        """Open a stream as `open_stream` does, without blocking the caller's event loop.

        Args:
            conversation: see `recommend`.
            k: see `recommend`.
            **filters: see `recommend`.

        Returns:
            See `open_stream`.

        Raises:
            UserError: an argument is invalid; the message names it.
        """
        return self._stream(await self._threads.run(self._requests.build, conversation, k, **filters))

    def popular(self, conversation: Conversation, k: int = 20, **filters: Unpack[Filters]) -> Recommendations:
        """Return a fallback list without the engine: the retrieval's list, or the most popular items without one.

        Use it if no list arrives in time, or the engine is gone. Popular items do not depend on the conversation.

        Args:
            conversation: see `recommend`; also for `k` and the filters.
            k: number of items.
            **filters: see `recommend`.

        Raises:
            UserError: an argument is invalid, or popularity is unknown.
        """
        has_mentions = self.catalog.latest.mentions is not None or COLUMN in self.catalog.columns.names
        if not self._requests.retrieval and not has_mentions:
            raise UserError(
                "recommender.no-popularity",
                f"fallback: the popularity of items is unknown. Use --train, or add a column {COLUMN} to the catalog.",
            )
        request = self._requests.build(conversation, k, waits=False, **filters)
        length = request.allowed.length
        ranked = request.retrieved[:length] or request.allowed.find_popular(length)
        items = tuple(self._make_item(request, number, rank, None) for rank, number in enumerate(ranked, 1))
        return self._make_answer(request, items, fallback=True)

    async def apopular(self, conversation: Conversation, k: int = 20, **filters: Unpack[Filters]) -> Recommendations:
        """Return the list of `popular` without blocking the caller's event loop.

        Args:
            conversation: see `recommend`.
            k: see `recommend`.
            **filters: see `recommend`.

        Raises:
            UserError: an argument is invalid, or popularity is unknown.
        """
        return await self._threads.run(self.popular, conversation, k, **filters)

    # ---- the catalog

    def add_items(self, items: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
        """Add items, or replace those with the same item_id.

        The next request can recommend them; lists that are being written do not change.

        Args:
            items: {"item_id", "title", "year" if items have years} and further columns of the catalog; an omitted
                column has no value.

        Returns:
            item_id -> the columns that had a value and have none now.

        Raises:
            UserError: an item is invalid; none is added.
        """
        return self.catalog.put(items)

    def change_items(self, items: Sequence[Mapping[str, Any]]) -> None:
        """Change single fields of items.

        Args:
            items: {"item_id"} and the changed fields; None removes a value.

        Raises:
            UserError: an item is not in the catalog, or a field is invalid; nothing is changed.
        """
        self.catalog.patch(items)

    def remove_items(self, ids: Sequence[str | int]) -> list[str]:
        """Remove items by id; lists that are being written do not change.

        Returns:
            The ids that are not in the catalog.

        Raises:
            UserError: no item would be left; none is removed.
        """
        return self.catalog.delete(ids)

    def follow_changes(self) -> None:
        """Apply other processes' changes to the catalog in a background thread, so that no request waits for them.

        The thread ends when the recommender is closed. Errors in the changes are raised by requests.
        """
        self.warm()

        def follow() -> None:
            while not self._is_closed.wait(FOLLOW_SECONDS):
                with contextlib.suppress(UserError, OSError):
                    self.warm()

        threading.Thread(target=follow, name="convrec-changes", daemon=True).start()

    def warm(self) -> None:
        """Compute what the first request after a change of the catalog would have to compute."""
        snapshot = self.catalog.snapshot
        snapshot.warm()
        if self._requests.retrieval:
            self._requests.retrieval.warm(snapshot)

    # ---- the end

    def close(self) -> None:
        """End the engine; unfinished lists fail. Also called at the end of a `with` block and of the process."""
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # ---- parts

    def _stream(self, request: ListRequest) -> tuple[Recommendations, AsyncIterator[RecommendedItem | Question]]:
        return self._make_answer(request, ()), self.engine.iterate(self._iter_items(request))

    async def _write(self, request: ListRequest) -> Recommendations:
        entries = [entry async for entry in self._iter_items(request, streamed=False)]
        items = tuple(entry for entry in entries if isinstance(entry, RecommendedItem))
        question = next((entry for entry in entries if isinstance(entry, Question)), None)
        return self._make_answer(request, items, question=question)

    def _make_answer(
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

    async def _iter_items(
        self, request: ListRequest, streamed: bool = True
    ) -> AsyncIterator[RecommendedItem | Question]:
        """Yield the items of a list, on the engine's loop. Fused lists come once the model's list is complete."""
        retrieval = self._requests.retrieval
        if retrieval is None or not retrieval.fusion:
            rank = 0
            async for number, score in self._iter_numbers(request, streamed):
                rank += 1
                if number < 0:
                    yield self._requests.questions[-1 - number]
                else:
                    yield await self._make_item_async(request, number, rank, score)
            return
        scores = {number: score async for number, score in self._iter_numbers(request, streamed=False)}
        if (question := -1 - min(scores, default=0)) >= 0:
            yield self._requests.questions[question]
            return
        fused = retrieval.fusion.of([*scores], request.retrieved)[: request.allowed.length]
        for rank, number in enumerate(fused, 1):
            yield await self._make_item_async(request, number, rank, scores.get(number))

    async def _iter_numbers(self, request: ListRequest, streamed: bool) -> AsyncIterator[tuple[int, float]]:
        """Yield (number, score) of each item that the model writes, or (-1 - q, score) for its question q."""
        if request.num_items == 0:
            return
        walk = Walk(request.allowed.trie.trie, request.num_items, request.walk_exclusions)
        total = 0.0  # log-probs of the unfinished item's tokens
        num_choices = 0  # tokens of the unfinished item at which the model had a choice
        params = request.make_sampling_params(streamed)
        async for output in self.engine.outputs(request.prompt.token_ids, params):
            answer = output.outputs[0]
            for token, token_log_probs in zip(answer.token_ids, answer.logprobs or (), strict=True):
                if walk.count_choices() > 1:
                    total += token_log_probs[token].logprob
                    num_choices += 1
                num_items = len(walk.items)
                walk.advance(token)
                if len(walk.items) > num_items:
                    score = total / num_choices if num_choices else 0.0
                    total = 0.0
                    num_choices = 0
                    yield walk.items[-1], score

    async def _make_item_async(
        self, request: ListRequest, number: int, rank: int, score: float | None
    ) -> RecommendedItem:
        """Make an item; in a thread if its explanation has to compare many liked items."""
        if len(request.liked or ()) <= FEW_LIKED:
            return self._make_item(request, number, rank, score)
        return await asyncio.to_thread(self._make_item, request, number, rank, score)

    def _make_item(self, request: ListRequest, number: int, rank: int, score: float | None) -> RecommendedItem:
        item = request.allowed.snapshot.items[number]
        why = None if request.liked is None else explain_item(number, request.liked, request.allowed.snapshot)
        return RecommendedItem(
            item_id=item.item_id,
            title=item.title,
            clean_title=item.clean_title,
            year=item.year,
            columns=self.select_shown_columns(item),
            rank=rank,
            score=score,
            why=why,
        )

    def select_shown_columns(self, item: CatalogItem) -> dict[str, Any]:
        """Return the columns of an item that lists show."""
        return {name: item.columns[name] for name in self._show}


def _load_questions(catalog: str | Path, names: Sequence[str]) -> list[Question]:
    """Return the questions about these columns of the catalog, with answers to offer; [] for a model that never asks.

    Raises:
        UserError: see `load_attributes`.
    """
    if not names:
        return []
    attributes = load_attributes(catalog, names, "the model was trained with ASK =")
    return [
        Question(format_question(name), name, attributes.most_common_labels(name, MAX_ANSWERS))
        for name in attributes.names
    ]
