"""The real program with our configuration, before HTTP servers that answer, die and are not there."""

import http.server
import os
import signal
import socket
import threading
import time

import httpx
import psutil
import pytest

from convrec.errors import UserError
from recipes.serving.haproxy import PORTS, HAProxy, free_ports


class Healthy(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # keeps connections

    def do_GET(self):
        body = f"{self.path} of {self.server.server_port}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        """Dies with the request."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.connection.close()

    def log_message(self, *of):
        pass


def serve(port):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Healthy)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


@pytest.fixture
def before(tmp_path):
    proxy = HAProxy(tmp_path / "haproxy", "127.0.0.1", free_ports(1))
    proxy.start()
    yield proxy
    proxy.stop()


def get(before):
    return httpx.get(f"{before.address}/v1/models", timeout=20)


def wait_for(before, text):
    deadline = time.monotonic() + 20
    while text not in (found := get(before)).text:
        assert time.monotonic() < deadline, found.text
        time.sleep(0.1)


def test_a_process_answers_rays_proxy_while_there_is_none_and_then_nobody(before):
    answer = get(before)
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
    assert "starts: ask again" in answer.json()["error"]["message"]
    proxy = serve(before.proxy)
    wait_for(before, f"/v1/models of {before.proxy}")
    process = serve(before.first + PORTS - 1)  # the others had died
    wait_for(before, f"of {before.first + PORTS - 1}")
    process.shutdown()
    process.server_close()
    wait_for(before, f"of {before.proxy}")
    proxy.shutdown()
    proxy.server_close()


def test_a_process_that_dies_with_a_request_is_a_503_that_says_so(before):
    process = serve(before.first)
    wait_for(before, "of")
    with httpx.Client(base_url=before.address) as client:  # whose connection HAProxy must not close without a word
        assert client.get("/health").status_code == 200
        answer = client.post("/v1/recommendations")
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
    assert "ended while it answered" in answer.json()["error"]["message"]
    process.shutdown()
    process.server_close()


def test_it_is_started_again_where_it_was_killed(before):
    os.kill(before.process.pid, signal.SIGKILL)
    before.process.wait()
    before.start()
    assert get(before).status_code == 503


def test_it_listens_where_it_is_told_alone(before):
    listening = [one for one in psutil.Process(before.process.pid).net_connections("inet") if one.status == "LISTEN"]
    assert [f"http://{one.laddr.ip}:{one.laddr.port}" for one in listening] == [before.address]


def test_a_port_that_is_taken_is_an_error_with_its_words(before, tmp_path):
    other = HAProxy(tmp_path / "other", "127.0.0.1", int(before.address.rpartition(":")[2]))
    with pytest.raises(UserError, match="cannot bind"):
        other.start()
