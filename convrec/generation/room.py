"""Where replicas are started, and the division of this node among them."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from convrec.errors import UserError
from convrec.generation.engine_settings import NO_COMPILER
from convrec.generation.process import Load, Process, Replica

AUTO = "auto"
GPU_FILES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")  # of CUDA, ROCm, WSL
Start: TypeAlias = Callable[[Load, Any, Path], Replica]  # of (load, settings, log), as Process takes them


@dataclass(frozen=True)
class Room:
    """Where replicas are started: each of `starts` has GPUs or cores of its own, and can be called again and again.

    folder: of this node, removed with the replicas, also where this process is killed; None where they are elsewhere.
    """

    starts: Sequence[Start]
    tensor_parallel: int
    on_gpu: bool
    folder: Path | None = None


def room_here(replicas: int | str, tensor_parallel: int, folder: Path, environment: Mapping[str, str]) -> Room:
    """On this node. environment: of all replicas, beside what says which part of the node each has."""
    gpus = visible_gpus()
    parts = divide_node(replicas, tensor_parallel, gpus, len(os.sched_getaffinity(0)))
    starts = [partial(Process, environment={**environment, **part}) for part in parts]
    return Room(starts, tensor_parallel, bool(gpus), folder)


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
