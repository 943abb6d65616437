"""Strangers' connections on a real server: none without a key holds up what others ask."""

import asyncio
import json
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import httpx
import pytest

from recipes.serving import connections, local
from recipes.serving.local import BACKLOG, bind_socket, make_server

KEY = "k" * 32
SOCKETS = 2000
HELD_UP = 15  # seconds: less than who waits for a sender's end would; a busy machine has taken 1.4, and may stand still
ASK = {"conversation": "a film, please"}


@pytest.fixture(autouse=True)
def limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that stands still sends its heads late."""
    monkeypatch.setattr(connections, "HEAD_SECONDS", 60)
    monkeypatch.setattr(local, "READ_SECONDS", 2)


@pytest.fixture
def short_heads(monkeypatch: pytest.MonkeyPatch, limits: None) -> None:
    monkeypatch.setattr(connections, "HEAD_SECONDS", 2)


@pytest.fixture
def fewer(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(local, "MAX_CONNECTIONS", most)


@pytest.fixture
def address(service: Callable[..., Any], request: pytest.FixtureRequest) -> Iterator[tuple[str, int]]:
    """Where the service listens, as `convrec serve` has it; the parameter is its key."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1], limits[1]))
    with socket.create_server(("127.0.0.1", 0)) as free:
        at = free.getsockname()
    listener, server = bind_socket(*at), make_server(service(request.param))
    listener.listen(BACKLOG)
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    yield at
    server.should_exit = True
    thread.join()
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def slow_sender(address: tuple[str, int], path: str, headers: str) -> socket.socket:
    """A connection that has sent the head of a request and one byte of the thousand that it announces."""
    opened = socket.create_connection(address, timeout=20)
    opened.sendall(f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{headers}Content-Length: 1000\r\n\r\n{{".encode())
    return opened


@pytest.mark.parametrize(
    ("address", "path", "status"),
    [(None, "/x", 404), (KEY, "/x", 401), (KEY, "/v1/recommendations", 401), (None, "/v1/recommendations", 0)],
    indirect=["address"],
)
def test_slow_senders_block_neither_health_nor_lists(address: tuple[str, int], path: str, status: int) -> None:
    """status: what each gets before its body is there, with the end of its connection; 0: nothing yet."""
    headers = {"Authorization": f"Bearer {KEY}"}
    opened = [slow_sender(address, path, "") for _ in range(SOCKETS)]
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{address[1]}", headers=headers, timeout=20) as client:
            for _ in range(5):
                begin = time.monotonic()
                assert client.get("/health").status_code == 200
                assert time.monotonic() - begin < HELD_UP
            assert client.post("/v1/recommendations", json=ASK).status_code == 200
        for one in opened if status else []:
            answer = b""
            while part := one.recv(65536):  # until the service ends the connection
                answer += part
            assert answer.startswith(f"HTTP/1.1 {status} ".encode())
            assert b'{"error":{"message":' in answer
    finally:
        for one in opened:
            one.close()


def assert_well(address: tuple[str, int]) -> None:
    with httpx.Client(base_url=f"http://127.0.0.1:{address[1]}", timeout=20) as client:
        for _ in range(5):
            begin = time.monotonic()
            assert client.get("/health").status_code == 200
            assert time.monotonic() - begin < HELD_UP
        assert client.post("/v1/recommendations", json=ASK).status_code == 200


def rest_of(opened: socket.socket) -> bytes:
    """What comes until the service ends the connection."""
    answer = b""
    with suppress(ConnectionResetError):
        while part := opened.recv(65536):
            answer += part
    return answer


@pytest.mark.parametrize("address", [None], indirect=True)
@pytest.mark.parametrize(
    "sent",
    [b"", b"GET / HT", b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 10_000, b"GET / HTTP/1.1\r\na: " + b"b" * 70_000],
    ids=["nothing", "half a head", "endless headers", "an endless header"],
)
def test_endless_headers_are_cut_off_and_block_nothing(
    short_heads: None, address: tuple[str, int], sent: bytes
) -> None:
    opened = [socket.create_connection(address, timeout=20) for _ in range(SOCKETS)]
    try:
        for one in opened:
            with suppress(ConnectionResetError, BrokenPipeError):
                one.sendall(sent)
        assert_well(address)
        assert {rest_of(one)[:13] for one in opened} <= {b"", b"HTTP/1.1 431 "}
    finally:
        for one in opened:
            one.close()


@pytest.mark.parametrize("address", [None], indirect=True)
@pytest.mark.parametrize(
    "head",
    [
        b"GET /health HTTP/1.1\r\nHost: localhost\r\na: " + b"b" * 70_000,
        b"GET /health?" + b"a" * 70_000 + b" HTTP/1.1\r\nHost: localhost",
        b"GET /health HTTP/1.1\r\nHost: localhost" + b"".join(b"\r\na%d: " % n + b"b" * 7000 for n in range(10)),
    ],
    ids=["a header", "the address", "all headers"],
)
def test_a_head_above_the_bound_that_comes_at_once_is_a_431(address: tuple[str, int], head: bytes) -> None:
    with socket.create_connection(address, timeout=20) as opened:
        with suppress(ConnectionResetError, BrokenPipeError):
            opened.sendall(head + b"\r\n\r\n")
        assert rest_of(opened).startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize("address", [None], indirect=True)
def test_trickling_header_is_cut_off_but_extra_newline_is_fine(
    short_heads: None, address: tuple[str, int], films: Any
) -> None:
    films.wait = asyncio.Event()
    body = json.dumps(ASK).encode()
    begin = time.monotonic()
    with socket.create_connection(address, timeout=20) as slow, socket.create_connection(address, timeout=20) as asked:
        asked.sendall(b"POST /v1/recommendations HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n")
        asked.sendall(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        time.sleep(0.5)
        asked.sendall(b"\r\n")  # as some clients do behind a body
        with suppress(ConnectionResetError, BrokenPipeError):
            slow.sendall(b"GET /")
            while time.monotonic() - begin < 10:
                slow.sendall(b"x")
                time.sleep(0.2)
        assert 1 < time.monotonic() - begin < 10
        time.sleep(1)
        films.wait.set()  # of another loop's thread, which the next request wakes
        httpx.get(f"http://127.0.0.1:{address[1]}/")
        assert asked.recv(65536).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("address", [None], indirect=True)
def test_requests_that_are_sent_ahead_are_few(address: tuple[str, int]) -> None:
    with socket.create_connection(address, timeout=20) as opened:
        with suppress(ConnectionResetError, BrokenPipeError):
            opened.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1000)
        assert rest_of(opened).count(b"HTTP/1.1 200 ") < 1000
    assert_well(address)


@pytest.mark.parametrize("address", [None], indirect=True)
def test_who_does_not_read_is_left(address: tuple[str, int], films: Any) -> None:
    films.items = {"1": ("x" * (16 << 20), 1980)}
    body = json.dumps(ASK).encode()
    with socket.socket() as opened:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        opened.settimeout(20)
        opened.connect(address)
        opened.sendall(b"POST /v1/recommendations HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n")
        opened.sendall(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        time.sleep(8)
        assert len(rest_of(opened)) < 32 << 20  # the title is there twice


@pytest.mark.parametrize("most", [100])
@pytest.mark.parametrize("address", [None], indirect=True)
def test_full_service_drops_idle_connections_for_new_ones(fewer: None, address: tuple[str, int], most: int) -> None:
    opened = [socket.create_connection(address, timeout=20) for _ in range(330)]
    assert_well(address)
    ended = 0
    for one in opened:
        one.setblocking(False)
        with suppress(BlockingIOError):
            ended += not rest_of(one)
    assert ended >= 330 - most
    for one in opened:
        one.close()


@pytest.mark.parametrize("address", [None], indirect=True)
def test_what_is_no_http_gets_json_as_all_errors_do(address: tuple[str, int]) -> None:
    with socket.create_connection(address, timeout=20) as opened:
        opened.sendall(b"\x16\x03\x01 TLS, say\r\n\r\n")
        head, _, body = b"".join(iter(lambda: opened.recv(65536), b"")).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert b"content-type: application/json" in head
    assert json.loads(body)["error"] == {
        "message": "Invalid HTTP request received.", "type": "invalid_request_error", "param": None, "code": 400
    }  # fmt: skip


@pytest.mark.parametrize("address", [None], indirect=True)
def test_a_500_leaves_its_traceback_to_the_log_of_the_command(
    address: tuple[str, int], films: Any, caplog: pytest.LogCaptureFixture
) -> None:
    films.refusal = RuntimeError("out of paper")
    assert httpx.post(f"http://127.0.0.1:{address[1]}/v1/recommendations", json=ASK).status_code == 500
    deadline = time.monotonic() + 20
    while "RuntimeError: out of paper" not in caplog.text:  # it is written when the answer is sent
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("address", [KEY], indirect=True)
def test_an_answer_keeps_its_connection_where_the_body_was_read(address: tuple[str, int]) -> None:
    headers = {"Authorization": f"Bearer {KEY}"}
    with httpx.Client(base_url=f"http://127.0.0.1:{address[1]}", headers=headers) as client:
        for _ in range(2):
            assert "connection" not in client.post("/v1/recommendations", json=ASK).headers
            assert "connection" not in client.get("/openapi.json").headers
        assert client.post("/v1/models", json=ASK).headers["connection"] == "close"  # a path that takes no body
