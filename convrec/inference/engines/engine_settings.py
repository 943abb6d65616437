"""vLLM's settings on this machine, GPU or CPU: the same for offline batches and for a served model."""

import contextlib
import os
from collections.abc import Iterator
from typing import Any

from convrec.base.gpus import attention_settings, check_vllm_runs_on_cpu, usable_gpus

NO_COMPILER = ("TORCH_COMPILE_DISABLE", "1")  # what vLLM compiles on a CPU, a count over log-probs, costs 14 of 34 s
NO_NVCC = ("VLLM_USE_FLASHINFER_SAMPLER", "0")  # vLLM compiles it at its start; a machine with a driver alone cannot
# torch.cuda.is_available() has been called in this process: a fork of it cannot use CUDA, and vLLM does not notice.
SPAWN = ("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
ONE_PROCESS = "convrec.inference.engines.executor.InProcessExecutor"


def engine_settings(tensor_parallel: int, spare_cores: int = 0) -> tuple[bool, dict[str, Any]]:
    """(whether there is no GPU, engine arguments). On a CPU also sets the environment that vLLM's CPU build reads.

    spare_cores: that the engine's threads leave alone on a CPU.
    The type is float32 on a CPU, the checkpoint's own on a GPU.
    """
    os.environ.setdefault(*NO_NVCC)
    # A model's own repetition_penalty, temperature and so on must not make served answers others than a batch's. Its
    # stop tokens are still read.
    settings: dict[str, Any] = {"tensor_parallel_size": tensor_parallel, "generation_config": "vllm"}
    if tensor_parallel == 1:
        settings["distributed_executor_backend"] = ONE_PROCESS
    if usable_gpus():
        os.environ.setdefault(*SPAWN)
        return False, settings | {"gpu_memory_utilization": 0.85, **attention_settings()}
    check_vllm_runs_on_cpu()
    return True, settings | _cpu_settings(spare_cores)


def _cpu_settings(spare_cores: int) -> dict[str, Any]:
    import psutil

    available_gib = psutil.virtual_memory().available // 2**30
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", str(min(8, max(1, available_gib // 8))))
    # Pinning threads to cores helps only when nothing else runs on them, and a container may not own what it sees.
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # else it listens on the host's address
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) - spare_cores)))
    return {"enforce_eager": True, "dtype": "float32"}


@contextlib.contextmanager
def without_compiler(on_cpu: bool) -> Iterator[None]:
    """Let engine processes that start meanwhile on a CPU compile nothing; this process may."""
    name, value = NO_COMPILER
    added = on_cpu and name not in os.environ
    if added:
        os.environ[name] = value
    try:
        yield
    finally:
        if added:
            del os.environ[name]
