"""The verl worker of a run: actor, rollout and reference, with our engine, loss and learning rate."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR
from verl.experimental.separation.engine_workers import DetachActorWorker
from verl.single_controller.base.decorator import Dispatch, register
from verl.utils.torch_dtypes import PrecisionType
from verl.workers.engine_workers import ActorRolloutRefWorker

from convrec.checkpoints.plain_load import use_plain_load
from convrec.checkpoints.reshard import load_any_world_size
from convrec.cpu.engine import init_process_group, register_engine
from convrec.cpu.platform import is_cpu_host
from convrec.features.constrained.rollout import load_trie
from convrec.rollout.queue import use_own_queue
from convrec.runs.guard import move_socket_to_run_folder
from convrec.training import registration
from convrec.training.attention import varlen, without_flash
from convrec.training.log_prob_head import constrain, fuse, leave_out_prompts


class ConvRecWorker(ActorRolloutRefWorker):
    """verl's worker with the CPU engine on hosts without an accelerator, and the learning rate of the settings."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        use_own_queue()
        super().__init__(*args, **kwargs)
        registration.register()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self) -> None:
        registration.check_worker()
        prepare_process()
        super().init_model()
        if self._is_actor:
            convert_sent_weights(self.actor.engine, PrecisionType.to_dtype(self.config.rollout.dtype))
            prepare_checkpoints(self.actor.engine)
        catalog = load_trie(self.config.rollout)
        for engine in (worker.engine for worker in (self.actor, self.ref) if worker):
            if catalog is not None:
                constrain(engine, catalog)
            elif self.config.model.use_fused_kernels:
                fuse(engine)
            elif is_cpu_host():
                leave_out_prompts(engine)
        if hasattr(self.rollout, "zmq_handle"):
            self.rollout.zmq_handle = move_socket_to_run_folder(self.rollout.zmq_handle)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def set_learning_rate(self, *args: Any) -> None:
        set_learning_rate(self.actor.engine, *args)


class ConvRecDetachWorker(ConvRecWorker, DetachActorWorker):
    """A worker with copies of its weights, to which verl's asynchronous trainer returns within a synchronisation."""


def prepare_process() -> None:
    """Set verl up in a process that trains, before its model is built."""
    use_plain_load()
    varlen.register()
    without_flash.install()
    if is_cpu_host():
        register_engine()
        init_process_group()


def prepare_checkpoints(engine: Any) -> None:
    """Let verl's engine load checkpoints of any number of processes, and export models whose folder names custom code.

    If transformers' own class was used although the folder names custom code (`auto_map`), verl's export would look for
    this code, and fail.

    Args:
        engine: verl's engine, after its model was built; changed in place.
    """
    manager = engine.checkpoint_manager
    load_any_world_size(manager)
    config = manager.model.config
    if not manager.trust_remote_code and hasattr(config, "auto_map"):
        del config.auto_map


def convert_sent_weights(engine: Any, dtype: torch.dtype) -> None:
    """Let verl's engine send weights in the rollout's dtype, to which the rollout would round them anyway.

    fp32 master weights would be twice the traffic. LoRA adapters are sent unchanged.

    Args:
        engine: verl's engine, changed in place.
        dtype: the rollout's dtype; weights that are not floating-point numbers keep theirs.
    """
    get_full_weights = engine.get_per_tensor_param

    def get_converted_weights(*args: Any, **kwargs: Any) -> tuple[Iterable[tuple[str, torch.Tensor]], Any]:
        weights, adapter = get_full_weights(*args, **kwargs)
        if adapter is not None and kwargs.get("base_sync_done"):
            return weights, adapter
        return ((name, w.to(dtype) if w.is_floating_point() else w) for name, w in weights), adapter

    engine.get_per_tensor_param = get_converted_weights


def set_learning_rate(engine: Any, schedule: Sequence[tuple[int, float]] = (), updates_per_step: int = 1) -> None:
    """Let verl's engine train with the learning rate of the settings, from its next update on.

    A checkpoint restores the rate with which it was saved; only its number of updates is kept. After this call the
    engine reports the rate with which a step was trained, while verl reports that of the next step.

    Args:
        engine: verl's engine, after its checkpoint was loaded.
        schedule: (step, lr) pairs in rising order of step, the first at 0: lr holds from this trainer step on; steps
            count from 1. Empty means verl's schedule with the optimizer's settings.
        updates_per_step: number of times that the schedule advances per trainer step.
    """
    optimizer = engine.optimizer
    updates = engine.lr_scheduler.last_epoch
    lr = engine.optimizer_config.lr
    factor = engine.lr_scheduler.lr_lambdas

    def lr_after(updates: int) -> float:
        return [lr for step, lr in schedule if step <= updates // updates_per_step + 1][-1]

    def advance() -> float:
        (before, *_) = engine.lr_scheduler.get_last_lr()
        engine.lr_scheduler.step()
        return before

    if schedule:
        lr = 1.0
        factor = lr_after
    for group in optimizer.param_groups:
        group["initial_lr"] = lr
    engine.lr_scheduler = LambdaLR(optimizer, factor, updates - 1)
    engine.checkpoint_manager.lr_scheduler = engine.lr_scheduler
    engine.lr_scheduler_step = advance
