"""One model with its engine, in a process called by the front."""

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
# Tokens of a prompt and its answer, for a model without a catalog; bounds the KV cache that one request needs.
MAX_TOKENS = 16_384


def convert_user_error(error: UserError) -> Refused:
    """Convert an error of a request to 400, with the field that starts its message.

    An unreadable state of the catalog is not the request's fault: it gives 503 until it is repaired.
    """
    if isinstance(error, StateUnreadable):
        logging.getLogger(__name__).error("%s", error)  # names the file's path, which clients must not see
        message = "the file of this catalog's changes is damaged or gone; see the service's log"
        return Refused(503, message, retry_after=5)
    field = str(error).partition(":")[0]
    return Refused(400, str(error), field if field in FIELDS else None)


def dump_recommendations(recommendations: Recommendations) -> dict[str, Any]:
    """Convert recommendations to JSON fields; `question` only if there is one."""
    return {name: value for name, value in asdict(recommendations).items() if (name, value) != ("question", None)}


def load_fallback(model: ModelSettings, limits: Limits) -> Fallback | None:
    """Load the fallback of a model, which answers in the front's process if the model's process does not.

    It lists items of the same catalog by retrieval, or else by popularity.

    Returns:
        The fallback; None if none is configured.

    Raises:
        UserError: A file cannot be used, or nothing is known about popularity.
    """
    if limits.fallback_after_seconds is None or model.catalog is None:
        return None
    recommender = load_recommender(model, limits.max_items, with_engine=False)
    recommender.popular("hello", 1)
    recommender.follow_changes()

    async def answer(request: dict[str, Any]) -> dict[str, Any]:
        try:
            return dump_recommendations(await recommender.apopular(**request))
        except UserError as error:
            raise convert_user_error(error) from None

    return Fallback(limits.fallback_after_seconds, answer)


def load_recommender(model: ModelSettings, max_items: int, **options: Any) -> "Recommender":
    """Load the recommender of a model with a catalog.

    Args:
        model: its settings.
        max_items: the largest k.
        **options: further arguments of Recommender.load.

    Raises:
        UserError: the model, catalog, state or retrieval cannot be used.
    """
    from convrec.inference.recommender import Recommender

    settings = model.model_dump(exclude={"name", "path", "catalog"})
    return Recommender.load(model.path, str(model.catalog), max_items=max_items, **settings, **options)


