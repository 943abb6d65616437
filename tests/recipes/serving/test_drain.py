"""A service that is stopped, on a real server: what runs is answered, what comes is refused, what is late is cut."""

import asyncio
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from recipes.serving.drain import Drain
from recipes.serving.local import BACKLOG, bind_socket, make_server
from tests.recipes.serving.test_http import error_of, events_of

ASK = {"conversation": "a film, please"}
ROOT = Path(__file__).parents[3]


@pytest.fixture
def started(service: Callable[..., Any], films: Any) -> Iterator[Callable[[float], SimpleNamespace]]:
    """started(drain_seconds) -> its client, its drain and its thread, which ends with the server. Lists are held."""
    films.wait = asyncio.Event()
    opened = []

    def start(drain_seconds: float) -> SimpleNamespace:
        with socket.create_server(("127.0.0.1", 0)) as free:
            at = free.getsockname()
        drain, listener = Drain(), bind_socket(*at)
        server = make_server(service(drain=drain), drain, drain_seconds)
        listener.listen(BACKLOG)
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        client = httpx.Client(base_url=f"http://127.0.0.1:{at[1]}", timeout=60)
        opened.append(client)
        return SimpleNamespace(client=client, drain=drain, thread=thread)

    yield start
    for client in opened:
        client.close()


def ask(client: httpx.Client, answers: list[httpx.Response], **more: Any) -> threading.Thread:
    """Ask for a list in a thread."""
    asking = threading.Thread(target=lambda: answers.append(client.post("/v1/recommendations", json=ASK | more)))
    asking.start()
    return asking


def wait_until(is_so: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_what_runs_is_answered_whole_and_what_comes_is_refused(
    started: Callable[[float], SimpleNamespace], films: Any, caplog: pytest.LogCaptureFixture
) -> None:
    served = started(300)
    answers: list[httpx.Response] = []
    asking = [ask(served.client, answers), ask(served.client, answers, stream=True)]
    wait_until(lambda: len(films.asked) == 2)
    served.drain.begin()
    for refused in (
        served.client.post("/v1/recommendations", json=ASK),
        served.client.get("/health"),
        served.client.get("/"),
    ):
        assert error_of(refused, 503)["message"].startswith("the service stops")
        assert (refused.headers["retry-after"], refused.headers["connection"]) == ("5", "close")
    assert served.client.get("/metrics").status_code == 200
    films.wait.set()  # the server's loop looks around every tenth of a second
    for one in asking:
        one.join()
    served.thread.join(60)
    assert not served.thread.is_alive()
    assert {answer.status_code for answer in answers} == {200}
    streamed = next(answer for answer in answers if "event-stream" in answer.headers["content-type"])
    assert [kind for kind, _ in events_of(streamed.text)] == [*["item"] * 5, "end"]
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_what_is_late_is_cut_with_an_error(
    started: Callable[[float], SimpleNamespace], films: Any, caplog: pytest.LogCaptureFixture
) -> None:
    served = started(0.5)
    answers: list[httpx.Response] = []
    asking = [ask(served.client, answers), ask(served.client, answers, stream=True)]
    wait_until(lambda: len(films.asked) == 2)
    served.drain.begin()
    for one in (*asking, served.thread):
        one.join(60)
        assert not one.is_alive()
    answers.sort(key=lambda answer: answer.status_code)
    streamed, refused = answers
    assert error_of(refused, 503)["message"].startswith("the service stops")
    *_, (kind, data) = events_of(streamed.text)
    assert (kind, data["error"]["code"]) == ("error", 503)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_without_requests_it_ends_at_once(started: Callable[[float], SimpleNamespace]) -> None:
    served = started(300)
    wait_until(lambda: _answers(served.client))
    served.drain.begin()
    served.thread.join(60)
    assert not served.thread.is_alive()


def _answers(client: httpx.Client) -> bool:
    with suppress(httpx.ConnectError):
        return client.get("/").status_code == 200
    return False


SERVICE = """
    import asyncio, signal, sys
    from recipes.serving import http
    from recipes.serving.drain import Drain
    from recipes.serving.local import bind_socket, make_server
    from recipes.serving.replicas import Model
    from recipes.serving.schema import ModelSettings, ServiceSettings
    from conftest import Films

    class SlowFilms(Films):
        async def _answer(self, request):
            await asyncio.sleep(0.5)

    settings = ServiceSettings(models=[ModelSettings(name="films", path="films", catalog="x")], loopback=True)
    drain = Drain()
    listener = bind_socket("127.0.0.1", int(sys.argv[1]))
    listener.listen()
    print("ready", flush=True)
    app = http.build(settings, {"films": Model([SlowFilms()], 60)}, None, drain)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as in the command
    try:
        make_server(app, drain, 60).run(sockets=[listener])
    except KeyboardInterrupt:
        sys.exit(130)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_without_a_word(number: signal.Signals) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-c", textwrap.dedent(SERVICE), str(port)]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{Path(__file__).parent}"}
    process = subprocess.Popen(command, env=environment, **pipes)
    assert process.stdout
    assert process.stdout.readline() == "ready\n"
    lines: list[str] = []
    url = f"http://127.0.0.1:{port}/v1/recommendations"
    with httpx.stream("POST", url, json=ASK | {"stream": True}, timeout=60) as response:
        for line in response.iter_lines():
            if not lines:
                process.send_signal(number)
            lines.append(line)
    _, said = process.communicate(timeout=60)
    assert json.loads(lines[-2].removeprefix("data: "))["model"] == "films"  # of `end`
    assert sum(line == "event: item" for line in lines) == 5
    assert (process.returncode, said) == (130, "")
