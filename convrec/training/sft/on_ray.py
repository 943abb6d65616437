"""verl's Ray SFT trainer: a worker for each device of the nodes, the data in the driver. Nothing but wiring."""

from collections.abc import Callable
from functools import partial
from typing import Any

from verl.single_controller import ray as verl_ray
from verl.single_controller.base.decorator import Dispatch, register
from verl.single_controller.ray.base import RayResourcePool
from verl.trainer import sft_trainer, sft_trainer_ray
from verl.workers.engine_workers import TrainingWorker, TrainingWorkerConfig

from convrec.runs.phases import Phases
from convrec.training import registration
from convrec.training.sft.trainer import SFTMixin, prepare_engine
from convrec.training.watch import liveness
from convrec.training.worker import prepare_process, set_learning_rate

PHASES = ("train_batch", "infer_batch", "save_checkpoint")  # of a step, where a worker may hang


class SFTWorker(TrainingWorker):
    """verl's worker plus: the CPU engine where the host has no accelerator, and the learning rate of the settings."""

    def __init__(self, config: TrainingWorkerConfig) -> None:
        registration.register()
        registration.check_worker()
        prepare_process()
        super().__init__(config)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def reset(self) -> None:
        super().reset()
        prepare_engine(self.engine)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def set_learning_rate(self) -> None:
        set_learning_rate(self.engine)


class ConvRecRaySFTTrainer(SFTMixin, sft_trainer_ray.SFTTrainer):
    """On the devices of one node or several; `convrec.watchdog` as in RL."""

    has_nodes = True

    def __init__(self, config: Any) -> None:
        self.rank = 0
        super().__init__(config)
        self.device_name = "cpu"  # of what the driver adds up: its node may have no GPU
        phases = None
        if config.convrec.watchdog != "off":
            phases = Phases(config.convrec.watchdog_seconds)
            for method in PHASES:
                call = getattr(self.training_client, method)
                setattr(self.training_client, method, phases.timed(method, partial(_answer, call)))
        self.watch = liveness.Watch(self._actors, phases)

    def _build_engine(self) -> None:
        """verl's, with our worker, and one CPU slot for each where it asks for ten."""
        sft_trainer_ray.TrainingWorker = SFTWorker
        verl_ray.RayResourcePool = partial(RayResourcePool, max_colocate_count=1)
        super()._build_engine()

    def _build_ckpt_handler(self) -> None:
        super()._build_ckpt_handler()
        self.ckpt_handler.lora_train_meta = sft_trainer.SFTTrainer._get_lora_train_meta(self)

    def _set_learning_rate(self) -> None:
        self.training_client.set_learning_rate()

    def _actors(self) -> dict[str, Any]:
        return {f"training worker {i}": worker for i, worker in enumerate(self.training_client.workers)}

    def fit(self) -> None:
        with liveness.watched(self.watch):
            super().fit()


def _answer(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Wait for what verl's trainer asks for in the next line: in the phase."""
    answer = call(*args, **kwargs)
    if hasattr(answer, "get"):
        answer.get()
    return answer
