"""Sizes of the two demos: TINY makes its model, PRETRAINED starts from an existing one."""

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
        out: default folder.
        matrix: name of the matrix file in this folder, with two runs.
        sample: options of `convrec data sample`.
        sft_steps, rl_steps: steps of the two runs.
        sft_validations, rl_validations: number of validations in each.
        memory_gib: peak memory.
        disk_gib: peak size of the folder, including checkpoints that are about to be replaced.
        is_pretrained: whether the model is evaluated before training, too.
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
    rl_validations=6,  # so that the checkpoints, saved at thirds, are validated
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
    memory_gib=15,
    disk_gib=12,
    is_pretrained=True,
)


def schedule_steps(steps: int, validations: int) -> dict[str, str]:
    """Return the variables of a run that saves at thirds, so that an interruption costs little.

    Args:
        steps: TOTAL_STEPS.
        validations: how often the run validates.
    """
    return {
        "TOTAL_STEPS": str(steps),
        "SAVE_FREQ": str(max(1, steps // 3)),
        "TEST_FREQ": str(max(1, steps // validations)),
    }


def read_runs(demo: Demo, out: Path) -> tuple[MatrixRun, MatrixRun, dict[str, Any]]:
    """Return SFT, Rank-GRPO, and the settings of their evaluation.

    Args:
        demo: sizes of the runs.
        out: the demo's folder.

    Raises:
        UserError: YAML would misread the folder's name.
    """
    if {'"', "\\", "$"} & set(str(out)):
        raise UserError(
            "demo.unsupported-out",
            f"--out {out}: quotes, backslashes and dollar signs do not work in the demo's YAML. Name another path.",
        )
    os.environ["DEMO"] = str(out)
    matrix = read_matrix(Path(__file__).with_name(demo.matrix))
    sft, rl = expand_matrix(matrix)
    sft = replace(sft, variables={**sft.variables, **schedule_steps(demo.sft_steps, demo.sft_validations)})
    rl = replace(rl, variables={**rl.variables, **schedule_steps(demo.rl_steps, demo.rl_validations)})
    return sft, rl, matrix.evaluate
