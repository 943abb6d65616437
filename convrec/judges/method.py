"""GRPO of judges, as the training loop asks a method for it: verl's advantages of the score of a response.

Besides, both orders of a pair come in one batch and may count together, and a card lies beside the weights.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig
from torch.utils.data import Dataset
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import RandomSampler
from transfer_queue import KVBatchMeta
from verl.utils.dataset.rl_dataset import collate_fn

from convrec.judges.card import write_card
from convrec.judges.orders import CONSISTENT, SEPARATE, consistent_scores
from convrec.rank_grpo.credit import scalar_infos
from convrec.runs.card import sections
from convrec.settings.judges import PairwiseJudgeConfig
from convrec.settings.run import read_settings
from convrec.train.batch import is_padding, read_fields, write_rows


class JudgeMethod:
    """The credit of judges. Logs the mean of each number that the reward function returns as `reward/<name>`.

    convrec.orders: `separate`, each order of a pair is a prompt of its own; `consistent` and `together`: see
    convrec.judges.orders.

    Args:
        config: of the run.
    """

    trains_batch_at_once = False

    def __init__(self, config: DictConfig) -> None:
        self.config = config
        settings = read_settings(config)
        self.orders = settings.orders if isinstance(settings, PairwiseJudgeConfig) else SEPARATE

    @classmethod
    def from_run(cls, config: DictConfig, tokenizer: Any) -> "JudgeMethod":
        """Return the method of a run."""
        return cls(config)

    def prepare_data(self, engine: Any) -> None:
        """Have both orders of a pair come in one batch, where they count together."""
        if self.orders != SEPARATE:
            data = self.config.data
            engine.train_dataloader = pair_loader(
                engine.train_dataset, data.train_batch_size, data.seed, data.dataloader_num_workers
            )

    def loss_function(self) -> None:
        """The loss is verl's own."""

    def skips_old_log_probs(self, updates_per_step: int) -> bool:
        return False

    def assign_credit(self, engine: Any, meta: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        """Log the rewards of a batch and write verl's advantages."""
        if self.orders != SEPARATE:
            self._join_orders(meta, metrics)
        data = read_fields(meta, "uid", "extra_fields")
        rows = real_rows(meta)
        extra_fields = list(data["extra_fields"])
        uids = list(data["uid"])
        infos = [extra_fields[row]["reward_extra_info"] for row in rows]
        metrics.update(reward_metrics(infos, [uids[row] for row in rows]))
        return engine._compute_advantage(meta, metrics)

    def _join_orders(self, meta: KVBatchMeta, metrics: dict[str, Any]) -> None:
        """Write back what the two orders of a pair earn together, or one group for the answers to both."""
        data = read_fields(meta, "extra_info", "extra_fields", "rm_scores")
        rows = real_rows(meta)
        extra_info = list(data["extra_info"])
        extra_fields = list(data["extra_fields"])
        rm_scores = data["rm_scores"].unbind()
        answers = [(extra_info[row]["pair"], int(meta.keys[row].rsplit("_", 2)[1])) for row in rows]
        scores = consistent_scores(answers, [extra_fields[row]["reward_extra_info"] for row in rows])
        metrics["reward/right_both_ways"] = sum(score == 1 for score in scores) / len(scores)
        if self.orders == CONSISTENT:
            fields = [
                with_score(rm_scores[row], extra_fields[row], score) for row, score in zip(rows, scores, strict=True)
            ]
        else:
            fields = [{"uid": f"pair-{pair}"} for pair, _ in answers]
        write_rows(meta, rows, fields)

    def finish_metrics(self, step: int, metrics: dict[str, Any]) -> None:
        """verl's loss logs values that need no finishing."""

    def write_card(self, engine: Any, folder: Path) -> None:
        """Write a judge's card beside its exported weights: mode, criteria, data."""
        data = engine.train_dataset
        sources = sorted({row["source"] or "judge" for row in data.dataframe})
        others = " and others" if len(sources) > 10 else ""
        trained_on = f"{len(data)} rows: {', '.join(sources[:10])}{others}"
        base = self.config.actor_rollout_ref.model.path
        run = sections(engine.run_folder, engine.global_steps)
        write_card(folder, data.mode, data.criteria, base, trained_on, run)


def real_rows(meta: KVBatchMeta) -> list[int]:
    """Return the rows that are not verl's padding."""
    return [row for row, padding in enumerate(is_padding(meta)) if not padding]


def reward_metrics(infos: Sequence[Mapping[str, Any]], uids: Sequence[Any]) -> dict[str, float]:
    """Return `reward/<name>`, the mean of each number of the infos, and `reward/zero_std`.

    The latter is the share of prompts whose rollouts all earn the same: they train nothing.
    """
    numbers = scalar_infos(infos)
    metrics = {f"reward/{name}": float(np.mean(values)) for name, values in numbers.items()}
    scores_by_uid: dict[Any, set[float]] = {}
    for uid, score in zip(uids, numbers["score"], strict=True):
        scores_by_uid.setdefault(uid, set()).add(score)
    metrics["reward/zero_std"] = float(np.mean([len(scores) == 1 for scores in scores_by_uid.values()]))
    return metrics


def with_score(rm_scores_T: torch.Tensor, extra_fields: dict[str, Any], score: float) -> dict[str, Any]:
    """Return the fields of a row with another score at its last token."""
    changed_T = rm_scores_T.clone()
    changed_T[-1] = score
    info = extra_fields["reward_extra_info"] | {"score": score}
    return {"rm_scores": changed_T, "extra_fields": extra_fields | {"reward_extra_info": info}}


def pair_loader(rows: Dataset, batch_size: int, seed: int, num_workers: int = 0) -> StatefulDataLoader:
    """Return verl's loader over pairs in random order: rows 2k and 2k + 1 of the data set follow each other."""
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
