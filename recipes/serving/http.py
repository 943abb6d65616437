"""The routes: recommendations, chat completions, the catalog, the chat page, health and metrics. No Ray, no engine."""

import asyncio
import json
import logging
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from fastapi import FastAPI, Query, Request
from fastapi import Path as PathParameter
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from jinja2 import Environment, FileSystemLoader
from starlette.exceptions import HTTPException

from recipes.serving.drain import Drain
from recipes.serving.errors import FAILED, Refused, error_body
from recipes.serving.feedback import Events, FeedbackLog
from recipes.serving.gate import Gate
from recipes.serving.keys import Keys
from recipes.serving.metrics import CONTENT_TYPE, Metrics
from recipes.serving.replicas import Model
from recipes.serving.schema import (
    MOST_NAMES,
    NO_EFFECT,
    CatalogChange,
    CatalogFields,
    CatalogIds,
    CatalogItems,
    CatalogPage,
    ChatRequest,
    FeedbackEvent,
    ItemName,
    ModelCard,
    ModelList,
    RecommendationRequest,
    RecommendedList,
    ServiceSettings,
)

PAGE = Path(__file__).with_name("page")
ModelName: TypeAlias = Annotated[str | None, Query(description="whose catalog: a name of /v1/models; null: the first")]
RemovedIds: TypeAlias = Annotated[
    list[ItemName], Query(max_length=MOST_NAMES, description="to be removed, besides those of the body")
]
HEALTH_SECONDS = 5.0
PAGE_HEADERS = {
    # nothing from elsewhere, nothing inline: a title can be no script
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; img-src 'self' data:",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
REFUSALS: dict[int | str, dict[str, Any]] = {
    400: {"description": "what is wrong with the request, and the field"},
    401: {"description": "the key is missing or another"},
    403: {"description": "the key's role may not do this"},
    404: {"description": "no such model, or no such list"},
    409: {"description": "an event that was taken already"},
    413: {"description": "the body is too large"},
    429: {"description": "too many requests at once, or too many of this key; Retry-After says when to ask again"},
    503: {"description": "the service stops, its model starts again, or its catalog cannot be read; see Retry-After"},
    504: {"description": "no answer within the service's limit of time"},
}
SENTENCES = {  # of a field, or of an error's type
    "json_invalid": "it is no JSON",
    "extra_forbidden": "there is no such field here; leave it out",
    "response_format": 'only {"type": "text"} is possible here; say in a message what form the answer is to have',
    "tools": "tools are not called here; leave them out, or send []",
    "logit_bias": "it is not possible here; leave it out, or send {}",
    "string_unicode": "it has half of a surrogate pair (\\ud800 to \\udfff): no character",
}
_ALTERNATIVE = re.compile(
    r"(str|int|bool|float|dict\[.*|list\[.*|constrained-.*)$"
)  # how pydantic calls the types of a union


def build(
    settings: ServiceSettings, models: Mapping[str, Model], key: str | None, drain: Drain | None = None
) -> FastAPI:
    """The application.

    Args:
        key: what all but the page and /health ask for, besides the keys of `settings.keys`; None: only those.
        drain: by which the server ends it; None: it ends at once.

    Raises:
        UserError: for a file of keys that cannot be read.
    """
    drain = drain or Drain()
    app = FastAPI(
        title="convrec",
        version=version("convrec"),
        description="Recommendations for a conversation, chat completions of the same models, and their catalogs.",
        docs_url=None,  # those pages load scripts from a CDN: page/docs.html does not
        redoc_url=None,
    )
    routes = Routes(settings, models, drain)
    routes.add_to(app)
    routes.metrics = Metrics(route.path for route in app.routes)  # type: ignore[attr-defined]
    app.add_middleware(
        Gate,
        limits=settings.limits,
        keys=Keys(key, Path(settings.keys) if settings.keys else None),
        drain=drain,
        loopback=settings.loopback,
        metrics=routes.metrics,
        takes_body={route.path for route in app.routes if {"POST", "PUT", "PATCH", "DELETE"} & route.methods},  # type: ignore[attr-defined]
    )
    app.add_exception_handler(RequestValidationError, _invalid)  # type: ignore[arg-type]
    app.add_exception_handler(HTTPException, _http_error)  # type: ignore[arg-type]
    return app


class Routes:
    def __init__(self, settings: ServiceSettings, models: Mapping[str, Model], drain: Drain) -> None:
        self.limits = settings.limits
        self.models = models
        self.drain = drain
        self.is_strict = settings.strict
        self.filters = settings.filters
        self.feedback = None
        if settings.feedback:
            self.feedback = FeedbackLog(Path(settings.feedback), on_lost=lambda: self.metrics.feedback_lost.inc())
        self.created = int(time.time())
        self.has_pictures = any("picture" in model.show for model in settings.models)
        self.metrics: Metrics

    def add_to(self, app: FastAPI) -> None:
        errors: dict[str, Any] = {"responses": REFUSALS}
        post = app.post
        get = app.get
        post("/v1/recommendations", response_model=RecommendedList, **errors)(self.recommend)
        post("/v1/chat/completions", **errors)(self.chat)
        post("/v1/responses", include_in_schema=False)(self.refuse_responses)
        post("/v1/feedback", response_model=FeedbackEvent, **errors)(self.take_feedback)
        get("/v1/models", response_model=ModelList)(self.list_models)
        get("/v1/models/{name}", response_model=ModelCard)(self.get_model)
        get("/v1/catalog/items", response_model=CatalogPage, **errors)(self.list_items)
        app.put("/v1/catalog/items", response_model=CatalogChange, **errors)(self.put_items)
        app.patch("/v1/catalog/items", response_model=CatalogChange, **errors)(self.patch_items)
        app.delete("/v1/catalog/items", response_model=CatalogChange, **errors)(self.delete_items)
        get("/health")(self.health)
        app.head("/health", include_in_schema=False)(self.health)
        get("/metrics", response_class=PlainTextResponse)(self.get_metrics)
        for path, file in (("/", "index.html"), ("/page.css", "page.css"), ("/page.js", "page.js")):
            page = _page(file, self.has_pictures)
            app.add_api_route(path, page, methods=["GET", "HEAD"], include_in_schema=False)
        described = _described(app.openapi())  # of all routes above
        app.add_api_route("/docs", lambda: HTMLResponse(described, headers=PAGE_HEADERS), include_in_schema=False)

    async def recommend(self, request: RecommendationRequest) -> Response:
        """A ranked list of the catalog's items for a conversation, or, where it may, a question."""
        name, model = self._model(request.model)
        if request.k > self.limits.max_items:
            raise Refused(400, f"k: {request.k} is more than {self.limits.max_items}, the most of this service", "k")
        said = request.conversation
        self._check_conversation([said] if isinstance(said, str) else [turn.content for turn in said], "conversation")
        asked = request.model_dump(exclude={"stream", "model", "user_id", "session_id"})
        if not request.stream:
            answer = {"model": name, **await model.ask("recommend", asked)}
            if self.feedback and "question" not in answer:
                answer["list_id"] = self.feedback.make_list_id()
                self.feedback.add_list(request.model_dump(), answer)
            self.metrics.count_list(name, answer["fallback"], len(answer["items"]), "question" in answer)
            return JSONResponse(answer)
        events: Events = self._counted(name, model.stream("recommend_stream", asked))
        if self.feedback:
            events = self.feedback.watch(request.model_dump(), name, events)
        texts = (_event(kind, {"model": name, **data} if kind == "end" else data) async for kind, data in events)
        return await self._stream(texts, lambda refused: _event("error", refused.body))

    async def chat(self, request: ChatRequest) -> Response:
        """OpenAI's chat completions, of the model as it is: free text, no catalog."""
        name, model = self._model(request.model)
        self._check_conversation([message.text for message in request.messages], "messages")
        if self.is_strict and (ignored := request.without_effect):
            names = ", ".join(ignored)
            raise Refused(400, f"{names}: no effect here; leave out, or start the service without --strict", ignored[0])
        messages = [{"role": message.role, "content": message.text} for message in request.messages]
        asked = request.model_dump(exclude_none=True, exclude={*NO_EFFECT, "messages"})
        asked |= {"model": name, "messages": messages}
        if not request.stream:
            return JSONResponse(await model.ask("chat", asked))
        chunks = model.stream("chat_stream", asked)
        return await self._stream(chunks, lambda refused: f"data: {json.dumps(refused.body)}\n\ndata: [DONE]\n\n")

    async def refuse_responses(self) -> Response:
        raise Refused(404, "this service has no Responses API; ask /v1/chat/completions")

    async def take_feedback(self, event: FeedbackEvent) -> FeedbackEvent:
        """What somebody did with an item of a list. It is on the disk when this answers."""
        if not self.feedback:
            raise Refused(404, "this service keeps no feedback; it is started with --feedback for that")
        await self.feedback.add_event(event)
        self.metrics.feedback.labels(event.event).inc()
        return event

    async def _counted(self, model: str, events: Events) -> Events:
        """The events of a list, which is counted when it is whole."""
        items = 0
        is_question = False
        async for kind, data in events:
            items += kind == "item"
            is_question |= kind == "question"
            yield kind, data
            if kind == "end":
                self.metrics.count_list(model, data["fallback"], items, is_question)

    async def list_models(self) -> ModelList:
        """The models, in OpenAI's form, with their versions and the sizes of their catalogs."""
        return ModelList(data=[await self.get_model(name) for name in self.models])

    async def get_model(self, name: Annotated[str, PathParameter(description="as /v1/models has it")]) -> ModelCard:
        """One of the models."""
        name, model = self._model(name)
        described = await model.ask("describe")
        described |= {"max_turns": self.limits.max_turns, "keeps_feedback": self.feedback is not None}
        described["filters"] = [] if described["catalog_items"] is None else self.filters
        return ModelCard(id=name, created=self.created, **described)

    async def put_items(self, body: CatalogItems, model: ModelName = None) -> CatalogChange:
        """Add items to the catalog, or replace them as a whole. The next request can be recommended them."""
        name, chosen = self._model(model)
        items = [item.model_dump() for item in body.items]
        return CatalogChange(model=name, **await chosen.ask("put_items", items))

    async def patch_items(self, body: CatalogFields, model: ModelName = None) -> CatalogChange:
        """Change single fields of items that are in the catalog; null takes a value away."""
        name, chosen = self._model(model)
        items = [item.model_dump(exclude_unset=True) for item in body.items]
        return CatalogChange(model=name, **await chosen.ask("patch_items", items))

    async def delete_items(
        self,
        body: CatalogIds | None = None,
        item_id: RemovedIds = [],  # noqa: B006  # FastAPI copies it
        model: ModelName = None,
    ) -> CatalogChange:
        """Remove items from the catalog. No request that comes later is recommended them."""
        ids = [*item_id, *(body.item_ids if body else ())]
        if not ids:
            raise Refused(400, 'item_ids: none; give {"item_ids": [...]}, or ?item_id=...', "item_ids")
        name, chosen = self._model(model)
        return CatalogChange(model=name, **await chosen.ask("delete_items", ids))

    async def list_items(
        self,
        after: Annotated[str, Query(max_length=1000, description="`next` of the page before")] = "",
        limit: Annotated[int, Query(ge=1, le=MOST_NAMES, description="items of a page")] = 1000,
        model: ModelName = None,
    ) -> CatalogPage:
        """The catalog's items, a page at a time."""
        name, chosen = self._model(model)
        items = await chosen.ask("list_items", after, limit + 1)
        following = items[limit - 1]["item_id"] if len(items) > limit else None
        return CatalogPage(model=name, items=items[:limit], next=following)

    async def health(self) -> JSONResponse:
        """200 when every model answers, else 503; what is wrong with each."""
        states = await asyncio.gather(*map(_state, self.models.values()))
        is_well = all(state == "ok" for state in states)
        body = {"status": "ok" if is_well else "unavailable", "models": dict(zip(self.models, states, strict=True))}
        return JSONResponse(body, 200 if is_well else 503)

    async def get_metrics(self) -> Response:
        """Figures in Prometheus' text form: the service's own, and vLLM's of every replica."""
        expositions: dict[str, str] = {}
        for model in self.models.values():
            expositions |= await model.metrics()
        for name, model in self.models.items():
            self.metrics.look_at(name, model)
        return Response(self.metrics.text(expositions), media_type=CONTENT_TYPE)

    async def _stream(self, events: AsyncIterator[str], as_event: Callable[[Refused], str]) -> StreamingResponse:
        """Server-sent events. What is refused before the first has a status of its own; later it is an event."""
        first = await anext(events, "")

        async def all_events() -> AsyncIterator[str]:
            yield first
            try:
                async for event in self.drain.until_cut(events):
                    yield event
            except Refused as refused:
                yield as_event(refused)
            except Exception:
                yield as_event(FAILED)
                raise

        return StreamingResponse(all_events(), media_type="text/event-stream", headers={"Cache-Control": "no-store"})

    def _model(self, name: str | None) -> tuple[str, Model]:
        name = name or next(iter(self.models))
        if name not in self.models:
            raise Refused(404, f"model: there is no {name[:80]!r}; there is {', '.join(self.models)}", "model")
        return name, self.models[name]

    def _check_conversation(self, turns: Sequence[str], field: str) -> None:
        """Raises Refused for what is too long, before anything takes time in proportion to it."""
        most_turns = self.limits.max_turns
        if len(turns) > most_turns:
            raise Refused(
                400, f"{field}: {len(turns):,} turns, more than {most_turns}, the most of this service", field
            )
        characters = sum(map(len, turns))
        most = self.limits.max_conversation_characters
        if characters > most:
            raise Refused(
                400, f"{field}: {characters:,} characters, more than {most:,}, the most of this service", field
            )


def _described(schema: Mapping[str, Any]) -> str:
    """The document of /openapi.json as a page without scripts."""
    environment = Environment(loader=FileSystemLoader(PAGE), autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return environment.get_template("docs.html").render(schema, refusals=REFUSALS)


def _page(file: str, pictures: bool) -> Any:
    """pictures: of items, which a shop has at addresses of its own."""
    policy = "Content-Security-Policy"
    headers = PAGE_HEADERS | ({policy: f"{PAGE_HEADERS[policy]} https: http:"} if pictures else {})

    async def page() -> FileResponse:
        return FileResponse(PAGE / file, headers=headers)

    return page


async def _state(model: Model) -> str:
    if model.problem:
        return f"the model's process does not start: {model.problem}"
    try:
        async with asyncio.timeout(HEALTH_SECONDS):
            await model.ask("describe")
    except Refused as refused:
        return refused.message
    except TimeoutError:
        return f"no answer within {HEALTH_SECONDS:g} s: the model's process starts, or is busy"
    except Exception:  # the other models' states are to be told all the same
        logging.getLogger(__name__).exception("a model could not describe itself")
        return FAILED.message
    return "ok"


def _event(kind: str, data: dict[str, Any]) -> str:
    return f"event: {kind}\ndata: {json.dumps(data)}\n\n"


async def _invalid(request: Request, error: RequestValidationError) -> JSONResponse:
    """The first field that is wrong; of its alternatives what was found deepest. What was sent is not repeated."""
    errors = [(*_field(one["loc"]), one) for one in error.errors()]
    field = errors[0][0]
    _, path, wrong = max((one for one in errors if one[0] == field), key=lambda one: len(one[2]["loc"]))
    is_value = wrong["loc"][-1] == "bool"  # the first alternative of a column's value
    known = SENTENCES.get(field or "") or SENTENCES.get(wrong["type"], wrong["msg"].removeprefix("Value error, "))
    message = "write a text, a number, true or false" if is_value else known
    return JSONResponse(error_body(400, f"{path or 'body'}: {message}", field), 400)


def _field(loc: Sequence[str | int]) -> tuple[str | None, str]:
    """Of an error of pydantic: (the field of the body, the field and what is wrong in it: conversation.0.role)."""
    names = [str(part)[:100] for part in loc[1:] if not _ALTERNATIVE.match(str(part))]  # behind body or query
    if not names or (isinstance(loc[-1], int) and len(loc) == 2):  # where a JSON error is
        return None, ""
    return names[0], ".".join(names)


async def _http_error(request: Request, error: HTTPException) -> JSONResponse:
    """No such path, another method, a body that cannot be read."""
    return JSONResponse(error_body(error.status_code, str(error.detail)), error.status_code, error.headers)
