"""Load checkpoints without executing code: torch.load builds only tensors and plain values.

verl loads its shards with `weights_only=False`, so anyone who can write to the run folder could execute code in the
run. Shards need no code: they contain DTensors and their mesh, which torch allows, and NumPy's random state. Files with
anything else are refused unless the user sets TORCH_FORCE_WEIGHTS_ONLY_LOAD=0, torch's own switch.

    python -m convrec.checkpoints.plain_load merge ...     verl's merger with this restriction
"""

import os
import runpy
from pathlib import Path

from convrec.base.errors import UserError, one_line

VARIABLE = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"


def use_plain_load() -> None:
    """Restrict every later torch.load in this process, and in those that it starts, to tensors and plain values."""
    _allow_random_states()
    os.environ.setdefault(VARIABLE, "1")


def _allow_random_states() -> None:
    """Let torch load the random states that shards contain in addition to tensors."""
    import numpy as np
    import torch.distributed.tensor  # registers its own classes as safe
    from numpy._core import multiarray

    random_state_classes = [multiarray._reconstruct, np.ndarray, np.dtype, type(np.dtype(np.uint32))]
    torch.serialization.add_safe_globals(random_state_classes)


def check_plain(file: Path) -> None:
    """Check that `use_plain_load` can load a file written by torch.save. Unpickles nothing.

    Raises:
        UserError: torch.save did not write the file, or it contains more than tensors and plain values.
    """
    if os.environ.get(VARIABLE) == "0":
        return
    _allow_random_states()
    import torch

    try:
        names = torch.serialization.get_unsafe_globals_in_checkpoint(file)
    except Exception as error:  # any file can have the suffix
        raise UserError(
            "checkpoint.not-a-torch-file", f"{file}: not written by torch.save ({one_line(error)}). Copy it again"
        ) from None
    if names:
        raise UserError(
            "checkpoint.unsafe-content",
            f"{file}: contains {', '.join(names)}, not only tensors and plain values; loading it could execute code. "
            f"If you trust the file, set {VARIABLE}=0",
        )


if __name__ == "__main__":
    use_plain_load()
    runpy.run_module("verl.model_merger", run_name="__main__", alter_sys=True)
