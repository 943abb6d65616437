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
from recipes.serving.errors import FAILED, Refused, make_error_body
from recipes.serving.feedback import Events, FeedbackLog
from recipes.serving.gate import Gate
from recipes.serving.keys import Keys
from recipes.serving.metrics import CONTENT_TYPE, Metrics
from recipes.serving.replicas import Model
from recipes.serving.schema import (
    MAX_NAMES,
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
ModelName: TypeAlias = Annotated[
    str | None, Query(description="model whose catalog is meant, a name of /v1/models; null: the first")
]
RemovedIds: TypeAlias = Annotated[
    list[ItemName], Query(max_length=MAX_NAMES, description="ids to remove, in addition to those in the body")
]
HEALTH_SECONDS = 5.0
PAGE_HEADERS = {
    # no foreign and no inline content: a title must not run as a script
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; img-src 'self' data:",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
REFUSALS: dict[int | str, dict[str, Any]] = {
    400: {"description": "invalid request; the message names the field"},
    401: {"description": "missing or wrong key"},
    403: {"description": "the key's role does not allow this"},
    404: {"description": "no such model, or no such list"},
    409: {"description": "an event that was accepted before"},
    413: {"description": "the body is too large"},
    429: {"description": "too many requests at once, or too many with this key; see Retry-After"},
    503: {"description": "the service stops, its model restarts, or its catalog cannot be read; see Retry-After"},
    504: {"description": "no answer within the service's time limit"},
}
SENTENCES = {  # field, or type of an error -> message
    "json_invalid": "not valid JSON",
    "extra_forbidden": "no such field; leave it out",
    "response_format": 'only {"type": "text"} is supported; describe the format you want in a message',
    "tools": "tools are not supported; leave them out, or send []",
    "logit_bias": "not supported; leave it out, or send {}",
    "string_unicode": "contains half of a surrogate pair (\\ud800 to \\udfff), which is not a character",
}
# pydantic gives the types of a union these names in the location of an error.
_ALTERNATIVE = re.compile(r"(str|int|bool|float|dict\[.*|list\[.*|constrained-.*)$")


def build(
    settings: ServiceSettings, models: Mapping[str, Model], key: str | None, drain: Drain | None = None
) -> FastAPI:
    """Build the application.

    Args:
        settings: of the service.
        models: by name, the first one the default.
        key: the service's key, required along with those of `settings.keys` except on the page and /health; None: only
            those of `settings.keys`.
        drain: with which the server stops the application; None: it stops at once.

    Raises:
        UserError: The file of keys or the folder for feedback cannot be used.
    """
    drain = drain or Drain()
    app = FastAPI(
        title="convrec",
        version=version("convrec"),
        description="Recommendations for a conversation, chat completions of the same models, and their catalogs.",
        docs_url=None,  # FastAPI's pages load scripts from a CDN; page/docs.html does not
        redoc_url=None,
    )
    routes = Routes(settings, models, drain)
    routes.add_routes(app)
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
    app.add_exception_handler(RequestValidationError, _handle_invalid_request)  # type: ignore[arg-type]
    app.add_exception_handler(HTTPException, _handle_http_error)  # type: ignore[arg-type]
    return app


class Routes:
    """The handlers of all routes. `metrics` must be set before the first request."""

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

    def add_routes(self, app: FastAPI) -> None:
        """Add all routes to the application; the page of /docs describes those added before it."""
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
            page = _make_page_route(file, self.has_pictures)
            app.add_api_route(path, page, methods=["GET", "HEAD"], include_in_schema=False)
        described = _render_docs(app.openapi())  # describes all routes above
        app.add_api_route("/docs", lambda: HTMLResponse(described, headers=PAGE_HEADERS), include_in_schema=False)

    async def recommend(self, request: RecommendationRequest) -> Response:
        """Return a ranked list of the catalog's items for a conversation, or, if `may_ask`, a question."""
        name, model = self._model(request.model)
        if request.k > self.limits.max_items:
            raise Refused(400, f"k: {request.k} is more than {self.limits.max_items}, the limit of this service", "k")
        turns = request.conversation
        texts = [turns] if isinstance(turns, str) else [turn.content for turn in turns]
        self._check_conversation(texts, "conversation")
        fields = request.model_dump(exclude={"stream", "model", "user_id", "session_id"})
        if not request.stream:
            answer = {"model": name, **await model.ask("recommend", fields)}
            if self.feedback and "question" not in answer:
                answer["list_id"] = self.feedback.make_list_id()
                self.feedback.add_list(request.model_dump(), answer)
            self.metrics.count_list(name, answer["fallback"], len(answer["items"]), "question" in answer)
            return JSONResponse(answer)
        events: Events = self._count_events(name, model.stream("recommend_stream", fields))
        if self.feedback:
            events = self.feedback.watch(request.model_dump(), name, events)
        lines = (_format_event(kind, {"model": name, **data} if kind == "end" else data) async for kind, data in events)
        return await self._stream(lines, lambda refused: _format_event("error", refused.body))

    async def chat(self, request: ChatRequest) -> Response:
        """Answer as OpenAI's chat completions do: free text from the model, without a catalog."""
        name, model = self._model(request.model)
        self._check_conversation([message.text for message in request.messages], "messages")
        if self.is_strict and (ignored := request.ignored_fields):
            names = ", ".join(ignored)
            raise Refused(400, f"{names}: no effect; leave them out, or start the service without --strict", ignored[0])
        messages = [{"role": message.role, "content": message.text} for message in request.messages]
        fields = request.model_dump(exclude_none=True, exclude={*NO_EFFECT, "messages"})
        fields |= {"model": name, "messages": messages}
        if not request.stream:
            return JSONResponse(await model.ask("chat", fields))
        chunks = model.stream("chat_stream", fields)
        return await self._stream(chunks, lambda refused: f"data: {json.dumps(refused.body)}\n\ndata: [DONE]\n\n")

    async def refuse_responses(self) -> Response:
        """Point clients of OpenAI's Responses API to chat completions."""
        raise Refused(404, "this service has no Responses API; use /v1/chat/completions")

    async def take_feedback(self, event: FeedbackEvent) -> FeedbackEvent:
        """Store what a user did with an item of a list. The event is on the disk when the answer is sent."""
        if not self.feedback:
            raise Refused(404, "this service stores no feedback; start it with --feedback")
        await self.feedback.add_event(event)
        self.metrics.feedback.labels(event.event).inc()
        return event

    async def _count_events(self, model: str, events: Events) -> Events:
        """Yield a list's events, and count the list when it is complete."""
        items = 0
        is_question = False
        async for kind, data in events:
            items += kind == "item"
            is_question |= kind == "question"
            yield kind, data
            if kind == "end":
                self.metrics.count_list(model, data["fallback"], items, is_question)

    async def list_models(self) -> ModelList:
        """List the models in OpenAI's form, with their versions and the sizes of their catalogs."""
        return ModelList(data=[await self.get_model(name) for name in self.models])

    async def get_model(self, name: Annotated[str, PathParameter(description="name in /v1/models")]) -> ModelCard:
        """Describe one model."""
        name, model = self._model(name)
        described = await model.ask("describe")
        described |= {"max_turns": self.limits.max_turns, "keeps_feedback": self.feedback is not None}
        described["filters"] = [] if described["catalog_items"] is None else self.filters
        return ModelCard(id=name, created=self.created, **described)

    async def put_items(self, body: CatalogItems, model: ModelName = None) -> CatalogChange:
        """Add items to the catalog, or replace them completely. The next list may contain them."""
        name, chosen = self._model(model)
        items = [item.model_dump() for item in body.items]
        return CatalogChange(model=name, **await chosen.ask("put_items", items))

    async def patch_items(self, body: CatalogFields, model: ModelName = None) -> CatalogChange:
        """Change single fields of items in the catalog; null removes a value."""
        name, chosen = self._model(model)
        items = [item.model_dump(exclude_unset=True) for item in body.items]
        return CatalogChange(model=name, **await chosen.ask("patch_items", items))

    async def delete_items(
        self,
        body: CatalogIds | None = None,
        item_id: RemovedIds = [],  # noqa: B006  # FastAPI copies it
        model: ModelName = None,
    ) -> CatalogChange:
        """Remove items from the catalog. No later list contains them."""
        ids = [*item_id, *(body.item_ids if body else ())]
        if not ids:
            raise Refused(400, 'item_ids: missing; send {"item_ids": [...]} or ?item_id=...', "item_ids")
        name, chosen = self._model(model)
        return CatalogChange(model=name, **await chosen.ask("delete_items", ids))

    async def list_items(
        self,
        after: Annotated[str, Query(max_length=1000, description="`next` of the previous page")] = "",
        limit: Annotated[int, Query(ge=1, le=MAX_NAMES, description="number of items per page")] = 1000,
        model: ModelName = None,
    ) -> CatalogPage:
        """List the catalog's items page by page."""
        name, chosen = self._model(model)
        items = await chosen.ask("list_items", after, limit + 1)
        following = items[limit - 1]["item_id"] if len(items) > limit else None
        return CatalogPage(model=name, items=items[:limit], next=following)

    async def health(self) -> JSONResponse:
        """Answer 200 if every model answers, else 503, with the state of each."""
        states = await asyncio.gather(*map(_check_model, self.models.values()))
        is_well = all(state == "ok" for state in states)
        body = {"status": "ok" if is_well else "unavailable", "models": dict(zip(self.models, states, strict=True))}
        return JSONResponse(body, 200 if is_well else 503)

    async def get_metrics(self) -> Response:
        """Return metrics in Prometheus' text format: the service's own, and vLLM's for every replica."""
        expositions: dict[str, str] = {}
        for model in self.models.values():
            expositions |= await model.metrics()
        for name, model in self.models.items():
            self.metrics.update_model(name, model)
        return Response(self.metrics.render(expositions), media_type=CONTENT_TYPE)

    async def _stream(self, events: AsyncIterator[str], as_event: Callable[[Refused], str]) -> StreamingResponse:
        """Send server-sent events. A refusal before the first one sets the status; a later one becomes an event."""
        first = await anext(events, "")

        async def all_events() -> AsyncIterator[str]:
            yield first
            try:
                async for event in self.drain.iterate_until_cut(events):
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
            raise Refused(404, f"model: no model {name[:80]!r}; choose from {', '.join(self.models)}", "model")
        return name, self.models[name]

    def _check_conversation(self, turns: Sequence[str], field: str) -> None:
        """Raise Refused if a conversation is too long, before any work whose time grows with it."""
        most_turns = self.limits.max_turns
        if len(turns) > most_turns:
            raise Refused(
                400, f"{field}: {len(turns):,} turns, more than {most_turns}, the limit of this service", field
            )
        characters = sum(map(len, turns))
        most = self.limits.max_conversation_characters
        if characters > most:
            raise Refused(
                400, f"{field}: {characters:,} characters, more than {most:,}, the limit of this service", field
            )


def _render_docs(schema: Mapping[str, Any]) -> str:
    """Render /openapi.json as a page without scripts."""
    environment = Environment(loader=FileSystemLoader(PAGE), autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return environment.get_template("docs.html").render(schema, refusals=REFUSALS)


def _make_page_route(file: str, pictures: bool) -> Any:
    """Make the route of a file of the page; `pictures` allows images from other hosts, as shops have them."""
    policy = "Content-Security-Policy"
    headers = PAGE_HEADERS | ({policy: f"{PAGE_HEADERS[policy]} https: http:"} if pictures else {})

    async def page() -> FileResponse:
        return FileResponse(PAGE / file, headers=headers)

    return page


async def _check_model(model: Model) -> str:
    """Return "ok", or what is wrong with the model."""
    if model.problem:
        return f"the model's process does not start: {model.problem}"
    try:
        async with asyncio.timeout(HEALTH_SECONDS):
            await model.ask("describe")
    except Refused as refused:
        return refused.message
    except TimeoutError:
        return f"no answer within {HEALTH_SECONDS:g} s: the model's process is starting or busy"
    except Exception:  # still report the other models
        logging.getLogger(__name__).exception("a model could not describe itself")
        return FAILED.message
    return "ok"


def _format_event(kind: str, data: dict[str, Any]) -> str:
    return f"event: {kind}\ndata: {json.dumps(data)}\n\n"


async def _handle_invalid_request(request: Request, error: RequestValidationError) -> JSONResponse:
    """Report the first invalid field, with the most deeply nested of its errors, without echoing the request."""
    errors = [(*_locate_field(details["loc"]), details) for details in error.errors()]
    field = errors[0][0]
    of_field = [entry for entry in errors if entry[0] == field]
    _, path, details = max(of_field, key=lambda entry: len(entry[2]["loc"]))
    is_value = details["loc"][-1] == "bool"  # the first alternative of a column's value
    sentence = SENTENCES.get(field or "") or SENTENCES.get(details["type"])
    sentence = sentence or details["msg"].removeprefix("Value error, ")
    message = "write a text, a number, true or false" if is_value else sentence
    return JSONResponse(make_error_body(400, f"{path or 'body'}: {message}", field), 400)


def _locate_field(loc: Sequence[str | int]) -> tuple[str | None, str]:
    """Return the field of a pydantic error, and the path in it, such as conversation.0.role."""
    names = [str(part)[:100] for part in loc[1:] if not _ALTERNATIVE.match(str(part))]  # after "body" or "query"
    if not names or (isinstance(loc[-1], int) and len(loc) == 2):  # the position of a JSON error
        return None, ""
    return names[0], ".".join(names)


async def _handle_http_error(request: Request, error: HTTPException) -> JSONResponse:
    """Answer errors of the router in the same form: unknown path, wrong method, unreadable body."""
    return JSONResponse(make_error_body(error.status_code, str(error.detail)), error.status_code, error.headers)
