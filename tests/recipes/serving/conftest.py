"""The service's application in this process, over a model that needs no engine."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from typing import Any

import pytest
from fastapi.testclient import TestClient

from recipes.serving.drain import Drain
from recipes.serving.errors import Refused
from recipes.serving.http import build
from recipes.serving.replicas import Model
from recipes.serving.schema import Filter, Limits, ModelSettings, ServiceSettings

LIST_ID = "list-" + "0" * 32
QUESTION = {"text": "Which genre?", "attribute": "genre", "answers": ["Horror", "<b>War"]}
TITLES = ("Alien", "Heat", "Ran", "<img src=x onerror=alert(1)>", "Amélie")


class Films:
    """The processes of a model: five films in their order, and where `asks`, a question at first. `refusal` is raised
    by whatever is asked; `wait` holds an answer back, and a stream after its first item."""

    is_up, running, restarts = True, 0, 0
    problem: str | None = None

    def __init__(self) -> None:
        self.items = {str(row): (title, 1980 + row) for row, title in enumerate(TITLES)}
        self.columns: dict[str, Any] = {}
        self.why: str | None = None
        self.asks = False
        self.fallback = False
        self.refusal: Exception | None = None
        self.wait: asyncio.Event | None = None
        self.asked: list[dict[str, Any]] = []

    async def call(self, method: str, *arguments: Any) -> AsyncGenerator[Any, None]:
        answer = getattr(self, method)(*arguments)
        if hasattr(answer, "__aiter__"):
            async for event in answer:
                yield event
        else:
            yield await answer

    async def call_all(self, method: str) -> list[Any]:
        return [await getattr(self, method)()]

    async def describe(self) -> dict[str, Any]:
        await self._answer({})
        return {"version": "films-1", "catalog_items": len(self.items), "max_items": 20}

    async def recommend(self, request: dict[str, Any]) -> dict[str, Any]:
        await self._answer(request)
        if self._asks(request):
            return {"items": [], **self._rest(), "question": QUESTION}
        return {"items": self._list(request), **self._rest()}

    async def recommend_stream(self, request: dict[str, Any]) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        if isinstance(self.refusal, Refused) and self.refusal.param:
            raise self.refusal
        if self._asks(request):
            await self._answer(request)
            yield "question", {"list_id": LIST_ID} | QUESTION
        for item in [] if self._asks(request) else self._list(request):
            yield "item", {"list_id": LIST_ID} | item
            await self._answer(request)
        yield "end", self._rest()

    async def chat(self, request: dict[str, Any]) -> dict[str, Any]:
        await self._answer(request)
        message = {"role": "assistant", "content": "hello"}
        return {"object": "chat.completion", "model": request["model"], "choices": [{"index": 0, "message": message}]}

    async def chat_stream(self, request: dict[str, Any]) -> AsyncIterator[str]:
        yield 'data: {"choices": []}\n\n'
        yield "data: [DONE]\n\n"

    async def put_items(self, items: list[dict[str, Any]]) -> dict[str, Any]:
        await self._answer({"items": items})
        self.items |= {str(item["item_id"]): (item["title"], item["year"]) for item in items}
        return {"catalog_items": len(self.items), "absent": []}

    async def patch_items(self, items: list[dict[str, Any]]) -> dict[str, Any]:
        await self._answer({"items": items})
        return {"catalog_items": len(self.items)}

    async def delete_items(self, ids: list[str | int]) -> dict[str, Any]:
        absent = [item_id for item_id in map(str, ids) if self.items.pop(item_id, None) is None]
        return {"catalog_items": len(self.items), "absent": absent}

    async def list_items(self, after: str, size: int) -> list[dict[str, Any]]:
        listed = sorted(item_id for item_id in self.items if item_id > after)[:size]
        return [self._entry(item_id, *self.items[item_id]) for item_id in listed]

    async def metrics(self) -> dict[str, str]:
        return {"replica1": 'vllm:generation_tokens_total{model_name="films"} 7.0\npython_info 1.0\n'}

    async def _answer(self, request: dict[str, Any]) -> None:
        self.asked.append(request)
        if self.wait:
            await self.wait.wait()
        if self.refusal:
            raise self.refusal

    def _asks(self, request: dict[str, Any]) -> bool:
        said = request["conversation"]
        turns = [] if isinstance(said, str) else [turn["content"] for turn in said]
        return self.asks and request["may_ask"] and QUESTION["text"] not in turns

    def _list(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        without = set(map(str, [*request["seen"], *request["exclude"]]))
        left = [(key, *film) for key, film in self.items.items() if key not in without]
        return [
            self._entry(key, title, year) | {"columns": self.columns, "rank": rank, "score": -0.5, "why": self.why}
            for rank, (key, title, year) in enumerate(left[: request["k"]], 1)
        ]

    def _entry(self, item_id: str, title: str, year: int | None) -> dict[str, Any]:
        return {"item_id": item_id, "title": title, "clean_title": title.partition(" [")[0], "year": year}

    def _rest(self) -> dict[str, Any]:
        return {
            "list_id": LIST_ID,
            "reason": None,
            "model_version": "films-1",
            "prompt_truncated": False,
            "fallback": self.fallback,
        }


@pytest.fixture
def films() -> Films:
    return Films()


@pytest.fixture
def service(films: Films) -> Callable[..., Any]:
    """The ASGI application; further keyword arguments are limits."""

    def make(
        key: str | None = None,
        loopback: bool = True,
        feedback: str | None = None,
        show: Sequence[str] = (),
        keys: str | None = None,
        strict: bool = False,
        filters: Sequence[dict[str, Any]] = (),
        drain: Drain | None = None,
        **limits: float,
    ) -> Any:
        names = ("films", "other")
        settings = ServiceSettings(
            models=[ModelSettings(name=name, path=name, catalog=name, show=[*show]) for name in names],
            limits=Limits(**limits),  # type: ignore[arg-type]
            keys=keys,
            strict=strict,
            filters=[Filter(**one) for one in filters],
            feedback=feedback,
            loopback=loopback,
        )
        return build(settings, dict.fromkeys(names, Model([films], settings.limits.timeout_seconds)), key, drain)

    return make


@pytest.fixture
def client(service: Callable[..., Any]) -> TestClient:
    return TestClient(service(), base_url="http://127.0.0.1:8000", raise_server_exceptions=False)
