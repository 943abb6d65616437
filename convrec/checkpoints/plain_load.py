"""Checkpoints without code: torch.load of this process builds tensors and plain values, and nothing else.

verl loads its shards with `weights_only=False`: whoever can write a file of the run folder would run code in the run.
The shards need no code: DTensors and their mesh, which torch knows to be safe, and NumPy's random state. What holds
more is refused, unless the user has set TORCH_FORCE_WEIGHTS_ONLY_LOAD=0, torch's own switch.

    python -m convrec.checkpoints.plain_load merge ...     verl's merger under this rule
"""

import math
import os
import runpy
from typing import Any

VARIABLE = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"


def use_plain_load() -> None:
    """For every torch.load of this process from now on."""
    import numpy as np
    import torch.distributed.tensor  # registers its own classes as safe
    from numpy._core import multiarray

    of_random_state = [multiarray._reconstruct, np.ndarray, np.dtype, type(np.dtype(np.uint32))]
    torch.serialization.add_safe_globals(of_random_state)
    os.environ.setdefault(VARIABLE, "1")
    _read_layouts_of_newer_torch()


def _read_layouts_of_newer_torch() -> None:
    """Let this torch read the shards of 2.13, with which version 0.1 trained on CPUs: there a mesh's layout is a tuple
    of axes, here a shape and strides."""
    import torch
    from torch.distributed import _mesh_layout

    if hasattr(_mesh_layout, "_FlatLayout"):
        return

    class _FlatLayout:
        """One axis; its shape and stride are empty where one process is all of it."""

        shape: tuple[int, ...]
        stride: tuple[int, ...]

    def set_state(layout: object, state: dict[str, Any]) -> None:
        if axes := state.pop("axes", None):
            state |= {"shape": tuple(math.prod(axis.shape) for axis in axes)}
            state |= {"stride": tuple(axis.stride[0] if axis.stride else 1 for axis in axes)}
        vars(layout).update(state)

    _FlatLayout.__module__, _FlatLayout.__qualname__ = _mesh_layout.__name__, "_FlatLayout"
    _mesh_layout._FlatLayout = _FlatLayout
    _mesh_layout._MeshLayout.__setstate__ = set_state
    torch.serialization.add_safe_globals([_FlatLayout])


if __name__ == "__main__":
    use_plain_load()
    runpy.run_module("verl.model_merger", run_name="__main__", alter_sys=True)
