"""A loss or a gradient norm that is not a number ends a run before its checkpoint is written."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from convrec.runs.folder import latest_step

WATCHED = ("loss", "grad_norm")  # how the names of losses and gradient norms end, whatever the trainer calls them


class Diverged(RuntimeError):
    """Training has diverged: going on would train nothing, and remove good checkpoints for useless ones."""


def check_finite(step: int, metrics: Mapping[str, Any], run_folder: Path) -> None:
    """Check the losses and gradient norms of a step.

    Raises:
        Diverged: one of them is infinite or not a number; it names the step and the last good checkpoint.
    """
    for name, value in metrics.items():
        if name.endswith(WATCHED) and isinstance(value, float) and not math.isfinite(value):
            good = latest_step(run_folder)
            where = f"the last good checkpoint is that of step {good}" if good else "there is no checkpoint yet"
            raise Diverged(
                f"step {step}: {name} is {value}: training has diverged, and ends before this step is saved; {where}. "
                "Lower LR, or look at the data of this step"
            )
