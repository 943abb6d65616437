"""Trackers asked whether they take the key: servers that refuse, hang or are not there."""

import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from convrec.training.trackers.access import go_offline_where_needed

VIEWER = b'{"data": {"viewer": {"id": "x"}}}'


@pytest.fixture
def server() -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Address of one that takes the key "good" alone, as SwanLab and W&B do, and what it was asked."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            key = self.headers["authorization"]
            asked.append((self.path, key))
            self.rfile.read(int(self.headers["content-length"]))
            is_good = key in ("good", "Basic YXBpOmdvb2Q=")  # api:good
            # W&B answers 200 to everybody
            self.send_response(200 if is_good or self.path == "/graphql" else 401)
            self.end_headers()
            self.wfile.write(VIEWER if is_good else b'{"data": {"viewer": null}}')

        def log_message(self, *args: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{http.server_port}", asked
    http.shutdown()


def environment(address: str, key: str) -> dict[str, str]:
    return {
        "HOME": "/nowhere",
        "SWANLAB_API_KEY": key,
        "SWANLAB_API_HOST": address,
        "WANDB_API_KEY": key,
        "WANDB_BASE_URL": address,
        "MLFLOW_TRACKING_URI": address,
    }


def test_a_key_that_is_taken_stays_online(server: tuple[str, list], tmp_path: Path) -> None:
    address, asked = server
    before = environment(address, "good")
    after = dict(before)
    assert go_offline_where_needed(["swanlab", "wandb", "mlflow", "file", "console"], tmp_path, after) == []
    assert after == before
    assert sorted(path for path, _ in asked) == ["/api/login/api_key", "/graphql"]


def test_a_key_that_is_refused_goes_on_offline(server: tuple[str, list], tmp_path: Path) -> None:
    address, _ = server
    variables = environment(address, "bad")
    warnings = go_offline_where_needed(["swanlab", "wandb"], tmp_path, variables)
    assert warnings == [
        f"swanlab goes on offline: {address} refuses SWANLAB_API_KEY (401)",
        f"wandb goes on offline: {address} refuses WANDB_API_KEY",
    ]
    assert (variables["SWANLAB_MODE"], variables["WANDB_MODE"]) == ("offline", "offline")
    assert "bad" not in "".join(warnings)


def test_a_password_in_an_address_is_sent_as_a_header_and_never_said(server: tuple[str, list], tmp_path: Path) -> None:
    address, asked = server
    with_login = address.replace("://", "://api:good@")
    variables = environment(with_login, "") | {"SWANLAB_API_KEY": "x"}
    assert go_offline_where_needed(["mlflow"], tmp_path, variables) == []  # http.client takes the name for the host
    assert variables["MLFLOW_TRACKING_URI"] == with_login
    warnings = go_offline_where_needed(["swanlab"], tmp_path, variables)
    assert warnings == [f"swanlab goes on offline: {address} refuses SWANLAB_API_KEY (401)"]
    assert asked == [("/api/login/api_key", "x")]
    gone = {"MLFLOW_TRACKING_URI": "http://alice:s3cret@127.0.0.1"}
    (warning,) = go_offline_where_needed(["mlflow"], tmp_path, gone)
    assert warning.startswith("mlflow goes on offline: http://127.0.0.1 cannot be reached")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"SWANLAB_API_HOST": "swanlab.example.org"}, "swanlab.example.org is no address; it begins with http://"),
        ({"SWANLAB_API_HOST": "http://host:port"}, "http://host:port is no address; it begins with http://"),
        ({"SWANLAB_API_KEY": "line one\nline two"}, "SWANLAB_API_KEY holds what cannot be sent in a header"),
    ],
)
def test_an_address_or_key_that_is_none_is_named(
    server: tuple[str, list], tmp_path: Path, changes: dict[str, str], said: str
) -> None:
    (warning,) = go_offline_where_needed(["swanlab"], tmp_path, environment(server[0], "good") | changes)
    assert warning.startswith(f"swanlab goes on offline: {said}")
    assert "line one" not in warning


def test_a_server_that_is_not_there_or_does_not_answer_goes_on_offline(tmp_path: Path) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        variables = environment(f"http://127.0.0.1:{silent.getsockname()[1]}", "good")
        variables["MLFLOW_TRACKING_URI"] = "http://127.0.0.1:9"
        swanlab, mlflow = go_offline_where_needed(["swanlab", "mlflow"], tmp_path, variables, seconds=0.5)
    assert "no answer in 0 s" in swanlab or "timed out" in swanlab
    assert mlflow == (
        "mlflow goes on offline: http://127.0.0.1:9 cannot be reached (ConnectError: [Errno 111] Connection refused)"
    )
    assert variables["SWANLAB_MODE"] == "offline"
    assert variables["MLFLOW_TRACKING_URI"] == f"sqlite:///{tmp_path}/mlflow.db"


def test_offline_is_offline(server: tuple[str, list], tmp_path: Path) -> None:
    address, asked = server
    variables = environment(address, "good") | {"SWANLAB_MODE": "offline", "WANDB_MODE": "offline"}
    assert go_offline_where_needed(["swanlab", "wandb"], tmp_path, variables) == []
    assert asked == []
