"""The largest requests of each kind that the service allows, beside ordinary ones: real HTTP, a model's real process.

The process has everything but an engine: it answers with popular items, after reading the request as for the model.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from recipes.serving.schema import MAX_ALLOWED, MAX_NAMES, Limits
from tests.recipes.serving.without_engine import build_settings, served, write_films

ITEMS = 2000
HELD_SECONDS = 10.0  # what held the loop did so for 28 s and more; a busy machine has taken 1.6
TIMEOUT_SECONDS = 60.0
ORDINARY = {"conversation": "a film, please", "k": 10}
LIMITS = Limits(timeout_seconds=TIMEOUT_SECONDS)


def titles(count: int, kind: str) -> list[str]:
    """That no item has: each is looked up in every way."""
    return [f"The {kind} Film Number {number} ({1950 + number % 70})" for number in range(count)]


WORDS = "I liked a film with a long title and another one. " * 10_000
CHARACTERS = LIMITS.max_conversation_characters
NEW = [{"item_id": f"n{n}", "title": f"A New Film {n}", "year": 2000, "price": 1.5} for n in range(MAX_NAMES)]
LISTS = {
    "words": {"conversation": WORDS[:CHARACTERS]},
    "one word": {"conversation": "x" * CHARACTERS},
    "turns": {"conversation": [{"role": "user", "content": WORDS[: CHARACTERS // 100]}] * 100},
    "short turns": {"conversation": "USER: a\n" * (CHARACTERS // 8)},
    "allow": ORDINARY | {"allow": titles(MAX_ALLOWED, "Allowed")},
    "names": ORDINARY | {name: titles(MAX_NAMES, name) for name in ("seen", "exclude", "liked")},
    "why": ORDINARY | {"k": 100, "why": True, "liked": [f"f{number}" for number in range(ITEMS)]},
    "where": ORDINARY | {"where": {"category": titles(MAX_NAMES - 1, "Category")}},
}
REFUSED = {
    "too long": {"conversation": WORDS * 8},
    "too many turns": {"conversation": [{"role": "user", "content": "a"}] * 100_000},
    "too many names": ORDINARY | {"allow": [str(number) for number in range(380_000)]},
}


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory, unread_model: Path) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("large")
    write_films(folder / "catalog.parquet", ITEMS)
    settings = build_settings("films", unread_model, folder / "catalog.parquet", folder / "state")
    with served([settings], LIMITS, folder) as opened:
        yield opened.address


def seconds_of(ask: Callable[[], httpx.Response]) -> float:
    begin = time.monotonic()
    answer = ask()
    assert answer.status_code == 200, answer.text
    return time.monotonic() - begin


@pytest.mark.parametrize("kind", [*LISTS, *REFUSED, "put", "delete"])
def test_the_largest_request_holds_up_no_other(address: str, kind: str) -> None:
    """Four such requests run at once. The bound tells a held event loop from a busy machine; it measures nothing."""
    method, path, body = "POST", "/v1/recommendations", LISTS.get(kind) or REFUSED.get(kind)
    if body is None:
        method, path = ("PUT" if kind == "put" else "DELETE"), "/v1/catalog/items"
        body = {"items": NEW} if kind == "put" else {"item_ids": [item["item_id"] for item in NEW]}
    content = json.dumps(body).encode()
    assert len(content) <= LIMITS.max_body_bytes
    with httpx.Client(base_url=address, timeout=4 * TIMEOUT_SECONDS) as client:
        health = lambda: seconds_of(lambda: client.get("/health"))  # noqa: E731
        ordinary = lambda: seconds_of(lambda: client.post("/v1/recommendations", json=ORDINARY))  # noqa: E731
        answers: list[tuple[float, int]] = []

        def ask() -> None:
            begin = time.monotonic()
            headers = {"Content-Type": "application/json"}
            answer = client.request(method, path, content=content, headers=headers)
            answers.append((time.monotonic() - begin, answer.status_code))

        asking = [threading.Thread(target=ask) for _ in range(4)]
        for one in asking:
            one.start()
        others: list[float] = []
        while any(one.is_alive() for one in asking):
            others += [ordinary(), health()]
    assert {status for _, status in answers} == {400 if kind in REFUSED else 200}
    assert max(seconds for seconds, _ in answers) < TIMEOUT_SECONDS
    assert max(others) < HELD_SECONDS
