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
    """Does everything that a run needs of GPUs work on this machine? A table, and JSON to attach to an issue.

    Without a GPU the parts run that a CPU can run, and the table says what was left out. docs/how-to/check-gpus.md

    convrec gpu-check --only versions fsdp2
    """

    COMMAND: ClassVar[str] = "gpu-check"

    json: Path = Path("gpu_check.json")
    """the file to write"""
    only: Annotated[Sequence[PhaseName], Parameter(metavar="PHASE...")] = ()
    """these phases alone (all)"""
