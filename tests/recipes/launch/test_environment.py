"""What the processes of a run are told about their machine."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from omegaconf import OmegaConf

from convrec.runs import guard
from recipes.launch import ray_training
from recipes.launch.environment import process_environment, set_up_process

ASK_RAY = """
from recipes.launch.environment import set_up_process

set_up_process()
import ray

print(ray.util.get_node_ip_address())
"""

STOPPED_GCS = """
import psutil, ray
from convrec.runs import guard
from recipes.launch.environment import leave, set_up_process, shut_down_ray

set_up_process()
with guard.guarded("gone") as folder:
    ray.init("local", num_cpus=1, include_dashboard=False, _temp_dir=str(folder / "ray"))
    (gcs,) = [process for process in psutil.Process().children() if process.name() == "gcs_server"]
    gcs.suspend()
    shut_down_ray(1.0)
psutil.wait_procs([gcs], timeout=20)
print("gcs_server is there:", psutil.pid_exists(gcs.pid))
raise SystemExit(leave(7))
"""


def test_without_a_cluster_ray_calls_this_node_by_its_loopback() -> None:
    """Ray's switch, and that it is read when Ray is imported. tests/e2e/test_deaths.py looks at a run's sockets."""
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
    """In every process of a run, where verl says otherwise, and in engines that stand alone; what the user has set
    stays."""
    from convrec.generation.engine_settings import engine_settings

    expected = {"VLLM_USE_FLASHINFER_SAMPLER": "0", "VLLM_DISABLE_COMPILE_CACHE": "0"}
    for name in expected:
        monkeypatch.delenv(name, raising=False)
    ray: dict[str, Any] = {}
    monkeypatch.setattr(ray_training, "init_ray", ray.update)
    monkeypatch.setenv(guard.FOLDER_VARIABLE, str(tmp_path))
    with mock.patch.dict(os.environ):
        config = OmegaConf.create({"ray_kwargs": {"ray_init": {}}})
        ray_training.start_ray(config, process_environment(True))
    assert ray["runtime_env"]["env_vars"].items() >= expected.items()
    with mock.patch.dict(os.environ):
        engine_settings(1)
        assert os.environ["VLLM_USE_FLASHINFER_SAMPLER"] == "0"
    monkeypatch.setenv("VLLM_USE_FLASHINFER_SAMPLER", "1")
    assert process_environment(True)["VLLM_USE_FLASHINFER_SAMPLER"] == "1"


def test_a_stopped_process_of_ray_does_not_keep_a_run_from_ending() -> None:
    """`make chaos` has met it: ray.shutdown waits for gcs_server without a limit."""
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    done = subprocess.run(
        [sys.executable, "-c", STOPPED_GCS], env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 7, done.stderr
    assert "Ray has not ended within 1 s: its processes are killed" in done.stderr
    assert done.stdout.splitlines()[-1] == "gcs_server is there: False"
