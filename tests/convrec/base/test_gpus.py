"""GPUs that are there and cannot be used are an error, not a CPU. torch is patched: no GPU is here."""

from collections.abc import Callable
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
import torch

from convrec.base import gpus
from convrec.base.errors import UserError


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """NVIDIA's driver with one GPU, a torch of CUDA 13 that finds the driver too old."""

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


def test_a_driver_that_is_too_old_is_no_cpu(device: Path) -> None:
    with pytest.raises(UserError, match=r"CUDA 13\.0 cannot use them: The NVIDIA .* too old .*driver 580 or newer"):
        gpus.usable_gpus()


@pytest.mark.parametrize("hidden", ["", "-1"])
def test_whoever_hides_the_devices_wants_the_cpu(device: Path, monkeypatch: pytest.MonkeyPatch, hidden: str) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    assert gpus.usable_gpus() == 0


@pytest.mark.parametrize("cuda", ["13.0", None])
def test_no_device_means_the_cpu(device: Path, monkeypatch: pytest.MonkeyPatch, cuda: str | None) -> None:
    monkeypatch.setattr(torch.version, "cuda", cuda)
    device.unlink()
    assert gpus.usable_gpus() == 0


def test_a_torch_without_cuda_beside_nvidia_devices_is_no_cpu(device: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(UserError, match=r"torch .* is built without CUDA: install the GPU environment"):
        gpus.usable_gpus()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert gpus.usable_gpus() == 0


def test_vllm_built_for_gpus_is_no_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus.check_vllm_runs_on_cpu()  # the environment of these tests has the build for CPUs

    def version(name: str) -> str:
        if name == "vllm":
            return "0.24.0"
        raise PackageNotFoundError(name)

    monkeypatch.setattr(gpus, "version", version)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(UserError, match=r"no GPU is visible \(CUDA_VISIBLE_DEVICES=\), and vLLM 0\.24\.0 is built for"):
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
def test_attention_needs_no_compiler_that_the_machine_lacks(
    with_gpus: Callable[..., None], capabilities: list[str], has_nvcc: bool, settings: dict[str, str]
) -> None:
    with_gpus(capabilities, has_nvcc)
    assert gpus.attention_settings() == settings


def test_a_machine_without_nvidias_driver_has_no_capabilities(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpus.compute_capabilities() == []
