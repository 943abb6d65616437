"""verl's FSDP engine for the device "cpu"."""

import os

import torch

from convrec.cpu.platform import PLATFORM
from convrec.runs import guard


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


def init_process_group() -> None:
    """Start gloo before verl does: verl names the backend "cpu:gloo,cpu:gloo" here, which torch refuses.

    verl's own initialisation skips a group that exists. On one machine its processes find each other through a file of
    the run's folder: torch's server for that listens on every address.
    """
    from verl.utils.distributed import initialize_global_process_group_ray

    folder = os.environ.get(guard.FOLDER_VARIABLE)
    if folder and os.environ.get("MASTER_ADDR") == "127.0.0.1":
        os.environ["DIST_INIT_METHOD"] = f"file://{folder}/process-group-{os.environ['MASTER_PORT']}"  # verl's variable
    initialize_global_process_group_ray(backend="gloo")
