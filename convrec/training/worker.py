"""The verl worker of a run: actor, rollout and reference, with the rank-level loss at hand."""

import os
from typing import Any

import torch
from verl.experimental.separation.engine_workers import DetachActorWorker
from verl.single_controller.base.decorator import Dispatch, register
from verl.workers.engine_workers import ActorRolloutRefWorker

from convrec.cpu.engine import register_engine
from convrec.cpu.platform import is_cpu_host
from convrec.cpu.process_group import in_run_folder, init_process_group
from convrec.training import packed_attention, registration
from convrec.training.without_flash_attention import use_length_groups, use_whole_batch_log_probs


class ConvRecWorker(ActorRolloutRefWorker):
    """verl's worker plus: the CPU engine where the host has no accelerator, and a learning-rate schedule by steps."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        registration.register()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def registrations(self) -> dict[str, Any]:
        return registration.report()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self) -> None:
        # before the model is built; a worker whose version does not look here is found by the driver later
        if registration.DRIVERS_DIGEST in os.environ:
            registration.check([registration.report()], os.environ[registration.DRIVERS_DIGEST])
        packed_attention.register()
        use_whole_batch_log_probs()
        use_length_groups()
        if is_cpu_host():
            register_engine()
            init_process_group()
        super().init_model()
        if is_cpu_host() and hasattr(self.rollout, "zmq_handle"):
            self.rollout.zmq_handle = in_run_folder(self.rollout.zmq_handle)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def set_lr_schedule(self, schedule: list[tuple[int, float]]) -> None:
        """Replace the engine's schedule by constant pieces.

        Args:
            schedule: (step, lr) pairs in rising order of step, the first at 0: from that trainer step on, that lr.
        """
        engine = self.actor.engine
        base_lr = engine.optimizer_config.lr

        def factor(step: int) -> float:
            return [lr for start, lr in schedule if step >= start][-1] / base_lr

        engine.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(engine.optimizer, factor)
        engine.checkpoint_manager.lr_scheduler = engine.lr_scheduler


class ConvRecDetachWorker(ConvRecWorker, DetachActorWorker):
    """With the copies of its weights that verl's asynchronous trainer goes back to within one synchronisation."""
