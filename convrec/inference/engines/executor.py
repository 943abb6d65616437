"""vLLM's single-process executor, without a listening socket."""

import os
import tempfile

from vllm.v1.executor.uniproc_executor import UniProcExecutor

from convrec.cpu import kernels, sampling
from convrec.runs import guard


class InProcessExecutor(UniProcExecutor):
    """vLLM's single-process executor, which sets up its process group of one through a file.

    torch's TCP store would listen on all addresses, also on a GPU. vLLM's CPU build replaces its own executor, "uni",
    by "mp", because a process cannot bind its own threads to cores. Here threads are not bound, which saves a process,
    its imports and the transfer of every decoded token.
    """

    def _init_executor(self) -> None:
        sampling.install()
        kernels.install(self.vllm_config.kernel_config.ir_op_priority)
        super()._init_executor()

    def _distributed_args(self) -> tuple[str, int, int]:
        _, rank, local_rank = super()._distributed_args()
        parent = os.environ.get(guard.FOLDER_VARIABLE)  # the run deletes this folder at its end
        self._folder = tempfile.TemporaryDirectory(prefix="convrec-vllm-", dir=parent)
        return f"file://{self._folder.name}/group", rank, local_rank
