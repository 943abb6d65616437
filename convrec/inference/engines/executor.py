"""vLLM's executor for one process that listens nowhere."""

import os
import tempfile

from vllm.v1.executor.uniproc_executor import UniProcExecutor

from convrec.cpu import sampling
from convrec.runs import guard


class InProcessExecutor(UniProcExecutor):
    """vLLM's one-process executor, whose process group of one is set up by a file.

    torch's server for that would listen on every address, on a GPU too. vLLM's CPU build turns its own name, "uni",
    into "mp", because threads cannot be bound to cores from within; here they are not bound, and a process, its imports
    and its hand-over of every decoded token are saved.
    """

    def _init_executor(self) -> None:
        sampling.install()
        super()._init_executor()

    def _distributed_args(self) -> tuple[str, int, int]:
        _, rank, local_rank = super()._distributed_args()
        parent = os.environ.get(guard.FOLDER_VARIABLE)  # which is deleted with the run
        self._folder = tempfile.TemporaryDirectory(prefix="convrec-vllm-", dir=parent)
        return f"file://{self._folder.name}/group", rank, local_rank
