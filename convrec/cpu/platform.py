"""verl on a host without an accelerator, through verl's own registries.

What a CPU host needs, and where it is given:

| need                                         | seam                                                          |
|----------------------------------------------|---------------------------------------------------------------|
| a device called "cpu"                        | `PlatformRegistry` (this module, on import)                   |
| gloo without verl's "cpu:gloo,cpu:gloo"      | `init_process_group`, called before verl would                |
| an FSDP engine for "cpu"                     | `EngineRegistry` (`register_engine`)                          |
| a rollout server that can take new weights   | `RolloutReplicaRegistry` (`register_rollout`, `vllm_cpu.py`)  |

Two verl functions are replaced, for speed, where flash-attn is missing: `use_whole_batch_log_probs` and
`use_length_groups`. `tests/convrec/cpu/test_platform.py` pins the source of the verl code this relies on.
"""

import os
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import psutil
import torch
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry

from convrec.runs import guard
from convrec.training.without_flash_attention import prepare_micro_batches

PLATFORM = "cpu"


def _constant(value: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: value


def _resident_bytes(*args: Any) -> int:
    return int(psutil.Process().memory_info().rss)


def _device_module() -> types.ModuleType:
    """`torch.cpu` with the calls verl makes on `torch.cuda`: memory is this process's, streams do not exist."""
    module = types.ModuleType("convrec_cpu_device")
    total = psutil.virtual_memory().total
    module.__dict__.update(
        {name: getattr(torch.cpu, name) for name in ("Stream", "current_stream", "stream", "synchronize")},
        is_available=_constant(True),
        device_count=_constant(1),
        current_device=_constant("cpu"),
        set_device=_constant(None),
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
    """One logical accelerator slot a process; Ray counts the slots as "GPU", as verl's resource pools expect."""

    device_name = "cpu"
    vendor_name = "cpu"
    device_module = _device_module()

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        return not torch.cuda.is_available()

    def current_device(self) -> str:  # verl passes it to Tensor.to(), where 0 would mean the first GPU
        return "cpu"

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None: ...

    def synchronize(self, device_index: int | None = None) -> None: ...

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None: ...

    def empty_cache(self) -> None: ...

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None: ...

    def profiler_stop(self) -> None: ...

    def ray_resource_name(self) -> str:
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"]

    def is_ipc_supported(self) -> bool:
        return False  # weights then travel through shared memory

    def rollout_env_vars(self) -> dict[str, str]:
        return {}

    def cudart(self) -> None:
        return None


def is_cpu_host() -> bool:
    """Whether verl runs on the CPU platform in this process."""
    return os.environ.get("VERL_PLATFORM", "").strip().lower() == PLATFORM


def init_process_group() -> None:
    """Start gloo before verl does: verl names the backend "cpu:gloo,cpu:gloo" here, which torch refuses.

    verl's own initialisation skips a group that exists. On one machine its processes meet in a file of the run's
    folder: torch's server for that listens on every address.
    """
    from verl.utils.distributed import initialize_global_process_group_ray

    folder = os.environ.get(guard.FOLDER_VARIABLE)
    if folder and os.environ.get("MASTER_ADDR") == "127.0.0.1":
        os.environ["DIST_INIT_METHOD"] = f"file://{folder}/process-group-{os.environ['MASTER_PORT']}"  # verl's variable
    initialize_global_process_group_ray(backend="gloo")


def register_engine() -> None:
    """Give verl an FSDP engine for the device "cpu". Calling it again does nothing."""
    from verl.workers.engine.base import EngineRegistry
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

    if PLATFORM in EngineRegistry._engines["language_model"]["fsdp2"]:
        return

    @EngineRegistry.register(model_type="language_model", backend=["fsdp", "fsdp2"], device=PLATFORM)
    class CPUEngineWithLMHead(FSDPEngineWithLMHead):
        def _build_fsdp_module(self, module: torch.nn.Module) -> torch.nn.Module:
            # verl offloads a forward-only model to pinned host memory, which needs an accelerator to pin for.
            # On this host the model is in host memory anyway, so build it as a resident one.
            forward_only = self.engine_config.forward_only
            object.__setattr__(self.engine_config, "forward_only", False)
            try:
                return super()._build_fsdp_module(module)
            finally:
                object.__setattr__(self.engine_config, "forward_only", forward_only)


def log_probs_of_labels(logits: torch.Tensor, labels: torch.Tensor, inplace_backward: bool = True) -> torch.Tensor:
    """log softmax(logits)[label] for logits (..., V) and labels (...), in float32 at least; verl's signature."""
    vocab_size = logits.shape[-1]
    flat = logits.reshape(-1, vocab_size)
    if flat.dtype in (torch.bfloat16, torch.float16):
        flat = flat.float()
    loss = torch.nn.functional.cross_entropy(flat, labels.reshape(-1), reduction="none")
    return -loss.view(labels.shape)


def use_whole_batch_log_probs() -> None:
    """Where flash-attn is missing, verl takes log-probs in a Python loop over tokens; take them in one call.

    The loop was about 70 % of an update of the demo's model. One call needs a second tensor the size of the logits.
    """
    if find_spec("flash_attn") is not None:
        return
    from verl.workers.engine.fsdp import transformer_impl

    transformer_impl.logprobs_from_logits = log_probs_of_labels


def use_length_groups() -> None:
    """Have verl's FSDP engine make its micro-batches by our rule. Calling it again does nothing."""
    from verl.workers.engine.fsdp import transformer_impl

    transformer_impl.prepare_micro_batches = prepare_micro_batches


def in_run_folder(address: str) -> str:
    """A socket that verl puts into /tmp, in the run's folder: two runs on one machine have the same Ray job id."""
    folder = os.environ.get(guard.FOLDER_VARIABLE)
    return address.replace("ipc:///tmp/", f"ipc://{folder}/") if folder else address


def register_rollout() -> None:
    """Make rollout `vllm` start our server, on CPU the one whose workers can take new weights."""
    from verl.workers.rollout.replica import RolloutReplicaRegistry

    def load() -> type:
        if is_cpu_host():
            from convrec.cpu.server import CPUReplica

            return CPUReplica
        from convrec.rollout.server import ConvRecReplica

        return ConvRecReplica

    RolloutReplicaRegistry.register("vllm", load)
