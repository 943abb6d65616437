"""The environment variables of a run's processes, and the Ray that a run starts."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import pytest
from omegaconf import OmegaConf

from convrec.runs import guard
from recipes.launch import ray_training
from recipes.launch.environment import make_process_environment, set_up_process, use_own_token

ASK_RAY = """
from recipes.launch.environment import set_up_process

set_up_process()
import ray

print(ray.util.get_node_ip_address())
"""

LOCAL_RAY = """
import contextlib, json, os, sys, time
from recipes.launch.environment import make_process_environment, set_up_process

os.environ["CUDA_VISIBLE_DEVICES"] = ""  # as on a machine with GPUs that trains on its CPU
set_up_process()
os.environ.update(make_process_environment(False))
import psutil
from omegaconf import OmegaConf
from convrec.runs import guard
from recipes.launch import ray_training

RAYS = ("gcs_server", "raylet")
config = OmegaConf.create({
    "trainer": {"device": "cuda"},  # nothing is imported beforehand
    "ray_kwargs": {"ray_init": {"num_cpus": 1, "num_gpus": 1, "include_dashboard": False}},
})
with guard.guarded("gone") as folder:
    if sys.argv[1] == "ours":
        ray_training.preload_workers(config)
        ray_training.start_ray(config, make_process_environment(True))
    else:
        import ray
        ray.init("local", num_cpus=1, include_dashboard=False, _temp_dir=str(folder / "ray"))
    deadline = time.monotonic() + 60
    while True:
        assert time.monotonic() < deadline, "the dashboard process does not say that its reports are off"
        with contextlib.suppress(StopIteration):
            if "Usage reporting is disabled" in next(folder.glob("ray/session_2*/logs/dashboard.log")).read_text():
                break
        time.sleep(0.1)
    processes = psutil.Process().children(recursive=True)
    print(json.dumps({
        "modes": {path.name: oct(path.stat().st_mode)[-3:] for path in (folder, *folder.glob("ray_token"))},
        "statistics": {p.name(): p.environ().get("RAY_USAGE_STATS_ENABLED") for p in processes if p.name() in RAYS},
        "mode": os.environ.get("RAY_AUTH_MODE"),
    }))
    ray_training.shut_down_ray()
"""

STOPPED_GCS = """
import psutil, ray
from convrec.runs import guard
from recipes.launch.environment import exit_if_ray_hangs, set_up_process, shut_down_ray

set_up_process()
with guard.guarded("gone") as folder:
    ray.init("local", num_cpus=1, include_dashboard=False, _temp_dir=str(folder / "ray"))
    (gcs,) = [process for process in psutil.Process().children() if process.name() == "gcs_server"]
    gcs.suspend()
    shut_down_ray(1.0)
psutil.wait_procs([gcs], timeout=20)
print("gcs_server is there:", psutil.pid_exists(gcs.pid))
raise SystemExit(exit_if_ray_hangs(7))
"""


def test_warnings_are_heard_after_the_import_of_vllms_server() -> None:
    """model_hosting_container_standards sets the root logger to ERROR by default, and its handlers too."""
    lines = (
        "import logging",
        "from recipes.launch.environment import set_up_process",
        "set_up_process()",
        "logging.basicConfig()",
        "import vllm.entrypoints.openai.api_server",
        "logging.getLogger('convrec.training.rollout_check').warning('the rollout drifts')",
    )
    environment = {name: value for name, value in os.environ.items() if not name.endswith("LOG_LEVEL")}
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert "WARNING:convrec.training.rollout_check:the rollout drifts" in done.stderr


def test_without_a_cluster_ray_calls_this_node_by_its_loopback() -> None:
    """Ray reads its switch on import. tests/e2e/test_deaths.py looks at the sockets of a run."""
    hidden = ("RAY_ADDRESS", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    asked = subprocess.run(
        [sys.executable, "-c", ASK_RAY], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    assert asked.stdout.split() == ["127.0.0.1"]


def test_on_a_cluster_addresses_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    set_up_process()
    assert not [name for name in names if name in os.environ]


def test_vllm_starts_without_nvcc_and_keeps_what_it_compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In every process of a run, against verl's defaults, and in separate engines; values set by the user win."""
    from convrec.inference.engines.engine_settings import engine_settings

    expected = {"VLLM_USE_FLASHINFER_SAMPLER": "0", "VLLM_DISABLE_COMPILE_CACHE": "0"}
    for name in expected:
        monkeypatch.delenv(name, raising=False)
    ray: dict[str, Any] = {}
    monkeypatch.setattr(ray_training, "init_ray", ray.update)
    monkeypatch.setenv(guard.FOLDER_VARIABLE, str(tmp_path))
    with mock.patch.dict(os.environ):
        config = OmegaConf.create({"ray_kwargs": {"ray_init": {}}})
        ray_training.start_ray(config, make_process_environment(True))
    assert ray["runtime_env"]["env_vars"].items() >= expected.items()
    with mock.patch.dict(os.environ):
        engine_settings(1)
        assert os.environ["VLLM_USE_FLASHINFER_SAMPLER"] == "0"
    monkeypatch.setenv("VLLM_USE_FLASHINFER_SAMPLER", "1")
    assert make_process_environment(True)["VLLM_USE_FLASHINFER_SAMPLER"] == "1"


