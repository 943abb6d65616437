"""A step that was saved and not logged: the trainer's part of convrec.runs.step_metrics."""

from copy import deepcopy
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from transfer_queue import KVBatchMeta

from convrec.checkpoints.saving import step_folder
from convrec.runs import step_metrics


class KeepsUnlogged:
    """Over any of verl's v1 trainers: writes what is known of a step into its checkpoint, and makes up a validation."""

    config: DictConfig
    run_folder: Path
    global_steps: int
    steps_per_epoch: int
    total_training_steps: int
    _rollout_moe_lb_metrics_accumulator: Any

    def step(self, metrics: dict[str, Any], timing_raw: dict[str, float]) -> KVBatchMeta:
        batch = super().step(metrics, timing_raw)  # type: ignore[misc]
        self.trained = batch, metrics
        return batch

    def _write_step_metrics(self) -> None:
        step_metrics.write(step_folder(self.run_folder, self.global_steps), self._metrics_of_trained())

    def _metrics_of_trained(self) -> dict[str, Any]:
        """What verl will log of the step that was just trained. It computes the same once more when the step ends."""
        batch, metrics = self.trained
        metrics, verls = dict(metrics), self._rollout_moe_lb_metrics_accumulator
        self._rollout_moe_lb_metrics_accumulator = deepcopy(verls)  # else the batch would be counted twice
        epoch = (self.global_steps - 1) // self.steps_per_epoch
        self._compute_metrics(batch, metrics, {"step": 1.0}, self.global_steps, epoch)  # type: ignore[attr-defined]
        self._rollout_moe_lb_metrics_accumulator = verls
        return metrics

    def _make_up_validation(self) -> None:
        """Have `fit` begin with a validation, whatever its settings, where the last step lacks one."""
        trainer = self.config.trainer
        if step_metrics.lacks_validation(
            self.run_folder, self.global_steps, trainer.test_freq, self.total_training_steps
        ):
            trainer.val_before_train = True
