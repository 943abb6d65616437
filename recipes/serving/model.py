"""One model with its engine, in a process that the front calls."""

import asyncio
import contextlib
import logging
import os
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from convrec.base.errors import UserError
from convrec.data.tokenizer import load_tokenizer
from convrec.inference.lists import Question, Recommendations
from convrec.inference.served_catalog.journal import StateUnreadable
from convrec.inference.served_model import find_model
from recipes.serving.errors import Refused
from recipes.serving.metrics import ServedAges
from recipes.serving.replicas import Fallback
from recipes.serving.schema import Limits, ModelSettings, RecommendationRequest

if TYPE_CHECKING:
    from convrec.inference.recommender import Recommender

FIELDS = frozenset(RecommendationRequest.model_fields) | {"items", "item_id"}
COUNT_SECONDS = 0.3
MOST_TOKENS = 16_384  # of a prompt and its answer, where there is no catalog: the cache for its keys must be held free


def refused(error: UserError) -> Refused:
    """It is the request's fault: 400, with the field that its message begins with. Where the catalog's state cannot be
    read it is not: 503, of all requests until it is put right."""
    if isinstance(error, StateUnreadable):
        logging.getLogger(__name__).error("%s", error)  # with the file's path, which is not for clients
        message = "the file of this catalog's changes is damaged or gone; the service's log says more"
        return Refused(503, message, retry_after=5)
    field = str(error).partition(":")[0]
    return Refused(400, str(error), field if field in FIELDS else None)


def dump_recommendations(found: Recommendations) -> dict[str, Any]:
    """Its fields; `question` only where there is one."""
    return {name: value for name, value in asdict(found).items() if (name, value) != ("question", None)}


def load_fallback(model: ModelSettings, limits: Limits) -> Fallback | None:
    """What answers for a model in the front's process, which stays when the model's ends: the retrieval, without
    one popular items, of the same catalog. None where the operator wants none. Raises UserError."""
    if limits.fallback_after_seconds is None or model.catalog is None:
        return None
    recommender = load_recommender(model, limits.max_items, with_engine=False)
    recommender.popular("hello", 1)
    recommender.follow_changes()

    async def answer(request: dict[str, Any]) -> dict[str, Any]:
        try:
            return dump_recommendations(await recommender.apopular(**request))
        except UserError as error:
            raise refused(error) from None

    return Fallback(limits.fallback_after_seconds, answer)


def load_recommender(model: ModelSettings, max_items: int, **further: Any) -> "Recommender":
    from convrec.inference.recommender import Recommender

    given = model.model_dump(exclude={"name", "path", "catalog"})
    return Recommender.load(model.path, str(model.catalog), max_items=max_items, **given, **further)


