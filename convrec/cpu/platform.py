"""verl on a host without an accelerator, through verl's own registries.

The needs of a CPU host, and the places that meet them:

| need                                         | seam                                                          |
|----------------------------------------------|---------------------------------------------------------------|
| a device called "cpu"                        | `PlatformRegistry` (this module, on import)                   |
| gloo without verl's "cpu:gloo,cpu:gloo"      | `init_process_group` (`engine`), called earlier than verl's   |
| an FSDP engine for "cpu"                     | `EngineRegistry` (`engine`)                                   |
| a rollout server that receives new weights   | `RolloutReplicaRegistry` (`server`, `registration`)           |

This module is the entry point `verl.plugins`: every process that imports verl imports it, so it must stay light.
`tests/test_upstream.py` pins the source of the verl code on which this relies.
"""

import os
import types
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import psutil
import torch
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry

PLATFORM = "cpu"
# Files of NVIDIA's, AMD's and Huawei's drivers, which exist even in containers without the vendor's tools.
ACCELERATOR_FILES = ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/kfd", "/dev/davinci_manager")


def _constant(value: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: value


def _resident_bytes(*args: Any) -> int:
    return int(psutil.Process().memory_info().rss)


def _device_module() -> types.ModuleType:
    """Return `torch.cpu` with the functions of `torch.cuda` that verl calls; memory is that of this process."""
    module = types.ModuleType("convrec_cpu_device")
    total = psutil.virtual_memory().total
    module.__dict__.update(
        vars(torch.cpu),
        manual_seed=torch.manual_seed,
        manual_seed_all=torch.manual_seed,
        get_rng_state=lambda *args: torch.get_rng_state(),
        set_rng_state=lambda state, *args: torch.set_rng_state(state),
        empty_cache=_constant(None),
        ipc_collect=_constant(None),
        memory_allocated=_resident_bytes,
        memory_reserved=_resident_bytes,
        max_memory_allocated=_resident_bytes,
        max_memory_reserved=_resident_bytes,
        reset_peak_memory_stats=_constant(None),
        memory_stats=_constant({}),
        mem_get_info=lambda *args: (psutil.virtual_memory().available, total),
        get_device_name=_constant("cpu"),
        get_device_properties=_constant(types.SimpleNamespace(name="cpu", total_memory=total)),
    )
    return module


@PlatformRegistry.register(platform=PLATFORM)
class PlatformCPU(PlatformBase):
    """A platform with one logical accelerator slot per process; Ray counts it as "GPU", as verl's pools expect."""

    device_name = vendor_name = "cpu"
    device_module = _device_module()
    is_available = _constant(True)
    current_device = _constant("cpu")  # verl passes it to Tensor.to(), where 0 would mean the first GPU
    device_count = _constant(1)
    get_device_capability = _constant((None, None))
    communication_backend_name = _constant("gloo")
    visible_devices_envvar = _constant("CUDA_VISIBLE_DEVICES")
    ray_resource_name = _constant("GPU")
    ray_noset_envvars = _constant(["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"])
    is_ipc_supported = _constant(False)  # weights then travel through shared memory
    nvtx_range = staticmethod(nullcontext)
    # A CPU needs none of these functions.
    set_device = synchronize = set_allocator_settings = empty_cache = _constant(None)
    profiler_start = profiler_stop = cudart = _constant(None)

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        """Return whether the host has no accelerator; Ray hides the GPUs from actors that did not request any."""
        return not torch.cuda.is_available() and not any(Path(file).exists() for file in ACCELERATOR_FILES)

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    manual_seed_all = manual_seed


def is_cpu_host() -> bool:
    """Return whether verl runs on the CPU platform in this process."""
    return os.environ.get("VERL_PLATFORM", "").strip().lower() == PLATFORM
