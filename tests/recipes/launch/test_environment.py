"""What the processes of a run are told about their machine."""

import os
import subprocess
import sys

import pytest

from recipes.launch.environment import keep_to_loopback

ASK_RAY = """
from recipes.launch.environment import keep_to_loopback

keep_to_loopback()
import ray

print(ray.util.get_node_ip_address())
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
    keep_to_loopback()
    assert not [name for name in names if name in os.environ]
