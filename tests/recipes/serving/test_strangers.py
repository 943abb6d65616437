"""Strangers' connections on a real server: none without a key holds up what others ask."""

import json
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from recipes.serving.local import BACKLOG, bound, server_of

KEY = "k" * 32
SOCKETS = 2000
ASK = {"conversation": "a film, please"}


@pytest.fixture
def address(service: Callable[..., Any], request: pytest.FixtureRequest) -> Iterator[tuple[str, int]]:
    """Where the service listens, as `convrec serve` has it; the parameter is its key."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1], limits[1]))
    with socket.create_server(("127.0.0.1", 0)) as free:
        at = free.getsockname()
    listener, server = bound(*at), server_of(service(request.param))
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
def test_two_thousand_slow_senders_hold_up_neither_health_nor_a_list(
    address: tuple[str, int], path: str, status: int
) -> None:
    """status: what each gets before its body is there, with the end of its connection; 0: nothing yet."""
    headers = {"Authorization": f"Bearer {KEY}"}
    opened = [slow_sender(address, path, "") for _ in range(SOCKETS)]
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{address[1]}", headers=headers, timeout=20) as client:
            for _ in range(5):
                begin = time.monotonic()
                assert client.get("/health").status_code == 200
                assert time.monotonic() - begin < 1
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
