"""A run's best checkpoint on a stand-in of the Hub: one commit with its files and a card."""

import base64
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from convrec.base.files import write_json
from convrec.checkpoints.saving import BEST
from recipes.push import main, push
from tests.conftest import mark_complete
from tests.user_errors import refuses

TOKEN = "hf_writes"


class StandIn(BaseHTTPRequestHandler):
    """The Hub's API, as far as a commit of small files needs it."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        server: Any = self.server
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self._answer(403, {"error": "no right to write"})
        if self.path == "/api/repos/create":
            server.made.append(json.loads(body))
            return self._answer(200, {"url": f"{server.address}/org/name"})
        if self.path == "/api/validate-yaml":  # of the card's head
            return self._answer(200, {"errors": [], "warnings": []})
        if self.path.startswith("/api/models/org/name/preupload/"):
            names = [file["path"] for file in json.loads(body)["files"]]
            files = [{"path": name, "uploadMode": "regular", "shouldIgnore": False} for name in names]
            return self._answer(200, {"files": files})
        if self.path.startswith("/api/models/org/name/commit/"):
            server.commits[self.path.rpartition("/")[2]] = [json.loads(line) for line in body.splitlines()]
            answer = {"commitUrl": f"{server.address}/org/name/commit/1", "commitOid": "1", "hookOutput": ""}
            return self._answer(200, answer)
        if self.path.startswith("/api/models/org/name/branch/"):
            return self._answer(200, {})
        return self._answer(404, {"error": f"{self.path}: not asked for here"})

    def _answer(self, status: int, content: dict[str, Any]) -> None:
        sent = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(sent)))
        self.end_headers()
        self.wfile.write(sent)

    def log_message(self, *args: object) -> None: ...


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), StandIn)
    server.address = f"http://127.0.0.1:{server.server_port}"
    server.made, server.commits = [], {}
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    monkeypatch.setattr(constants, "ENDPOINT", server.address)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def run(tmp_path: Path, sound_model: Any) -> Path:
    """Three checkpoints, of which the second is the best by validation."""
    folder = tmp_path / "run"
    steps = {1: 0.1, 2: 0.3, 3: 0.2}
    for step in steps:
        sound_model(folder / f"global_step_{step}" / "huggingface", weight=step)
    mark_complete(folder, *steps)
    write_json(folder / BEST, {"step": 2})
    (folder / "config.yaml").write_text("run: {recipe: sft}\ndata: {train_files: train.parquet}\noptim: {lr: 0.5}\n")
    (folder / "metrics").mkdir()
    rows = [{"step": step, "data": {"val/ndcg": value, "val/loss": 1 - value}} for step, value in steps.items()]
    (folder / "metrics" / "1.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def committed(operations: list[dict[str, Any]]) -> dict[str, bytes]:
    files = [one["value"] for one in operations if one["key"] == "file"]
    return {file["path"]: base64.b64decode(file["content"]) for file in files}


def test_the_best_checkpoint_becomes_one_commit_with_its_card(stand_in: Any, run: Path) -> None:
    message = push(str(run), "org/name", private=True)
    assert message == f"uploaded 4 files to {stand_in.address}/org/name/commit/1"
    assert stand_in.made[0]["visibility"] == "private"
    files = committed(stand_in.commits["main"])
    folder = run / "global_step_2" / "huggingface"
    expected = {path.name: path.read_bytes() for path in folder.iterdir()}
    card = files.pop("README.md").decode()
    assert files == expected
    for part in ("train.parquet", "0.3000", "`optim.lr` | 0.5", "convrec train sft", "convrec serve --model org/name"):
        assert part in card


def test_a_step_and_a_branch_can_be_named(stand_in: Any, run: Path) -> None:
    push(str(run / "global_step_3"), "org/name", revision="step-3")
    files = committed(stand_in.commits["step-3"])
    assert files["model.safetensors"] == (run / "global_step_3/huggingface/model.safetensors").read_bytes()


def test_the_newest_checkpoint_can_be_asked_for(stand_in: Any, run: Path) -> None:
    push(f"{run}@last", "org/name")
    files = committed(stand_in.commits["main"])
    assert files["model.safetensors"] == (run / "global_step_3/huggingface/model.safetensors").read_bytes()
    assert "0.2000" in files["README.md"].decode()  # the card is that step's


def test_card_and_weights_are_of_one_checkpoint_though_a_better_one_is_saved(
    stand_in: Any, validated_run: Path, save_better_after_reads: Callable[[int], None]
) -> None:
    (validated_run / "config.yaml").write_text("run: {recipe: sft}\n")
    (validated_run / "metrics").mkdir()
    rows = [{"step": 100, "data": {"val/ndcg": 0.1234}}, {"step": 200, "data": {"val/ndcg": 0.5678}}]
    (validated_run / "metrics" / "1.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    save_better_after_reads(1)
    push(str(validated_run), "org/name")
    files = committed(stand_in.commits["main"])
    saved = validated_run / "global_step_100" / "actor" / "huggingface" / "model.safetensors"
    assert files["model.safetensors"] == saved.read_bytes()
    assert "0.1234" in files["README.md"].decode()


def test_a_dry_run_uploads_nothing(stand_in: Any, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(run), "org/name", "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert "model.safetensors" in printed
    assert "convrec serve --model org/name" in printed
    assert (stand_in.made, stand_in.commits) == ([], {})


def test_what_cannot_be_uploaded_is_refused(
    stand_in: Any, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with refuses("push.invalid-repository", "name: "):
        push(str(run), "name")
    with refuses("push.no-run", tmp_path / "nothing"):
        push(str(tmp_path / "nothing"), "org/name")
    monkeypatch.setenv("HF_TOKEN", "hf_reads")
    with refuses("push.hub-refused", "org/name: ", "HF_TOKEN"):
        push(str(run), "org/name")