class ModelServer:
    """Blocks until the engine is ready. Raises UserError for a model or a catalog that cannot be served.

    When the engine is gone, the process ends, and another one is started.
    """

    def __init__(self, settings: ModelSettings, max_items: int) -> None:
        from convrec.inference.engines.async_engine import Engine
        from recipes.serving.chat import ChatCompletions

        self.name = settings.name
        self.process = f"{settings.name}-{uuid.uuid4().hex[:8]}"
        self.recommender: Recommender | None = None
        self.changing = asyncio.Lock()
        self.ages = ServedAges(settings)
        if settings.catalog:
            self.recommender = load_recommender(settings, max_items, served_model_name=settings.name)
            self.recommender.follow_changes()
            self.engine = self.recommender.engine
            self.model = self.recommender.model
        else:
            self.model = find_model(settings.path, Path(), None, None)
            _, context = load_tokenizer(self.model.path)
            length = min(context, MOST_TOKENS)
            self.engine = Engine(
                self.model.path,
                None,
                max_model_len=length,
                tensor_parallel=settings.tensor_parallel,
                served_model_name=settings.name,  # metrics would have its path
            )
        self.max_items = self.recommender.catalog.max_items if self.recommender else 0
        self.completions = ChatCompletions(self.engine.llm, self.name, self.model.path)

    async def describe(self) -> dict[str, Any]:
        """{"version", "catalog_items", "max_items"}."""
        with self._refusals():
            items = None
            most = None
            if self.recommender is not None:
                items = await self._count_items()
                most = self.recommender.catalog.max_items
        return {"version": self.model.version, "catalog_items": items, "max_items": most}

    async def _count_items(self) -> int:
        """Items of the catalog. A change that is being applied is not waited for long: /health asks this."""
        assert self.recommender
        catalog = self.recommender.catalog
        counting = asyncio.ensure_future(asyncio.to_thread(len, catalog))
        await asyncio.wait({counting}, timeout=COUNT_SECONDS)
        return counting.result() if counting.done() else len(catalog.latest.items)

    async def recommend(self, request: dict[str, Any]) -> dict[str, Any]:
        """A RecommendationRequest's fields -> those of RecommendedList, but `model`."""
        with self._refusals():
            found = await self._with_catalog().arecommend(**request)
        return dump_recommendations(found)

    async def recommend_stream(self, request: dict[str, Any]) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        """("item", fields of ListedItem and "list_id") for each, then ("end", the rest)."""
        with self._refusals():
            end, items = await self._with_catalog().aopen_stream(**request)
            async for item in items:
                yield ("question" if isinstance(item, Question) else "item"), {"list_id": end.list_id, **asdict(item)}
        yield "end", {key: value for key, value in asdict(end).items() if key not in ("items", "question")}

    async def chat(self, request: dict[str, Any]) -> dict[str, Any]:
        """A ChatRequest's fields -> OpenAI's chat.completion."""
        with self._refusals():
            return await self.engine.arun(self.completions.answer(request))

    async def chat_stream(self, request: dict[str, Any]) -> AsyncIterator[str]:
        with self._refusals():
            async for chunk in self.engine.iterate(self.completions.stream(request)):
                yield chunk

    async def put_items(self, items: list[dict[str, Any]]) -> dict[str, Any]:
        """CatalogChange's fields, but `model`; so do `patch_items` and `delete_items`."""
        blanked, count = await self._change("add_items", items)
        return {"catalog_items": count, "blanked": blanked}

    async def patch_items(self, items: list[dict[str, Any]]) -> dict[str, Any]:
        _, count = await self._change("change_items", items)
        return {"catalog_items": count}

    async def delete_items(self, ids: list[str | int]) -> dict[str, Any]:
        absent, count = await self._change("remove_items", ids)
        return {"catalog_items": count, "absent": absent}

    async def list_items(self, after: str, size: int) -> list[dict[str, Any]]:
        """The fields of CatalogEntry of the items behind this id."""
        with self._refusals():
            recommender = self._with_catalog()
            return await asyncio.to_thread(self._page, recommender, after, size)

    @staticmethod
    def _page(recommender: Any, after: str, size: int) -> list[dict[str, Any]]:
        names = ("item_id", "title", "clean_title", "year")
        items = recommender.catalog.snapshot.page(after, size)
        return [
            {name: getattr(item, name) for name in names} | {"columns": recommender.shown_columns(item)}
            for item in items
        ]

    async def metrics(self) -> dict[str, str]:
        """Name of this process -> its figures in Prometheus' form."""
        from prometheus_client import generate_latest

        return {self.process: generate_latest().decode() + self.ages.text()}

    async def _change(self, method: str, items: list[Any]) -> tuple[Any, int]:
        """What a method of the recommender returns, and how many items the catalog has then."""
        with self._refusals():
            recommender = self._with_catalog()
            async with self.changing:  # a change holds a lock: others would hold a thread each while they wait
                answer = await asyncio.to_thread(getattr(recommender, method), items)
            return answer, len(recommender.catalog.latest.items)

    def _with_catalog(self) -> Any:
        if self.recommender is None:
            raise Refused(400, "model: it is served without a catalog, for chat completions alone", "model")
        return self.recommender

    @contextlib.contextmanager
    def _refusals(self) -> Iterator[None]:
        try:
            yield
        except UserError as error:
            raise refused(error) from None
        except Exception:
            self.check_health()
            raise

    def check_health(self) -> None:
        """End this process where its engine is gone. Called every few seconds."""
        if not self.engine.is_alive:
            print(f"{self.name}: its engine is gone (killed, or out of memory); this process ends", file=sys.stderr)
            sys.stderr.flush()
            os._exit(1)
