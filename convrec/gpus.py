"""GPUs of this machine, and why torch cannot use those that are there."""

import os
from pathlib import Path

from convrec.errors import UserError

DEVICES = Path("/dev")  # nvidia0, nvidia1, ...: made by NVIDIA's driver


def usable_gpus() -> int:
    """How many torch can use; 0 on a laptop. Does not start CUDA.

    Raises UserError where NVIDIA's driver has devices that torch's CUDA cannot use: a run on the CPU would be slow
    without a word. A torch without CUDA, and CUDA_VISIBLE_DEVICES= (empty) or -1, mean the CPU.
    """
    import torch

    if torch.cuda.is_available():
        return torch.cuda.device_count()
    is_hidden = os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1")
    if torch.version.cuda and not is_hidden and any(DEVICES.glob("nvidia[0-9]*")):
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
