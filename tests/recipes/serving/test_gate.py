"""Host, key, size and number of requests, before any route."""

import asyncio
import json

import httpx
import pytest
from fastapi.testclient import TestClient

ASK = {"conversation": "a film, please"}
KEY = "k" * 32


def test_foreign_host_header_is_refused_on_loopback_only(service):
    own = ("127.0.0.1:8000", "127.0.0.2", "127.1.2.3:80", "localhost", "LocalHost:8000", "[::1]:8000", "[::1]")
    others = ("rebound.example:8000", "127.0.0.1.rebound.example", "localhost.rebound.example", "192.168.0.2:8000")
    broken = ("", ":8000", "[::1", "::1", "[::1].rebound.example", "127.0.0.1@rebound.example", "127.0.0.1:80:80")
    client = TestClient(service())
    for status, names in ((200, own), (403, others + broken)):
        for name in names:
            assert (name, client.get("/health", headers={"Host": name}).status_code) == (name, status)
    assert TestClient(service(KEY, loopback=False), base_url="http://films.example").get("/health").status_code == 200


def test_two_hosts_are_refused(service):
    client = TestClient(service(), base_url="http://localhost")
    twice = client.get("/health", headers=[("Host", "localhost"), ("Host", "localhost")])
    assert (twice.status_code, "Host" in twice.json()["error"]["message"]) == (400, True)


@pytest.mark.parametrize("prefix", ["", "/books"])  # Ray Serve's route_prefix: in the path, and named by root_path
def test_a_key_is_asked_for_by_all_but_page_and_health(service, prefix):
    client = TestClient(service(KEY, loopback=False), base_url=f"http://testserver{prefix}", root_path=prefix)
    for path in ("/v1/models", "/metrics", "/openapi.json"):
        refused = client.get(path)
        assert (refused.status_code, refused.json()["error"]["type"]) == (401, "authentication_error")
        assert client.get(path, headers={"Authorization": f"Bearer {KEY}"}).status_code == 200
        assert client.get(path, headers={"Authorization": f"Bearer {KEY}x"}).status_code == 401
        assert client.get(path, headers={"Authorization": f"Basic {KEY}"}).status_code == 401
        assert client.get(path, headers=[(b"Authorization", b"Bearer \xff\xfe")]).status_code == 401
    assert [client.get(path).status_code for path in ("/", "/page.js", "/health", "/x")] == [200] * 3 + [401]


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_that_is_too_large_is_a_413_that_says_the_limit(service, films, chunked):
    content = b'{"conversation": "' + b"x" * 1000 + b'"}'
    client = TestClient(service(max_body_bytes=1000), base_url="http://localhost")
    sent = iter([content[:500], content[500:]]) if chunked else content
    refused = client.post("/v1/recommendations", content=sent, headers={"Content-Type": "application/json"})
    assert (refused.status_code, films.asked) == (413, [])
    assert "1,000 bytes" in refused.json()["error"]["message"]


def test_a_request_too_many_is_a_429_and_places_come_back(service, films):
    async def scenario():
        films.wait = asyncio.Event()
        transport = httpx.ASGITransport(service(max_concurrent=2))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            first = [asyncio.create_task(client.post("/v1/recommendations", json=ASK)) for _ in range(2)]
            while len(films.asked) < 2:
                await asyncio.sleep(0)
            refused = await client.post("/v1/recommendations", json=ASK)
            pages = await client.get("/")
            gone = asyncio.create_task(client.post("/v1/recommendations", json=ASK))
            first[0].cancel()
            films.wait.set()
            await asyncio.gather(*first, gone, return_exceptions=True)
            after = [await client.post("/v1/recommendations", json=ASK) for _ in range(3)]
            return refused, pages, after

    refused, pages, after = asyncio.run(scenario())
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    assert "2 requests" in refused.json()["error"]["message"]
    assert pages.status_code == 200
    assert [answer.status_code for answer in after] == [200] * 3


async def statuses(app, receive, meanwhile=None):
    """(what a request whose client says `receive` gets, what another one gets, during the first or after it)."""
    sent = []

    async def send(message):
        sent.append(message)

    path = "/v1/recommendations"
    headers = [(b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": path, "headers": headers, "query_string": b""}
    first = asyncio.create_task(app(scope, receive, send))
    await (asyncio.sleep(0) if meanwhile else asyncio.wait_for(first, 10))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        other = await client.post(path, json=ASK)
    await first
    return [message["status"] for message in sent[:1]], other.status_code


def test_a_body_that_does_not_come_holds_no_place_and_ends(service):
    app = service(max_concurrent=1, timeout_seconds=0.05)
    assert asyncio.run(statuses(app, asyncio.Event().wait, meanwhile=True)) == ([408], 200)


def test_an_answer_that_nobody_waits_for_is_given_up(service, films):
    async def scenario():
        films.wait = asyncio.Event()
        messages = [{"type": "http.request", "body": json.dumps(ASK).encode()}]

        async def receive():
            if messages:
                return messages.pop()
            while not films.asked:
                await asyncio.sleep(0)
            films.wait = None  # of requests to come
            return {"type": "http.disconnect"}

        return await statuses(service(max_concurrent=1), receive)

    assert asyncio.run(scenario()) == ([], 200)
