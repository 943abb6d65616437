"""Where one replica runs, and the division of this node into such places."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from convrec.errors import UserError
from convrec.generation.engine_settings import NO_COMPILER
from convrec.generation.process import Process, Replica

AUTO = "auto"
GPU_FILES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")  # of CUDA, ROCm, WSL


class Place(Protocol):
    """Where one replica runs."""

    @property
    def on_gpu(self) -> bool: ...

    @property
    def temporary(self) -> str | None:
        """A folder on this node that is removed with the replicas, also where this process is killed; None: none."""

    def start(self, target: str, settings: Any, log: Path) -> Replica: ...


@dataclass(frozen=True)
class LocalPlace:
    """A part of this node. environment: the variables that say which."""

    environment: dict[str, str]
    on_gpu: bool

    @property
    def temporary(self) -> str | None:
        return self.environment.get("TMPDIR")  # the guard's

    def start(self, target: str, settings: Any, log: Path) -> Replica:
        return Process(target, settings, self.environment, log)


def visible_gpus() -> list[str]:
    """The GPUs of this process, each as CUDA_VISIBLE_DEVICES names it."""
    if not any(os.path.exists(file) for file in GPU_FILES):
        return []  # without importing torch, which takes seconds
    import torch

    count, given = torch.cuda.device_count(), os.environ.get("CUDA_VISIBLE_DEVICES")
    return given.split(",")[:count] if given else [str(number) for number in range(count)]


def divide_node(replicas: int | str, tensor_parallel: int, gpus: Sequence[str], cores: int) -> list[dict[str, str]]:
    """The environment of each replica: GPUs of its own, or its share of the cores. One replica has all there is."""
    count = count_of(replicas, len(gpus) // tensor_parallel)
    on_cpu = dict([NO_COMPILER])  # from the beginning: torch reads it once, and transformers may import torch
    if gpus and count * tensor_parallel > len(gpus):
        raise UserError(f"--replicas {count} of {tensor_parallel} GPUs each: this node has {len(gpus)} GPUs")
    if count == 1:
        return [{} if gpus else on_cpu]
    if not gpus:
        return [on_cpu | {"OMP_NUM_THREADS": str(max(1, cores // count))}] * count
    starts = range(0, count * tensor_parallel, tensor_parallel)
    return [{"CUDA_VISIBLE_DEVICES": ",".join(gpus[start : start + tensor_parallel])} for start in starts]


def count_of(replicas: int | str, room: int) -> int:
    """room: how many replicas the GPUs are enough for."""
    return max(1, room) if replicas == AUTO else int(replicas)
