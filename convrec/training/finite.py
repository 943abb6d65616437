"""End a run whose loss or gradient norm is not finite, before its checkpoint is written."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from convrec.runs.folder import latest_step

WATCHED = ("loss", "grad_norm")  # endings of the names of losses and gradient norms, in every trainer


class Diverged(RuntimeError):
    """Training has diverged: to go on would replace good checkpoints by useless ones."""


def check_finite(step: int, metrics: Mapping[str, Any], run_folder: Path) -> None:
    """Check the losses and gradient norms of a step.

    Args:
        step: the step's number.
        metrics: its metrics, of which those with the endings WATCHED are checked.
        run_folder: the run's folder, in which the last good checkpoint is looked up.

    Raises:
        Diverged: one of them is infinite or NaN; the message names the step and the last good checkpoint.
    """
    for name, value in metrics.items():
        if name.endswith(WATCHED) and isinstance(value, float) and not math.isfinite(value):
            good_step = latest_step(run_folder)
            where = f"The last good checkpoint is step {good_step}" if good_step else "There is no checkpoint yet"
            raise Diverged(
                f"step {step}: {name} is {value}: training has diverged and ends before this step is saved. {where}. "
                "Lower LR, or look at the data of this step."
            )
