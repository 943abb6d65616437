"""What this machine has to train on, and what verl, Ray and vLLM must be told about it."""

import os
from importlib.util import find_spec


def num_accelerators() -> int:
    """GPUs torch can see; 0 on a laptop. Does not start CUDA."""
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def usable_cores() -> int:
    return len(os.sched_getaffinity(0))


def has_flash_attention() -> bool:
    """flash-attn is built against the installed torch, so it cannot be among our dependencies."""
    return find_spec("flash_attn") is not None
