"""Divides this node's GPUs or cores among replicas.

A replica is a process with an engine on `tensor_parallel` GPUs. Commands that run a local model have PlacementOptions.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from convrec.base.errors import UserError
from convrec.inference.engines.engine_settings import NO_COMPILER
from convrec.inference.engines.pool import Pool
from convrec.inference.engines.process import Load
from convrec.runs import guard, supervisor

AUTO = "auto"  # --replicas: as many as fit on the GPUs
GPU_FILES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")  # CUDA, ROCm, WSL


@dataclass(frozen=True)
class Placement:
    """The number of replicas and the GPUs of each.

    Attributes:
        replicas: AUTO for as many as fit on the node's GPUs, or one on a CPU.
        tensor_parallel: GPUs of a replica.

    Raises:
        UserError: a number is below 1.
    """

    replicas: int | str = 1
    tensor_parallel: int = 1

    def __post_init__(self) -> None:
        for option, value in (("--replicas", self.replicas), ("--tensor-parallel", self.tensor_parallel)):
            if (option, value) != ("--replicas", AUTO) and (not isinstance(value, int) or value < 1):
                choices = f"{AUTO} or a whole number from 1" if option == "--replicas" else "a whole number from 1"
                raise UserError("replicas.invalid-number", f"{option} {value}: must be {choices}.")

    @contextlib.contextmanager
    def open(self, load: Load, settings: Any, log: str | Path | None = None) -> Iterator[Pool]:
        """Open a pool of replicas; everything that they start is ended at the end of the block.

        Args:
            load: see Pool; also for `settings`.
            settings: argument of load.
            log: the log file; None to discard the log.

        Raises:
            UserError: the node has too few GPUs for the replicas.
        """
        with guard.guard_children() as folder:  # no engine is left, whatever happens
            supervisor.note(temporary=str(folder))
            environments = make_replica_environments(self.replicas, self.tensor_parallel, guard.environment(folder))
            with contextlib.closing(Pool(environments, load, settings, Path(log or folder / "vllm.log"))) as pool:
                yield pool


def make_replica_environments(
    replicas: int | str, tensor_parallel: int, environment: Mapping[str, str]
) -> list[Mapping[str, str]]:
    """Return the environment of each replica: `environment`, and the variables that give it its part of the node.

    Args:
        replicas: the number, or AUTO: as many as the GPUs allow, one without a GPU.
        tensor_parallel: GPUs per replica.
        environment: variables that all replicas get.

    Raises:
        UserError: the node has too few GPUs.
    """
    parts = divide_node(replicas, tensor_parallel, visible_gpus(), len(os.sched_getaffinity(0)))
    return [{**environment, **part} for part in parts]


def visible_gpus() -> list[str]:
    """Return the GPUs that this process may use, as named in CUDA_VISIBLE_DEVICES."""
    if not any(os.path.exists(file) for file in GPU_FILES):
        return []  # without importing torch, which takes seconds
    import torch

    count = torch.cuda.device_count()
    names = os.environ.get("CUDA_VISIBLE_DEVICES")
    return names.split(",")[:count] if names else [str(number) for number in range(count)]


def divide_node(replicas: int | str, tensor_parallel: int, gpus: Sequence[str], cores: int) -> list[dict[str, str]]:
    """Return the variables that give each replica its own GPUs, or its share of the cores.

    Args:
        replicas: the number, or AUTO: as many as the GPUs allow, one without a GPU.
        tensor_parallel: GPUs per replica; without a GPU it does not matter here.
        gpus: as named in CUDA_VISIBLE_DEVICES; empty without a GPU.
        cores: those that this process may use.

    Returns:
        One mapping per replica. A single replica gets the whole node.

    Raises:
        UserError: the node has too few GPUs.
    """
    count = max(1, len(gpus) // tensor_parallel) if replicas == AUTO else int(replicas)
    on_cpu = dict([NO_COMPILER])  # set from the start: torch reads it once, and transformers may import torch
    if gpus and count * tensor_parallel > len(gpus):
        raise UserError(
            "replicas.too-few-gpus",
            f"--replicas {count} with --tensor-parallel {tensor_parallel}: {count * tensor_parallel} GPUs are needed, "
            f"but this node has {len(gpus)}.",
        )
    if count == 1:
        return [{} if gpus else on_cpu]
    if not gpus:
        return [on_cpu | {"OMP_NUM_THREADS": str(max(1, cores // count))}] * count
    starts = range(0, count * tensor_parallel, tensor_parallel)
    return [{"CUDA_VISIBLE_DEVICES": ",".join(gpus[start : start + tensor_parallel])} for start in starts]
