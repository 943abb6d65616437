"""Where weights are handed from the actor to vLLM. Imports nothing: both sides do."""

import os

from convrec.runs import guard


def in_run_folder(address: str) -> str:
    """The socket by which weights reach vLLM, which verl puts into the temporary folder, in the run's folder.

    It is called after the Ray job, and two local Rays on one machine both have job 01000000: one run would receive
    the other's weights.
    """
    folder = os.environ.get(guard.FOLDER_VARIABLE)
    return f"ipc://{folder}/{os.path.basename(address)}" if folder else address
