"""What Ray Serve's proxy says of a process that has died or starts, as a client gets it: real requests to ASGI apps."""

import asyncio
import contextlib

import httpx
import pytest
from starlette.responses import JSONResponse, PlainTextResponse, StreamingResponse

from recipes.serving import proxy
from recipes.serving.proxy import Held


def ask(app, path="/v1/recommendations"):
    async def send():
        transport = httpx.ASGITransport(Held(app, seconds=0.3))
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            return await client.post(path, content=b"x")

    return asyncio.run(send())


async def lost(scope, receive, send):
    """As the proxy where the process dies: no answer."""


async def held(scope, receive, send):
    """As the proxy where there is no process: it swallows that it is cancelled, and speaks of the client."""
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(30)
    await PlainTextResponse("client disconnected", 499)(scope, receive, send)


@pytest.mark.parametrize("app", [lost, PlainTextResponse("Deployment(name='demo') is unavailable", 503)])
def test_a_process_that_has_died_is_said_in_the_services_words(app):
    answer = ask(app)
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
    assert "ended while it answered" in answer.json()["error"]["message"]


@pytest.mark.parametrize("status", [200, 500, 503])
def test_what_the_service_says_itself_is_passed_on(status):
    answer = ask(JSONResponse({"its": "own"}, status))
    assert (answer.status_code, answer.json()) == (status, {"its": "own"})


@pytest.mark.parametrize(("path", "status"), [("/health", 503), ("/books/health", 503), ("/v1/models", 504)])
def test_a_process_that_starts_is_not_waited_for_without_end(path, status, monkeypatch):
    monkeypatch.setattr(proxy, "HEALTH_SECONDS", 0.1)
    answer = ask(held, path)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, status)
    assert answer.headers["Retry-After"] == "5"


def test_an_answer_that_has_begun_may_take_longer():
    async def pieces():
        for piece in ("a", "b", "c"):
            yield piece
            await asyncio.sleep(0.2)

    assert ask(StreamingResponse(pieces()), path="/").text == "abc"


def test_ray_serve_takes_the_middleware_with_the_services_limit(monkeypatch):
    monkeypatch.setenv(proxy.SECONDS_VARIABLE, "7.5")
    (found,) = proxy.middlewares()
    assert found.cls is Held
    assert found.kwargs == {"seconds": 7.5}
