"""A cluster that asks for a token: one sentence names what this machine lacks, at once."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from ray._private import services

from recipes.preflight import node
from recipes.preflight.findings import check_cluster_token
from recipes.preflight.ray_token import GCS_METHOD, check_token, describe_missing_token
from tests.user_errors import refuses

ADDRESS = "http://head:8265"


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A home folder, and no variable of Ray's."""
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def write_token(home: Path) -> None:
    (home / ".ray").mkdir()
    (home / ".ray" / "auth_token").write_text("0" * 64)


def test_a_token_is_not_sent_without_the_mode(home: Path) -> None:
    write_token(home)
    text = describe_missing_token(ADDRESS)
    assert text.startswith(f"RAY_ADDRESS={ADDRESS}: ")
    assert text.endswith(": export RAY_AUTH_MODE=token")  # the token itself is there


def test_missing_mode_and_missing_token_are_both_named() -> None:
    text = describe_missing_token(ADDRESS)
    assert text.endswith("copy the head node's ~/.ray/auth_token to this machine, then export RAY_AUTH_MODE=token")


@pytest.mark.parametrize("file", ["", "/not/there"])
def test_with_the_mode_a_missing_token_is_named(monkeypatch: pytest.MonkeyPatch, file: str) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", file)
    text = describe_missing_token(ADDRESS)
    assert "copy the head node's ~/.ray/auth_token" in text
    assert "RAY_AUTH_TOKEN_PATH" in text
    assert "RAY_AUTH_MODE" not in text


def test_a_token_that_is_refused_is_named_with_its_place(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    write_token(home)
    assert f"{home}/.ray/auth_token holds a different one" in describe_missing_token(ADDRESS)
    monkeypatch.setenv("RAY_AUTH_TOKEN", "1" * 64)
    assert "RAY_AUTH_TOKEN holds a different one" in describe_missing_token(ADDRESS)


class Gcs(grpc.GenericRpcHandler):
    """The service of Ray that the check calls; with a token it refuses calls without it."""

    def __init__(self, token: str) -> None:
        self.token = token

    def service(self, call: Any) -> grpc.RpcMethodHandler:
        assert call.method == GCS_METHOD
        return grpc.unary_unary_rpc_method_handler(self.answer)

    def answer(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        if self.token and ("authorization", f"Bearer {self.token}") not in context.invocation_metadata():
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "Invalid or missing authentication token")
        return b""


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a cluster; the parameter is its token."""
    server = grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers([Gcs(request.param)])
    port = server.add_insecure_port("0.0.0.0:0")  # like Ray's, which listens on all addresses of its node
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None)


@pytest.mark.parametrize("cluster", ["1" * 64], indirect=True)
def test_a_refusal_is_reported_before_ray_connects(cluster: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", cluster)
    with refuses("preflight.refused-token", cluster, "RAY_AUTH_MODE=token"):
        node.connect()
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    with refuses("preflight.refused-token", cluster, "RAY_AUTH_TOKEN_PATH"):
        node.connect()
    write_token(home)
    with refuses("preflight.refused-token", cluster, home / ".ray" / "auth_token"):
        node.connect()
    (home / ".ray" / "auth_token").write_bytes(b"\xff" * 64)
    with refuses("preflight.unreadable-token", home / ".ray" / "auth_token"):
        node.connect()
    (home / ".ray" / "auth_token").write_text("1" * 64 + "\n")
    check_token(cluster)
    assert check_cluster_token(cluster) == []


@pytest.mark.parametrize("cluster", ["1" * 64], indirect=True)
def test_a_token_of_kubernetes_is_left_to_ray(cluster: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ENABLE_K8S_TOKEN_AUTH", "true")
    check_token(cluster)


@pytest.mark.parametrize("cluster", [""], indirect=True)
def test_an_open_cluster_lets_in_and_is_a_finding(cluster: str) -> None:
    check_token(cluster)
    assert [finding.status for finding in check_cluster_token(cluster)] == ["warning"]


@pytest.fixture
def folder_of_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which Ray notes the cluster that this machine has joined; no GCS server runs on this machine."""
    services.find_gcs_addresses.cache_clear()
    monkeypatch.setattr(services, "_find_address_from_flag", lambda flag: set())
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    folder = tmp_path / "ray"
    folder.mkdir()
    return folder


@pytest.mark.parametrize("cluster", ["1" * 64], indirect=True)
def test_a_node_of_the_cluster_without_its_token_is_refused(
    cluster: str, folder_of_ray: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RAY_ADDRESS=auto stands for the head's address, which `ray start` writes into this file."""
    (folder_of_ray / "ray_current_cluster").write_text(cluster)
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    with refuses("preflight.refused-token", "RAY_ADDRESS=auto", "RAY_AUTH_MODE=token"):
        node.connect()
    assert check_cluster_token("auto") == []


@pytest.mark.parametrize("cluster", [""], indirect=True)
def test_a_node_of_an_open_cluster_has_a_finding(cluster: str, folder_of_ray: Path) -> None:
    (folder_of_ray / "ray_current_cluster").write_text(cluster)
    assert [finding.status for finding in check_cluster_token("auto")] == ["warning"]


@pytest.mark.parametrize("address", ["auto", "ray://head:10001", "127.0.0.1:1"])
def test_what_does_not_answer_is_left_to_ray(address: str, folder_of_ray: Path) -> None:
    check_token(address)
    assert check_cluster_token(address) == []
