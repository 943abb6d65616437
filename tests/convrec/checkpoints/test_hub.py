"""A model's Hugging Face id is accepted or refused within seconds."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from huggingface_hub import constants

from convrec.checkpoints import hub
from convrec.checkpoints.models import resolve_model
from tests.user_errors import refuses

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = {"config.json": b'{"model_type": "qwen2"}', "model.safetensors": b"weights", "model.gguf": b"other weights"}
TOKEN = "hf_secret"


class StandIn(BaseHTTPRequestHandler):
    """The part of the Hub's API that a download of org/name at tag v1 needs; reading requires TOKEN."""

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, with_body: bool) -> None:
        status, headers, body = self._response()
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def _response(self) -> tuple[int, dict[str, str], bytes]:
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return 401, {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access to model org/name is restricted."}, b""
        path = self.path.partition("?")[0]
        if path in (f"/api/models/org/name/revision/{revision}" for revision in ("v1", COMMIT)):
            siblings = [{"rfilename": name} for name in FILES]
            content = {"id": "org/name", "sha": COMMIT, "private": False, "siblings": siblings}
            return 200, {"Content-Type": "application/json"}, json.dumps(content).encode()
        if path == f"/api/models/org/name/tree/{COMMIT}":
            tree = [{"type": "file", "path": name, "size": len(FILES[name]), "oid": name} for name in FILES]
            return 200, {"Content-Type": "application/json"}, json.dumps(tree).encode()
        name = path.rpartition("/")[2]
        if path == f"/org/name/resolve/{COMMIT}/{name}" and name in FILES:
            return 200, {"ETag": f'"{name}"', "X-Repo-Commit": COMMIT}, FILES[name]
        return 404, {"X-Error-Code": "RevisionNotFound"}, b""

    def log_message(self, *args: object) -> None: ...


@pytest.fixture
def stand_in(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), StandIn)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(constants, "ENDPOINT", address)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", address + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    yield
    server.shutdown()
    server.server_close()


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    return tmp_path


def test_a_folder_needs_no_hub(tmp_path: Path) -> None:
    hub.require(str(tmp_path), "MODEL_PATH=")


def test_an_id_is_refused_offline(offline_hub: Path) -> None:
    with refuses("hub.unavailable-model", "--model nobody/nothing: "):
        hub.require("nobody/nothing", "--model ")
    assert not hub.is_cached("nobody/nothing")


def test_unresponsive_hub_times_out(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "SECONDS", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setattr(constants, "ENDPOINT", address)
        monkeypatch.setattr(
            constants,
            "HUGGINGFACE_CO_URL_TEMPLATE",
            address + "/{repo_id}/{filename}",
        )
        start = time.monotonic()
        assert hub.problem("nobody/nothing")
        assert time.monotonic() - start < 30  # the client itself takes over a minute


def test_a_revision_becomes_its_folder_without_other_formats(stand_in: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    folder = Path(resolve_model("org/name@v1"))
    assert folder.name == COMMIT
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
        name: content for name, content in FILES.items() if name != "model.gguf"
    }
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert resolve_model("org/name@v1") == str(folder)  # from the cache


def test_gated_model_and_missing_revision_give_one_line_errors(stand_in: None, monkeypatch: pytest.MonkeyPatch) -> None:
    with refuses("hub.unavailable-revision", "MODEL_PATH=org/name@v1: ", "HF_TOKEN") as gated:
        resolve_model("org/name@v1")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with refuses("hub.unavailable-revision", "MODEL_PATH=org/name@v2: ", "'v2'") as missing:
        resolve_model("org/name@v2")
    assert "\n" not in str(gated.value) + str(missing.value)


def test_an_id_may_have_a_revision_with_slashes() -> None:
    assert hub.is_id("org/name@refs/pr/1")
    assert hub.split_revision("org/name@refs/pr/1") == ("org/name", "refs/pr/1")
    assert not hub.is_id("a/b/c@main")
