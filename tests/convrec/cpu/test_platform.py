"""The CPU platform, its process group, engine and rollout server."""

from pathlib import Path

import psutil
import pytest
import torch

from convrec.cpu import platform
from convrec.cpu.engine import init_process_group
from convrec.runs import guard


def test_platform_is_registered_by_importing_verl() -> None:
    """Through the entry point `verl.plugins`, which every process that imports verl loads."""
    from importlib.metadata import entry_points

    (entry,) = [entry for entry in entry_points(group="verl.plugins") if entry.name == "convrec"]
    assert entry.load() is platform


def test_platform_says_what_verl_asks() -> None:
    cpu = platform.PlatformCPU()
    assert (cpu.current_device(), cpu.device_count()) == ("cpu", 1)
    assert cpu.communication_backend_name() == "gloo"
    assert cpu.ray_resource_name() == "GPU"
    assert not cpu.is_ipc_supported()
    assert torch.zeros(1).to(cpu.current_device()).device.type == "cpu"
    free, total = cpu.device_module.mem_get_info()
    assert 0 < free <= total
    assert 0 < cpu.device_module.memory_allocated() < total
    state, first = cpu.device_module.get_rng_state(), torch.rand(3)
    cpu.device_module.set_rng_state(state)
    assert torch.equal(torch.rand(3), first)


def test_process_without_gpu_on_gpu_host_is_not_on_cpu_platform(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Ray hides the GPUs of an actor that asked for none, and a slim container has no nvidia-smi."""
    driver = tmp_path / "nvidiactl"
    monkeypatch.setattr(platform, "ACCELERATOR_FILES", (str(driver),))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert platform.PlatformCPU().is_platform_available(use_smi_check=True)
    driver.touch()
    assert not platform.PlatformCPU().is_platform_available(use_smi_check=True)


@pytest.mark.parametrize(("value", "expected"), [("cpu", True), (" CPU ", True), ("cuda", False), (None, False)])
def test_a_cpu_host_is_one_where_verl_is_told_so(
    monkeypatch: pytest.MonkeyPatch, value: str | None, expected: bool
) -> None:
    monkeypatch.delenv("VERL_PLATFORM", raising=False)
    if value is not None:
        monkeypatch.setenv("VERL_PLATFORM", value)
    assert platform.is_cpu_host() is expected


def test_process_group_is_gloo_and_listens_on_loopback_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from verl.utils.distributed import initialize_global_process_group_ray

    group = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    for name, value in (group | {guard.FOLDER_VARIABLE: str(tmp_path), "GLOO_SOCKET_IFNAME": "lo"}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("DIST_INIT_METHOD", "restored afterwards")
    before = listening()
    init_process_group()
    try:
        assert torch.distributed.get_backend() == "gloo"
        initialize_global_process_group_ray()  # verl's own call finds it done
        assert {ip for ip, _ in listening() - before} <= {"127.0.0.1"}
    finally:
        torch.distributed.destroy_process_group()


def listening() -> set[tuple[str, int]]:
    return {tuple(c.laddr) for c in psutil.Process().net_connections("inet") if c.status == "LISTEN"}
