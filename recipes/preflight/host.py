"""What this machine has to train on, and what verl, Ray and vLLM must be told about it."""

import os
from importlib.util import find_spec


def usable_cores() -> int:
    return len(os.sched_getaffinity(0))


def has_flash_attention() -> bool:
    """flash-attn is built against the installed torch, so it cannot be among our dependencies."""
    return find_spec("flash_attn") is not None
