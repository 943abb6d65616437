"""vLLM's settings for this machine, with or without GPUs: the same for offline batches and for serving."""

import contextlib
import os
from collections.abc import Iterator
from typing import Any

from convrec.base.gpus import attention_settings, check_vllm_runs_on_cpu, usable_gpus

NO_COMPILER = ("TORCH_COMPILE_DISABLE", "1")  # on a CPU, vLLM compiles only a count over log-probs, for 14 of 34 s
NO_NVCC = ("VLLM_USE_FLASHINFER_SAMPLER", "0")  # vLLM would compile it at its start, which needs more than a driver
# torch.cuda.is_available() has been called in this process, so a fork cannot use CUDA, which vLLM does not notice.
SPAWN = ("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
ONE_PROCESS = "convrec.inference.engines.executor.InProcessExecutor"


def engine_settings(tensor_parallel: int, spare_cores: int = 0) -> tuple[bool, dict[str, Any]]:
    """Return the engine arguments of vLLM for this machine, and set the environment variables that it needs.

    Args:
        tensor_parallel: GPUs of the engine.
        spare_cores: cores that the engine's threads leave free on a CPU.

    Returns:
        Whether the engine runs on a CPU, and its arguments. The dtype is float32 on a CPU, the checkpoint's on a GPU.
    """
    os.environ.setdefault(*NO_NVCC)
    # The model's generation_config (repetition_penalty, temperature, ...) must not make served answers differ from a
    # batch's. Its stop tokens still apply.
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
    # Pinning threads to cores helps only if nothing else runs there, and a container may not own the cores it sees.
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # otherwise it listens on the host's address
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) - spare_cores)))
    return {"enforce_eager": True, "dtype": "float32"}


@contextlib.contextmanager
def disable_compiler(on_cpu: bool) -> Iterator[None]:
    """Disable torch.compile in engine processes that start within the block, but not in this process.

    Args:
        on_cpu: whether the engines run without a GPU; with one, nothing changes.
    """
    name, value = NO_COMPILER
    added = on_cpu and name not in os.environ
    if added:
        os.environ[name] = value
    try:
        yield
    finally:
        if added:
            del os.environ[name]
