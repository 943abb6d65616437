"""The sizes of both demos: TINY makes its model, PRETRAINED starts from one (docs/tutorials/pretrained.md)."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from convrec.base.errors import UserError
from recipes.experiments.matrix_file import read_matrix
from recipes.experiments.matrix_runs import MatrixRun, expand_matrix

BF16_FLAGS = {"avx512_bf16", "amx_bf16"}
# By recipe. The weights that train stay in fp32.
BF16_OVERRIDES: Mapping[str, Sequence[str]] = MappingProxyType(
    {
        "sft": ("engine.mixed_precision.param_dtype=bf16",),
        "rank_grpo": (
            "actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype=bf16",
            "actor_rollout_ref.rollout.dtype=bfloat16",
        ),
    }
)


@dataclass(frozen=True, kw_only=True)
class Demo:
    """A demo's sizes.

    Attributes:
        out: folder that it writes, where none is given.
        matrix: name of the file beside this module with its two trainings.
        sample: options of `convrec data sample`.
        sft_steps, rl_steps: steps of the trainings.
        sft_validations, rl_validations: how often each is validated.
        memory_gib: memory that its largest part takes.
        disk_gib: what its folder takes at most, checkpoints that are about to be replaced included.
        is_pretrained: its model is evaluated as it comes, before it is trained; each evaluation takes minutes, and the
            passes are computed in bf16 where the CPU does that itself.
    """

    out: Path
    matrix: str
    sample: Sequence[str] = ()
    sft_steps: int
    rl_steps: int
    sft_validations: int = 2
    rl_validations: int
    memory_gib: float
    disk_gib: float
    is_pretrained: bool = False


TINY = Demo(
    out=Path("outputs/demo"),
    matrix="tiny.yaml",
    sft_steps=450,
    rl_steps=48,
    rl_validations=6,  # what is saved, at thirds, has been validated
    memory_gib=4.7,
    disk_gib=2,
)
PRETRAINED = Demo(
    out=Path("outputs/pretrained"),
    matrix="pretrained.yaml",
    sample=("--requests", "hard", "--num-items", "10", "--validation", "100", "--test", "300"),
    sft_steps=72,
    rl_steps=12,
    rl_validations=2,
    memory_gib=10,
    disk_gib=12,
    is_pretrained=True,
)


def schedule_steps(steps: int, validations: int) -> dict[str, str]:
    """Return the variables of a run of so many steps, which is saved at thirds: an interruption costs little."""
    return {
        "TOTAL_STEPS": str(steps),
        "SAVE_FREQ": str(max(1, steps // 3)),
        "TEST_FREQ": str(max(1, steps // validations)),
    }


def read_runs(demo: Demo, out: Path) -> tuple[MatrixRun, MatrixRun, dict[str, Any]]:
    """Return SFT, Rank-GRPO, and the settings by which both are evaluated.

    Args:
        out: the demo's folder.

    Raises UserError for a folder whose name YAML would misread.
    """
    if {'"', "\\", "$"} & set(str(out)):
        raise UserError(f"--out {out}: a path without quotes, backslashes and dollar signs, since YAML has it")
    os.environ["DEMO"] = str(out)
    matrix = read_matrix(Path(__file__).with_name(demo.matrix))
    sft, rl = expand_matrix(matrix)
    sft = replace(sft, variables={**sft.variables, **schedule_steps(demo.sft_steps, demo.sft_validations)})
    rl = replace(rl, variables={**rl.variables, **schedule_steps(demo.rl_steps, demo.rl_validations)})
    if demo.is_pretrained and has_bf16():
        sft, rl = (replace(run, overrides=[*run.overrides, *BF16_OVERRIDES[run.recipe]]) for run in (sft, rl))
    return sft, rl, matrix.evaluate


def has_bf16(cpu_information: Path = Path("/proc/cpuinfo")) -> bool:
    """Return whether this CPU has instructions for bf16. Without them it is slower than fp32."""
    flags = {
        flag
        for line in cpu_information.read_text(encoding="utf-8").splitlines()
        if line.startswith("flags")
        for flag in line.split()
    }
    return bool(BF16_FLAGS & flags)
