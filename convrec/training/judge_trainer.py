"""verl's GRPO for judges: `scalar_grpo` with both orders of a pair in one batch, and a card beside the weights."""

from collections.abc import Iterator
from typing import Any

import torch
import transfer_queue as tq
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import RandomSampler
from torchdata.stateful_dataloader.stateful import Stateful
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.utils.dataset.rl_dataset import collate_fn
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from convrec.checkpoints.saving import step_folder
from convrec.judges.card import write_card
from convrec.judges.orders import CONSISTENT, SEPARATE, consistent_scores
from convrec.runs.card import sections
from convrec.training.scalar_trainer import ScalarGRPOTrainer

JUDGE = "judge_grpo"


@register_trainer(JUDGE)
class JudgeTrainer(ScalarGRPOTrainer):
    """convrec.orders: `separate`, each order of a pair is a prompt of its own; `consistent` and `together`: see
    convrec.judges.orders."""

    @property
    def orders(self) -> str:
        return self.config.convrec.get("orders", SEPARATE)  # a pointwise judge has none

    def _init_dataloader(self) -> None:
        super()._init_dataloader()
        if self.orders == SEPARATE:
            return
        generator = torch.Generator()
        generator.manual_seed(self.config.data.seed)
        self.train_dataloader = StatefulDataLoader(
            dataset=self.train_dataset,
            batch_size=self.config.data.train_batch_size,
            num_workers=self.config.data.dataloader_num_workers,
            drop_last=True,
            collate_fn=collate_fn,
            sampler=PairSampler(len(self.train_dataset), generator),
        )

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        if self.orders != SEPARATE:
            self._join_orders(batch, metrics)
        return super()._compute_advantage(batch, metrics)

    def _join_orders(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> None:
        """Write back what the two orders of a pair earn together, or one group for the answers to both."""
        fields = ["uid", "extra_info", "extra_fields", "rm_scores"]
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=fields)
        real = [place for place, tag in enumerate(batch.tags) if not tag.get("is_padding", False)]
        extra_info, extra_fields = list(data["extra_info"]), list(data["extra_fields"])
        rm_scores = data["rm_scores"].unbind()
        answers = [(extra_info[place]["pair"], int(batch.keys[place].rsplit("_", 2)[1])) for place in real]
        infos = [extra_fields[place]["reward_extra_info"] for place in real]
        joint = consistent_scores(answers, infos)
        metrics["reward/right_both_ways"] = sum(score == 1 for score in joint) / len(joint)
        if self.orders == CONSISTENT:
            rows = []
            for place, score in zip(real, joint, strict=True):
                earned = rm_scores[place].clone()
                earned[-1] = score
                info = extra_fields[place]["reward_extra_info"] | {"score": score}
                rows.append({"rm_scores": earned, "extra_fields": extra_fields[place] | {"reward_extra_info": info}})
        else:
            rows = [{"uid": f"pair-{pair}"} for pair, _ in answers]
        keys = [batch.keys[place] for place in real]
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


class PairSampler(RandomSampler):
    """Rows 2k and 2k + 1 of a dataset one after the other, the pairs in random order."""

    def __init__(self, num_rows: int, generator: torch.Generator) -> None:
        super().__init__(range(num_rows // 2), generator=generator)

    def __iter__(self) -> Iterator[int]:
        return _Rows(super().__iter__())

    def __len__(self) -> int:
        return 2 * super().__len__()


class _Rows(Iterator[int], Stateful):
    """The rows of the pairs that `pairs` gives; resumed where it was."""

    def __init__(self, pairs: Any) -> None:
        self.pairs = pairs
        self.second: int | None = None

    def __next__(self) -> int:
        if self.second is not None:
            row, self.second = self.second, None
            return row
        row = 2 * next(self.pairs)
        self.second = row + 1
        return row

    def state_dict(self) -> dict[str, Any]:
        return {"pairs": self.pairs.state_dict(), "second": self.second}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.pairs.load_state_dict(state["pairs"])
        self.second = state["second"]
