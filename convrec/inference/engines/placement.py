"""Where replicas run: on this node's GPUs or cores, which they divide among them.

A replica is a process of its own with an engine of `tensor_parallel` GPUs. Commands that ask a local model have
PlacementOptions for it.
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

AUTO = "auto"  # --replicas: as many as there is room for
GPU_FILES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")  # of CUDA, ROCm, WSL


@dataclass(frozen=True)
class Placement:
    """replicas: AUTO: as many as the GPUs of the node are enough for; one on a CPU.

    Raises UserError for numbers below 1.
    """

    replicas: int | str = 1
    tensor_parallel: int = 1

    def __post_init__(self) -> None:
        for option, value in (("--replicas", self.replicas), ("--tensor-parallel", self.tensor_parallel)):
            if (option, value) != ("--replicas", AUTO) and (not isinstance(value, int) or value < 1):
                choice = f"{AUTO}, or a number from 1" if option == "--replicas" else "a number from 1"
                raise UserError(f"{option} {value}: give {choice}")

    @contextlib.contextmanager
    def open(self, load: Load, settings: Any, log: str | Path | None = None) -> Iterator[Pool]:
        """On leaving, whatever has been started there is ended. load, settings, log: as Pool has them; log None: it is
        not kept.

        Raises UserError for more replicas than the GPUs are enough for.
        """
        with guard.guarded_children() as folder:  # whatever happens, no engine is left
            supervisor.note(temporary=str(folder))
            environments = environments_here(self.replicas, self.tensor_parallel, guard.environment(folder))
            with contextlib.closing(Pool(environments, load, settings, Path(log or folder / "vllm.log"))) as pool:
                yield pool


def environments_here(
    replicas: int | str, tensor_parallel: int, environment: Mapping[str, str]
) -> list[Mapping[str, str]]:
    """Of each replica on this node `environment`, and what says which part of the node it has."""
    parts = divide_node(replicas, tensor_parallel, visible_gpus(), len(os.sched_getaffinity(0)))
    return [{**environment, **part} for part in parts]


def visible_gpus() -> list[str]:
    """The GPUs of this process, each as CUDA_VISIBLE_DEVICES names it."""
    if not any(os.path.exists(file) for file in GPU_FILES):
        return []  # without importing torch, which takes seconds
    import torch

    count = torch.cuda.device_count()
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    return given.split(",")[:count] if given else [str(number) for number in range(count)]


def divide_node(replicas: int | str, tensor_parallel: int, gpus: Sequence[str], cores: int) -> list[dict[str, str]]:
    """The environment of each replica: GPUs of its own, or its share of the cores. One replica has all there is."""
    count = max(1, len(gpus) // tensor_parallel) if replicas == AUTO else int(replicas)
    on_cpu = dict([NO_COMPILER])  # from the beginning: torch reads it once, and transformers may import torch
    if gpus and count * tensor_parallel > len(gpus):
        raise UserError(f"--replicas {count} of {tensor_parallel} GPUs each: this node has {len(gpus)} GPUs")
    if count == 1:
        return [{} if gpus else on_cpu]
    if not gpus:
        return [on_cpu | {"OMP_NUM_THREADS": str(max(1, cores // count))}] * count
    starts = range(0, count * tensor_parallel, tensor_parallel)
    return [{"CUDA_VISIBLE_DEVICES": ",".join(gpus[start : start + tensor_parallel])} for start in starts]
