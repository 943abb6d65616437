"""A model's Hugging Face id is refused, or found, within seconds."""

import socket
import time
from pathlib import Path

import pytest
from huggingface_hub import constants

from convrec.checkpoints import hub
from convrec.errors import UserError


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    return tmp_path


def test_a_folder_is_not_asked_for(tmp_path: Path) -> None:
    hub.require(str(tmp_path), "MODEL_PATH=")


def test_an_id_is_refused_offline(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match=r"--model nobody/nothing: no folder here, and not to be had from the Hub"):
        hub.require("nobody/nothing", "--model ")
    assert not hub.is_cached("nobody/nothing")


def test_a_hub_that_accepts_and_never_answers_is_given_up_in_time(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
