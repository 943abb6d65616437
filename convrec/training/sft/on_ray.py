"""verl's Ray SFT trainer as the engine of our loop: one worker per device, and the data in the driver."""

from functools import partial
from typing import Any

import torch
from verl.single_controller import ray as verl_ray
from verl.single_controller.base.decorator import Dispatch, register
from verl.single_controller.ray.base import RayResourcePool
from verl.trainer import sft_trainer, sft_trainer_ray
from verl.utils import tensordict_utils
from verl.utils.seqlen_balancing import calculate_workload, get_seqlen_balanced_partitions
from verl.workers.engine_workers import TrainingWorker, TrainingWorkerConfig

from convrec.runs.phases import Phases
from convrec.settings.run import read_settings
from convrec.training import registration
from convrec.training.sft.trainer import SFTEngine, prepare_engine
from convrec.training.watch import liveness
from convrec.training.worker import prepare_process, set_learning_rate


class SFTWorker(TrainingWorker):
    """verl's worker with the CPU engine on hosts without an accelerator, and the learning rate of the settings."""

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


class ConvRecRaySFTTrainer(SFTEngine, sft_trainer_ray.SFTTrainer):
    """SFT on the devices of one or more nodes, with `convrec.watchdog` as in RL."""

    has_nodes = True

    def __init__(self, config: Any) -> None:
        self.rank = 0
        super().__init__(config)
        settings = read_settings(config)
        is_watched = settings.watchdog != "off"
        self.phases = Phases(settings.watchdog_seconds)
        self.watch = liveness.Watch(self._actors, self.phases if is_watched else None)

    def fit(self) -> None:
        with liveness.watch_processes(self.watch):
            super().fit()

    def _build_engine(self) -> None:
        """Build verl's engine with our worker, and one CPU slot per worker instead of ten."""
        sft_trainer_ray.TrainingWorker = SFTWorker
        verl_ray.RayResourcePool = partial(RayResourcePool, max_colocate_count=1)
        super()._build_engine()

    def _build_ckpt_handler(self) -> None:
        super()._build_ckpt_handler()
        self.ckpt_handler.lora_train_meta = sft_trainer.SFTTrainer._get_lora_train_meta(self)

    def _save_checkpoint(self, step: int) -> None:
        with self.phases.phase("save_checkpoint"):
            super()._save_checkpoint(step)

    def _set_learning_rate(self) -> None:
        self.training_client.set_learning_rate()

    def _actors(self) -> dict[str, Any]:
        return {f"training worker {number}": worker for number, worker in enumerate(self.training_client.workers)}

    def balance_batch(self, data: Any) -> Any:
        """Order the rows so that all workers have equal work, as verl's RL trainer does."""
        if not self.config.trainer.balance_batch:
            return data
        workload_B = calculate_workload(torch.tensor([float(len(row)) for row in data["input_ids"].unbind()]))
        num_workers = max(self.training_client._query_dispatch_info("train")) + 1
        order: list[int] = []
        for share in get_seqlen_balanced_partitions(workload_B, k_partitions=num_workers, equal_size=True):
            rising = sorted(share, key=lambda row: (workload_B[row], row))
            # Small micro-batches at both ends leave fewer bubbles in pipeline parallelism.
            order += [*rising[::2], *rising[1::2][::-1]]
        return tensordict_utils.index_select_tensor_dict(data, torch.tensor(order))

    def train_batch(self, data: Any) -> dict[str, Any]:
        with self.phases.phase("train_batch"):
            output = self.training_client.train_batch(data).get()
        return dict(tensordict_utils.get(output, "metrics"))

    def infer_batch(self, data: Any) -> dict[str, Any]:
        with self.phases.phase("infer_batch"):
            output = self.training_client.infer_batch(data).get()
        return dict(tensordict_utils.get(output, "metrics"))
