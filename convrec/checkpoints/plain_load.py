"""Checkpoints without code: torch.load of this process builds tensors and plain values, and nothing else.

verl loads its shards with `weights_only=False`: whoever can write a file of the run folder would run code in the run.
The shards need no code: DTensors and their mesh, which torch knows to be safe, and NumPy's random state. What holds
more is refused, unless the user has set TORCH_FORCE_WEIGHTS_ONLY_LOAD=0, torch's own switch.

    python -m convrec.checkpoints.plain_load merge ...     verl's merger under this rule
"""

import os
import runpy

VARIABLE = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"


def use_plain_load() -> None:
    """For every torch.load of this process from now on."""
    import numpy as np
    import torch.distributed.tensor  # registers its own classes as safe
    from numpy._core import multiarray

    of_random_state = [multiarray._reconstruct, np.ndarray, np.dtype, type(np.dtype(np.uint32))]
    torch.serialization.add_safe_globals(of_random_state)
    os.environ.setdefault(VARIABLE, "1")


if __name__ == "__main__":
    use_plain_load()
    runpy.run_module("verl.model_merger", run_name="__main__", alter_sys=True)