class ModelServer:
    """A model with its engine.

    The constructor blocks until the engine is ready, and raises UserError if the model or its catalog cannot be served.
    If the engine is lost, the process ends and is started again.
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
            length = min(context, MAX_TOKENS)
            self.engine = Engine(
                self.model.path,
                None,
                max_model_len=length,
                tensor_parallel=settings.tensor_parallel,
                served_model_name=settings.name,  # otherwise metrics would show the path
            )
        self.max_items = self.recommender.catalog.max_items if self.recommender else 0
        self.completions = ChatCompletions(self.engine.llm, self.name, self.model.path)

    async def describe(self) -> dict[str, Any]:
        """Return {"version", "catalog_items", "max_items"}."""
        with self._convert_errors():
            items = None
            most = None
            if self.recommender is not None:
                items = await self._count_items()
                most = self.recommender.catalog.max_items
        return {"version": self.model.version, "catalog_items": items, "max_items": most}

    async def _count_items(self) -> int:
        """Count the catalog's items, without waiting long for a running change: /health calls this."""
        assert self.recommender
        catalog = self.recommender.catalog
        counting = asyncio.ensure_future(asyncio.to_thread(len, catalog))
        await asyncio.wait({counting}, timeout=COUNT_SECONDS)
        return counting.result() if counting.done() else len(catalog.latest.items)

    async def recommend(self, request: dict[str, Any]) -> dict[str, Any]:
        """Recommend items.

        Args:
            request: fields of RecommendationRequest, as arguments of `Recommender.recommend`.

        Returns:
            Fields of RecommendedList, except for `model`.

        Raises:
            Refused: the request is wrong, or the catalog's state cannot be read.
        """
        with self._convert_errors():
            recommendations = await self._require_catalog().arecommend(**request)
        return dump_recommendations(recommendations)

    async def recommend_stream(self, request: dict[str, Any]) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        """Recommend items one by one.

        Args:
            request: fields of RecommendationRequest, as arguments of `Recommender.recommend`.

        Yields:
            ("item", fields of ListedItem and "list_id") for each item, or a single ("question", ...); then ("end", the
            other fields).

        Raises:
            Refused: the request is wrong, or the catalog's state cannot be read.
        """
        with self._convert_errors():
            end, items = await self._require_catalog().aopen_stream(**request)
            async for item in items:
                yield ("question" if isinstance(item, Question) else "item"), {"list_id": end.list_id, **asdict(item)}
        yield "end", {key: value for key, value in asdict(end).items() if key not in ("items", "question")}

    async def chat(self, request: dict[str, Any]) -> dict[str, Any]:
        """Answer with OpenAI's chat.completion.

        Args:
            request: fields of ChatRequest.

        Raises:
            Refused: the request is wrong.
        """
        with self._convert_errors():
            return await self.engine.arun(self.completions.answer(request))

    async def chat_stream(self, request: dict[str, Any]) -> AsyncIterator[str]:
        """Yield OpenAI's server-sent events for the fields of a ChatRequest."""
        with self._convert_errors():
            async for chunk in self.engine.iterate(self.completions.stream(request)):
                yield chunk

    async def put_items(self, items: list[dict[str, Any]]) -> dict[str, Any]:
        """Add or replace items: all of them, or none.

        Args:
            items: see `Recommender.add_items`.

        Returns:
            Fields of CatalogChange, except for `model`.

        Raises:
            Refused: an item is invalid, or there is no catalog.
        """
        blanked, count = await self._change("add_items", items)
        return {"catalog_items": count, "blanked": blanked}

    async def patch_items(self, items: list[dict[str, Any]]) -> dict[str, Any]:
        """Change fields of items: of all of them, or of none.

        Args:
            items: see `Recommender.change_items`.

        Returns:
            Fields of CatalogChange, except for `model`.

        Raises:
            Refused: an item or a field is wrong, or there is no catalog.
        """
        _, count = await self._change("change_items", items)
        return {"catalog_items": count}

    async def delete_items(self, ids: list[str | int]) -> dict[str, Any]:
        """Remove items.

        Args:
            ids: of the items; unknown ones are reported in `absent`.

        Returns:
            Fields of CatalogChange, except for `model`.

        Raises:
            Refused: no item would be left, or there is no catalog.
        """
        absent, count = await self._change("remove_items", ids)
        return {"catalog_items": count, "absent": absent}

    async def list_items(self, after: str, size: int) -> list[dict[str, Any]]:
        """List items in the order of their ids.

        Args:
            after: the last id of the previous page; "" for the first page.
            size: the most items to list.

        Returns:
            Fields of CatalogEntry for each item; [] after the last one.

        Raises:
            Refused: there is no catalog, or its state cannot be read.
        """
        with self._convert_errors():
            recommender = self._require_catalog()
            return await asyncio.to_thread(self._page, recommender, after, size)

    @staticmethod
    def _page(recommender: Any, after: str, size: int) -> list[dict[str, Any]]:
        names = ("item_id", "title", "clean_title", "year")
        items = recommender.catalog.snapshot.page(after, size)
        return [
            {name: getattr(item, name) for name in names} | {"columns": recommender.select_shown_columns(item)}
            for item in items
        ]

    async def metrics(self) -> dict[str, str]:
        """Return this process's metrics in Prometheus' text format, by its name."""
        from prometheus_client import generate_latest

        return {self.process: generate_latest().decode() + self.ages.render()}

    async def _change(self, method: str, items: list[Any]) -> tuple[Any, int]:
        """Call a method of the recommender; return its result, and the number of items afterwards."""
        with self._convert_errors():
            recommender = self._require_catalog()
            # Changes exclude each other here, because each one that waits for the catalog's lock would occupy a thread.
            async with self.changing:
                answer = await asyncio.to_thread(getattr(recommender, method), items)
            return answer, len(recommender.catalog.latest.items)

    def _require_catalog(self) -> Any:
        if self.recommender is None:
            raise Refused(400, "model: served without a catalog, for chat completions only", "model")
        return self.recommender

    @contextlib.contextmanager
    def _convert_errors(self) -> Iterator[None]:
        try:
            yield
        except UserError as error:
            raise convert_user_error(error) from None
        except Exception:
            self.check_health()
            raise

    def check_health(self) -> None:
        """End this process if its engine is gone. Called every few seconds."""
        if not self.engine.is_alive:
            print(f"{self.name}: the engine is gone (killed, or out of memory); this process ends", file=sys.stderr)
            sys.stderr.flush()
            os._exit(1)
