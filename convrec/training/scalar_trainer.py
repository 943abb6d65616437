"""verl's GRPO on the score of a response: the trainer of judges and of scalar baselines."""

from typing import Any

import numpy as np
import transfer_queue as tq
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

from convrec.training.trainer_base import ConvRecMixin, scalar_infos

SCALAR = "scalar_grpo"


@register_trainer(SCALAR)
class ScalarGRPOTrainer(ConvRecMixin, PPOTrainerSync):
    """verl's GRPO in its "sync" mode; logs the mean of each number the reward function returns as `reward/<name>`."""

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=["uid", "extra_fields"])
        real = [index for index, tag in enumerate(batch.tags) if not tag.get("is_padding", False)]
        extra, uid = list(data["extra_fields"]), list(data["uid"])
        infos = scalar_infos([extra[index]["reward_extra_info"] for index in real])
        metrics.update({f"reward/{name}": float(np.mean(values)) for name, values in infos.items()})
        earned: dict[Any, set[float]] = {}
        for index, score in zip(real, infos["score"], strict=True):
            earned.setdefault(uid[index], set()).add(score)
        # groups whose rollouts all earn the same train nothing
        metrics["reward/zero_std"] = float(np.mean([len(scores) == 1 for scores in earned.values()]))
        return super()._compute_advantage(batch, metrics)