class Questions(BaseHTTPRequestHandler):
    """A proxy that refuses every request and records its path."""

    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        Questions.asked.append(self.path)
        self.send_error(404)

    do_POST = do_CONNECT = do_PUT = do_GET

    def log_message(self, *args: object) -> None: ...


@pytest.fixture
def proxy() -> Iterator[dict[str, str]]:
    """Variables that send all HTTP requests to other machines to `Questions`."""
    Questions.asked.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Questions)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    yield {"http_proxy": address, "https_proxy": address, "no_proxy": "127.0.0.1,localhost"}
    server.shutdown()
    server.server_close()


def start_local_ray(whose: str, home: str, proxy: dict[str, str]) -> dict[str, Any]:
    """Start and end a Ray in another process, as a run does ("ours") or with Ray's defaults; return its properties."""
    hidden = ("RAY_", "HTTP", "NO_PROXY")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    done = subprocess.run(
        [sys.executable, "-c", LOCAL_RAY, whose],
        env=environment | proxy | {"HOME": home},
        capture_output=True,
        text=True,
        check=False,
        timeout=170,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_local_ray_has_its_own_token_and_sends_no_usage_reports(proxy: dict[str, str], tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    ray = start_local_ray("ours", str(home), proxy)
    assert list(ray["modes"].values()) == ["700", "600"]
    assert ray["mode"] == "token"
    assert ray["statistics"] == {"gcs_server": "0", "raylet": "0"}
    assert Questions.asked == []
    assert not (home / ".ray").exists()


@pytest.mark.long
def test_unwritable_home_does_not_keep_ray_from_starting(proxy: dict[str, str]) -> None:
    assert start_local_ray("ours", "/dev/null/home", proxy)["mode"] == "token"


@pytest.mark.long
def test_ray_by_itself_asks_for_its_cloud(proxy: dict[str, str], tmp_path: Path) -> None:
    """The reason for `skip_cloud_lookup`: if this fails, Ray no longer asks, and it can go."""
    start_local_ray("theirs", str(tmp_path), proxy)
    assert any("metadata.google.internal" in url for url in Questions.asked)


def test_a_token_of_another_cluster_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "another cluster's")
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    use_own_token(tmp_path)
    assert os.environ["RAY_AUTH_TOKEN_PATH"] == str(tmp_path / "ray_token")
    assert len((tmp_path / "ray_token").read_text()) == 64
    assert "RAY_AUTH_TOKEN" not in os.environ


def test_a_user_may_turn_the_token_off(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    use_own_token(tmp_path)
    assert not list(tmp_path.iterdir())


def test_stopped_ray_process_does_not_keep_a_run_from_ending() -> None:
    """Found by `make chaos`: ray.shutdown waits for gcs_server without a limit."""
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    done = subprocess.run(
        [sys.executable, "-c", STOPPED_GCS], env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 7, done.stderr
    assert "Ray has not ended within 1 s: its processes are killed" in done.stderr
    assert done.stdout.splitlines()[-1] == "gcs_server is there: False"
