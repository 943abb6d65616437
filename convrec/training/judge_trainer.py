"""verl's GRPO for judges: on the score of a response, with both orders of a pair in one batch, and a card beside the
weights."""

from functools import partial
from typing import Any

import numpy as np
import torch
import transfer_queue as tq
from torch.utils.data import Dataset
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import RandomSampler
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils.dataset.rl_dataset import collate_fn
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from convrec.checkpoints.saving import step_folder
from convrec.judges.card import write_card
from convrec.judges.orders import CONSISTENT, SEPARATE, consistent_scores
from convrec.runs.card import sections
from convrec.training.trainer_base import ConvRecMixin, scalar_infos

JUDGE = "judge_grpo"


@register_trainer(JUDGE)
class JudgeTrainer(ConvRecMixin, PPOTrainerSync):
    """verl's "sync" mode; logs the mean of each number the reward function returns as `reward/<name>`.

    convrec.orders: `separate`, each order of a pair is a prompt of its own; `consistent` and `together`: see
    convrec.judges.orders.
    """

    @property
    def orders(self) -> str:
        return self.config.convrec.get("orders", SEPARATE)  # a pointwise judge has none

    def _init_dataloader(self) -> None:
        super()._init_dataloader()
        if self.orders == SEPARATE:
            return
        data = self.config.data
        self.train_dataloader = pair_loader(
            self.train_dataset, data.train_batch_size, data.seed, data.dataloader_num_workers
        )

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        if self.orders != SEPARATE:
            self._join_orders(batch, metrics)
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=["uid", "extra_fields"])
        extra, uid, real = list(data["extra_fields"]), list(data["uid"]), _not_padding(batch)
        infos = scalar_infos([extra[index]["reward_extra_info"] for index in real])
        metrics.update({f"reward/{name}": float(np.mean(values)) for name, values in infos.items()})
        earned: dict[Any, set[float]] = {}
        for index, score in zip(real, infos["score"], strict=True):
            earned.setdefault(uid[index], set()).add(score)
        # groups whose rollouts all earn the same train nothing
        metrics["reward/zero_std"] = float(np.mean([len(scores) == 1 for scores in earned.values()]))
        return super()._compute_advantage(batch, metrics)

    def _join_orders(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> None:
        """Write back what the two orders of a pair earn together, or one group for the answers to both."""
        fields = ["uid", "extra_info", "extra_fields", "rm_scores"]
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=fields)
        extra_info, extra_fields, real = list(data["extra_info"]), list(data["extra_fields"]), _not_padding(batch)
        rm_scores = data["rm_scores"].unbind()
        answers = [(extra_info[index]["pair"], int(batch.keys[index].rsplit("_", 2)[1])) for index in real]
        infos = [extra_fields[index]["reward_extra_info"] for index in real]
        joint = consistent_scores(answers, infos)
        metrics["reward/right_both_ways"] = sum(score == 1 for score in joint) / len(joint)
        if self.orders == CONSISTENT:
            rows = []
            for index, score in zip(real, joint, strict=True):
                earned = rm_scores[index].clone()
                earned[-1] = score
                info = extra_fields[index]["reward_extra_info"] | {"score": score}
                rows.append({"rm_scores": earned, "extra_fields": extra_fields[index] | {"reward_extra_info": info}})
        else:
            rows = [{"uid": f"pair-{pair}"} for pair, _ in answers]
        keys = [batch.keys[index] for index in real]
        tq.kv_batch_put(keys=keys, partition_id=batch.partition_id, fields=list_of_dict_to_tensordict(rows))

    def _write_checkpoint(self) -> None:
        super()._write_checkpoint()
        folder = step_folder(self.run_folder, self.global_steps) / "actor" / "huggingface"
        if folder.is_dir():
            data = self.train_dataset
            sources = sorted({row["source"] or "judge" for row in data.dataframe})
            trained_on = f"{len(data)} rows: {', '.join(sources[:10])}{' and others' * (len(sources) > 10)}"
            base = self.config.actor_rollout_ref.model.path
            run = sections(self.run_folder, self.global_steps)
            write_card(folder, data.mode, data.criteria, base, trained_on, run)


def _not_padding(batch: KVBatchMeta) -> list[int]:
    """The rows that are not verl's padding."""
    return [index for index, tag in enumerate(batch.tags) if not tag.get("is_padding", False)]


def pair_loader(rows: Dataset, batch_size: int, seed: int, num_workers: int = 0) -> StatefulDataLoader:
    """verl's loader with pairs in random order for rows: 2k and 2k + 1 of the data set come one after the other."""
    pairs = [(index, index + 1) for index in range(0, len(rows) - 1, 2)]
    generator = torch.Generator()
    generator.manual_seed(seed)
    return StatefulDataLoader(
        dataset=pairs,
        batch_size=batch_size // 2,
        num_workers=num_workers,
        drop_last=True,
        collate_fn=partial(collate_pairs, rows),
        sampler=RandomSampler(pairs, generator=generator),
    )


def collate_pairs(rows: Dataset, pairs: list[tuple[int, int]]) -> dict[str, Any]:
    return collate_fn([rows[index] for pair in pairs for index in pair])
