"""Options of `convrec gpu-check`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from cyclopts import Parameter

PhaseName = Literal[
    "versions",
    "fsdp2",
    "packed",
    "fused",
    "resume",
    "lora",
    "two_ranks",
    "kernels",
    "rollout",
    "weights",
    "sleep",
    "lora_rollout",
    "tensor_parallel",
    "constrained",
    "llama_rollout",
    "llama_weights",
    "llama_sleep",
    "llama_constrained",
    "qwen3_rollout",
    "qwen3_weights",
    "qwen3_sleep",
    "qwen3_constrained",
    "step",
]


@dataclass(frozen=True, kw_only=True)
class GpuCheckOptions:
    """Check everything that a run needs from this machine's GPUs; prints a table, writes JSON to attach to an issue.

    Without a GPU, only the phases that a CPU can run are checked; the table lists the others. docs/how-to/check-gpus.md

    convrec gpu-check --only versions fsdp2
    """

    COMMAND: ClassVar[str] = "gpu-check"

    json: Path = Path("gpu_check.json")
    """file to write"""
    only: Annotated[Sequence[PhaseName], Parameter(metavar="PHASE...")] = ()
    """phases to run (default: all)"""
