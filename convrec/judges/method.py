"""GRPO for judges, as a method of the training loop: verl's advantages from the score of a response.

In addition, both orders of a pair can share a batch and be rewarded together, and checkpoints get a model card.
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
from convrec.judges.orders import CONSISTENT, SEPARATE, compute_consistent_scores
from convrec.rank_grpo.credit import collect_scalar_infos
from convrec.runs.card import sections
from convrec.settings.judges import PairwiseJudgeConfig
from convrec.settings.run import read_settings
from convrec.training.batch import read_scored_responses, write_prompt_labels, write_scores


class JudgeMethod:
    """The credit of judges. Logs the mean of each number that the reward function returns as `reward/<name>`.

    With convrec.orders=separate, each order of a pair is a separate prompt; for `consistent` and `together` see
    convrec.judges.orders.

    Args:
        config: the run's config.
    """

    has_variable_batch = False

    def __init__(self, config: DictConfig) -> None:
        self.config = config
        settings = read_settings(config)
        self.orders = settings.orders if isinstance(settings, PairwiseJudgeConfig) else SEPARATE

    @classmethod
    def from_run(cls, config: DictConfig, tokenizer: Any) -> "JudgeMethod":
        """Make the method of a run."""
        return cls(config)

    def configure_datasets(self, engine: Any) -> None:
        """Put both orders of a pair in one batch if they are rewarded together."""
        if self.orders != SEPARATE:
            data = self.config.data
            engine.train_dataloader = make_pair_loader(
                engine.train_dataset, data.train_batch_size, data.seed, data.dataloader_num_workers
            )

    def loss_function(self) -> None:
        """Return None, for verl's own loss."""

    def skips_old_log_probs(self, updates_per_step: int) -> bool:
        """Return False: verl's loss needs old log-probs."""
        return False

    def assign_credit(self, engine: Any, meta: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        """Log the rewards of a batch and write verl's advantages.

        Args:
            engine: the verl trainer.
            meta: the step's rows.
            metrics: the metrics of the step, to which those of the rewards are added.

        Returns:
            The rows with the fields that verl's loss reads.
        """
        if self.orders != SEPARATE:
            self._join_orders(meta, metrics)
        responses = read_scored_responses(meta)
        metrics.update(compute_reward_metrics(responses.infos, responses.prompts))
        return engine._compute_advantage(meta, metrics)

    def _join_orders(self, meta: KVBatchMeta, metrics: dict[str, Any]) -> None:
        """Write the joint scores of both orders, or one group label for the answers to both."""
        responses = read_scored_responses(meta)
        pairs = [source["pair"] for source in responses.sources]
        scores = compute_consistent_scores(list(zip(pairs, responses.rollouts, strict=True)), responses.infos)
        metrics["reward/right_both_ways"] = sum(score == 1 for score in scores) / len(scores)
        if self.orders == CONSISTENT:
            write_scores(meta, responses.rows, scores)
        else:
            write_prompt_labels(meta, responses.rows, [f"pair-{pair}" for pair in pairs])

    def finish_metrics(self, step: int, metrics: dict[str, Any]) -> None:
        """Change nothing: the metrics of verl's loss are final."""

    def write_card(self, engine: Any, folder: Path) -> None:
        """Write a judge's model card next to its exported weights: mode, criteria, data."""
        data = engine.train_dataset
        sources = sorted({row["source"] or "judge" for row in data.dataframe})
        others = " and others" if len(sources) > 10 else ""
        description = f"{len(data)} rows: {', '.join(sources[:10])}{others}"
        write_card(
            folder,
            data.mode,
            data.criteria,
            base_model=self.config.actor_rollout_ref.model.path,
            data=description,
            run=sections(engine.run_folder, engine.global_steps),
        )


def compute_reward_metrics(infos: Sequence[Mapping[str, Any]], uids: Sequence[Any]) -> dict[str, float]:
    """Compute `reward/<name>`, the mean of each number of the infos, and `reward/zero_std`.

    The latter is the share of prompts whose rollouts all earn the same, so that they give no gradient.

    Args:
        infos: the reward function's infos, at least one; all have the keys of the first, among them `score`.
        uids: the prompt of each info.
    """
    numbers = collect_scalar_infos(infos)
    metrics = {f"reward/{name}": float(np.mean(values)) for name, values in numbers.items()}
    scores_by_uid: dict[Any, set[float]] = {}
    for uid, score in zip(uids, numbers["score"], strict=True):
        scores_by_uid.setdefault(uid, set()).add(score)
    metrics["reward/zero_std"] = float(np.mean([len(scores) == 1 for scores in scores_by_uid.values()]))
    return metrics


def make_pair_loader(rows: Dataset, batch_size: int, seed: int, num_workers: int = 0) -> StatefulDataLoader:
    """Make verl's data loader with pairs in random order: row 2k + 1 of the data set always follows row 2k.

    Args:
        rows: the data set, in which the rows of a pair are adjacent.
        batch_size: rows of a batch, an even number. A last, smaller batch is left out.
        seed: random seed of the order.
        num_workers: processes that read rows; 0 for this process.
    """
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
    """Collate both rows of each pair, given by their indices, with verl's function."""
    return collate_fn([rows[index] for pair in pairs for index in pair])
