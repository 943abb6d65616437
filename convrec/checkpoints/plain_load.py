"""Checkpoints without code: torch.load of this process builds tensors and plain values, and nothing else.

verl loads its shards with `weights_only=False`: whoever can write a file of the run folder would run code in the run.
The shards need no code: DTensors and their mesh, which torch knows to be safe, and NumPy's random state. What holds
more is refused, unless the user has set TORCH_FORCE_WEIGHTS_ONLY_LOAD=0, torch's own switch.

    python -m convrec.checkpoints.plain_load merge ...     verl's merger under this rule
"""

import os
import runpy
from pathlib import Path

from convrec.base.errors import UserError, one_line

VARIABLE = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"


def use_plain_load() -> None:
    """For every torch.load of this process, and of those it starts, from now on."""
    _know_random_states()
    os.environ.setdefault(VARIABLE, "1")


def _know_random_states() -> None:
    """What shards hold beside tensors is safe to torch."""
    import numpy as np
    import torch.distributed.tensor  # registers its own classes as safe
    from numpy._core import multiarray

    of_random_state = [multiarray._reconstruct, np.ndarray, np.dtype, type(np.dtype(np.uint32))]
    torch.serialization.add_safe_globals(of_random_state)


def check_plain(file: Path) -> None:
    """Raise UserError, naming what it holds, for a file of torch.save that `use_plain_load` refuses. Builds nothing."""
    if os.environ.get(VARIABLE) == "0":
        return
    _know_random_states()
    import torch

    try:
        names = torch.serialization.get_unsafe_globals_in_checkpoint(file)
    except Exception as error:  # whatever else is named so
        raise UserError(f"{file}: not a file of torch.save ({one_line(error)}): copy it again") from None
    if names:
        raise UserError(
            f"{file}: it holds {', '.join(names)}, more than tensors and plain values, which could run code here: "
            f"refused. If it is your own, set {VARIABLE}=0"
        )


if __name__ == "__main__":
    use_plain_load()
    runpy.run_module("verl.model_merger", run_name="__main__", alter_sys=True)
