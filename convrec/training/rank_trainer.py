"""The trainers for lists, registered with verl under the names in conf/ (`trainer.v1.trainer_mode`)."""

import logging
from typing import Any

from verl.trainer.ppo.v1 import trainer_separate_async
from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.trainer.ppo.v1.trainer_separate_async import HybridEngineMode, PPOTrainerSeparateAsync
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

from convrec.rank_grpo import NAME
from convrec.training.rank_method import RankMethod
from convrec.training.trainer import TrainingEngine
from convrec.training.worker import ConvRecDetachWorker


@register_trainer(NAME)
class RankGRPOTrainer(TrainingEngine, PPOTrainerSync):
    """Rollout and training share their devices and take turns, as in verl's "sync" mode."""

    method_class = RankMethod


@register_trainer(f"{NAME}_separate_async")
class RankGRPOSeparateAsyncTrainer(TrainingEngine, PPOTrainerSeparateAsync):
    """The rollout has separate devices and runs ahead of training, as in verl's "separate_async" mode."""

    method_class = RankMethod
    verl_mode = "separate_async"
    worker = ConvRecDetachWorker

    def _setup(self) -> None:
        trainer_separate_async.logger = _DropFlush(trainer_separate_async.logger, {})
        super()._setup()

    def free_training_devices(self) -> None:
        """End the rollout that a validation may have left on the training devices, with its pending requests."""
        if self.current_mode is HybridEngineMode.ROLLOUT:
            self.switch_to_trainer()

    def _replicas(self) -> list[Any]:
        standalone = self.standalone_server_manager.get_replicas() if hasattr(self, "standalone_server_manager") else []
        return [*super()._replicas(), *standalone]


class _DropFlush(logging.LoggerAdapter):
    """Drop the argument `flush=True`, which verl 0.9.1 passes to `logger.info` in this mode: a TypeError."""

    def process(self, message: Any, kwargs: Any) -> tuple[Any, Any]:
        return message, {key: value for key, value in kwargs.items() if key != "flush"}
