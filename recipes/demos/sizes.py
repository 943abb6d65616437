"""The sizes of both demos: TINY makes its model, PRETRAINED starts from one (docs/tutorials/pretrained.md)."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from convrec.base.errors import UserError
from recipes.experiments.matrix_file import read_matrix
from recipes.experiments.matrix_runs import MatrixRun, expand_matrix


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
        is_pretrained: its model is evaluated as it comes, before it is trained.
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
    return sft, rl, matrix.evaluate
