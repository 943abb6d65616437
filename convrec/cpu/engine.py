"""verl's FSDP engine for the device "cpu"."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule

from convrec.cpu.platform import PLATFORM
from convrec.runs import guard


def register_engine() -> None:
    """Register an FSDP engine for the device "cpu" with verl; a second call has no effect."""
    from verl.workers.engine.base import EngineRegistry
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

    if PLATFORM in EngineRegistry._engines["language_model"]["fsdp2"]:
        return

    @EngineRegistry.register(model_type="language_model", backend=["fsdp", "fsdp2"], device=PLATFORM)
    class CPUEngineWithLMHead(FSDPEngineWithLMHead):
        def _build_fsdp_module(self, module: torch.nn.Module) -> torch.nn.Module:
            # verl offloads a forward-only model to pinned host memory, which needs an accelerator. On this host the
            # model is in host memory anyway, so build it without offloading.
            forward_only = self.engine_config.forward_only
            object.__setattr__(self.engine_config, "forward_only", False)
            try:
                fsdp_module: Any = super()._build_fsdp_module(module)
            finally:
                object.__setattr__(self.engine_config, "forward_only", forward_only)
            self.is_alone = isinstance(fsdp_module, FSDPModule) and torch.distributed.get_world_size() == 1
            if self.is_alone:
                share_weights(fsdp_module)
                fsdp_module.set_reshard_after_forward(forward_only)
                fsdp_module.set_requires_gradient_sync(False)
            return fsdp_module

        @contextmanager
        def _gradient_sync_context(self, *, is_last_micro_batch: bool) -> Iterator[None]:
            if self.is_alone:
                # This process has all weights, and their cast copies are valid until the optimizer changes the weights.
                self.module.set_reshard_after_backward(is_last_micro_batch)
                yield
                return
            with super()._gradient_sync_context(is_last_micro_batch=is_last_micro_batch):
                yield

        def forward_backward_batch(self, data: Any, loss_function: Any, forward_only: bool = False) -> Any:
            output = super().forward_backward_batch(data, loss_function, forward_only)
            if self.is_alone and forward_only:
                free_cast_weights(self.module)
            elif self.is_alone:
                share_gradients(self.module)
            return output

        def prepare_model_inputs(self, micro_batch: Any) -> tuple[dict[str, Any], dict[str, Any]]:
            inputs, output_arguments = super().prepare_model_inputs(micro_batch=micro_batch)
            leave_out_mask(inputs)
            return inputs, output_arguments


def share_weights(module: torch.nn.Module) -> None:
    """Let FSDP2 in a single process compute with the weights themselves, instead of a copy for every pass.

    FSDP2 gathers the weights of a layer before each forward and backward pass, and frees them afterwards. In a single
    process this is a copy, which weights that are not cast to another dtype do not need.

    Args:
        module: a module sharded over one process.
    """
    for parameter in _iter_parameters(module):
        weights = parameter._sharded_param_data
        is_cast = parameter.mp_policy.param_dtype not in (None, weights.dtype)
        is_whole = weights.untyped_storage().size() == weights.numel() * weights.itemsize
        if not is_cast and is_whole:
            parameter.all_gather_outputs = [weights]  # the gathered weights are copied to themselves
            parameter.free_unsharded_param = lambda: None


def share_gradients(module: torch.nn.Module) -> None:
    """Pass the gradients of a single process to the optimizer, without the two copies of FSDP2's reduction.

    Args:
        module: a module sharded over one process, after a batch's backward passes without gradient synchronisation.
    """
    for parameter in _iter_parameters(module):
        unsharded = getattr(parameter, "_unsharded_param", None)
        if unsharded is None:  # no pass has used this parameter
            continue
        gradient = parameter.unsharded_accumulated_grad  # exists if gradients are reduced in another dtype
        if gradient is None:
            gradient = unsharded.grad
        parameter.unsharded_accumulated_grad = None
        unsharded.grad = None
        if gradient is None:  # the parameter is frozen
            continue
        sharded = parameter.to_sharded_dtensor(gradient.to(parameter.sharded_param.dtype))
        before = parameter.sharded_param.grad
        parameter.sharded_param.grad = sharded if before is None else before + sharded


def free_cast_weights(module: torch.nn.Module) -> None:
    """Free the weights that FSDP2 has gathered, because others may be loaded before the next pass."""
    for part in module.modules():
        if isinstance(part, FSDPModule):
            part.reshard()


def _iter_parameters(module: torch.nn.Module) -> Iterator[Any]:
    """Yield FSDP2's record of each parameter."""
    for part in module.modules():
        group = part._get_fsdp_state()._fsdp_param_group if isinstance(part, FSDPModule) else None
        yield from group.fsdp_params if group else ()


def leave_out_mask(inputs: dict[str, Any]) -> None:
    """Remove the padding mask from a model's inputs if it has no effect.

    verl pads after the last token of a row, so causal attention never sees the padding. With a mask, attention would
    copy keys and values for every head that shares them, and compute the part above the diagonal.

    Args:
        inputs: inputs of the model, changed in place; unchanged without a mask, or with positions other than 0, 1, 2.
    """
    mask_BT = inputs["attention_mask"]
    positions_BT = inputs["position_ids"]
    if mask_BT is None or positions_BT.dim() != 2:
        return
    places_BT = torch.arange(mask_BT.shape[1], device=mask_BT.device).expand_as(positions_BT)
    is_token_BT = mask_BT.bool()
    is_before_end_BT = places_BT < is_token_BT.sum(dim=1, keepdim=True)
    if torch.equal(is_token_BT, is_before_end_BT) and torch.equal(positions_BT[is_token_BT], places_BT[is_token_BT]):
        inputs["attention_mask"] = None
        # transformers reads positions that start again, as verl's do in the padding, as several packed rows
        inputs["position_ids"] = places_BT


def init_process_group() -> None:
    """Start gloo before verl does, because verl names the backend "cpu:gloo,cpu:gloo" here, which torch refuses.

    verl's own initialisation does nothing if a group exists. On one machine the processes find each other through a
    file in the run's folder, because torch's server for this would listen on every address.
    """
    from verl.utils.distributed import initialize_global_process_group_ray

    folder = os.environ.get(guard.FOLDER_VARIABLE)
    if folder and os.environ.get("MASTER_ADDR") == "127.0.0.1":
        os.environ["DIST_INIT_METHOD"] = f"file://{folder}/process-group-{os.environ['MASTER_PORT']}"  # verl's variable
    initialize_global_process_group_ray(backend="gloo")
