"""Rank-GRPO in verl's trainer: nothing but wiring.

    reward/catalog_match.py --extra_fields--> RankGRPOTrainer._compute_advantage --TransferQueue--> rank_grpo_loss
                                              (token_ranks, advantages)                             (policy_loss)

Neither verl registry sees ranks, so the trainer reads responses and rank returns itself and writes `advantages`,
`returns` and `policy_units` (unit id + 1 of every response token, 0 for none: verl pads nested tensors with 0).
"""

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
import transfer_queue as tq
from omegaconf import DictConfig
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.protocol import DataProto
from verl.trainer.ppo.rollout_corr_helper import (
    compute_rollout_correction_and_add_to_batch,
    compute_rollout_correction_weights,
)
from verl.trainer.ppo.v1 import trainer_separate_async
from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.trainer.ppo.v1.trainer_separate_async import PPOTrainerSeparateAsync
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils.fs import copy_to_local
from verl.workers.utils.padding import response_to_nested

from convrec.data.tokenizer import stop_token_ids
from convrec.lists.token_ranks import build_vocab_table, reference_rank_ids, stop_token_mask, token_rank_ids
from convrec.rank_grpo.advantages import assign_units, part_advantages, rank_advantages
from convrec.rank_grpo.loss_metrics import finish_policy_metrics
from convrec.rank_grpo.on_policy import is_on_policy
from convrec.rank_grpo.policy_loss import RankLossSettings, sum_over_units
from convrec.rank_grpo.questions import Turns, assign_questions, question_advantages
from convrec.rank_grpo.repair import NOT_SAMPLED
from convrec.rank_grpo.step_metrics import part_metrics, rank_metrics
from convrec.rollout.repair import REPAIRED
from convrec.rollout.responses import TURN
from convrec.training import registration
from convrec.training.dataset import ConvRecDataset
from convrec.training.loss import NUM_PADDING, rank_grpo_loss
from convrec.training.trainer_base import ConvRecMixin, scalar_infos
from convrec.training.worker import ConvRecDetachWorker

logger = logging.getLogger(__name__)

SAMPLED = "rank_grpo/sampled_tokens"


class RankGRPOMixin(ConvRecMixin):
    """The rank-level method over any of verl's v1 trainers. Settings are in the config's `convrec` section."""

    # ---- wiring into verl's set-up ----

    def __init__(self, config: DictConfig) -> None:
        super().__init__(config)
        self.is_rank_level = config.algorithm.adv_estimator == registration.NAME

    def _init_tokenizer(self) -> None:
        super()._init_tokenizer()
        self.vocab_table = build_vocab_table(self.tokenizer, self.settings.delimiter)
        self.stop_token_ids = stop_token_ids(self.tokenizer, copy_to_local(self.config.actor_rollout_ref.model.path))

    def _init_dataloader(self) -> None:
        super()._init_dataloader()
        if isinstance(self.val_dataset, ConvRecDataset):
            self.val_dataset.use_for_validation(together=not self.settings.get("ask"))  # a user answers a row

    def _prepare_workers(self) -> None:
        if self.is_rank_level:
            loss = partial(rank_grpo_loss, settings=self._loss_settings(), old_is_rollout=self._old_is_rollout)
            self.actor_rollout_wg.set_loss_fn(loss)

    def _loss_settings(self) -> RankLossSettings:
        actor = self.config.actor_rollout_ref.actor
        return RankLossSettings(
            num_ranks=self.settings.num_items,
            clip_ratio_low=actor.clip_ratio_low,
            clip_ratio_high=actor.clip_ratio_high,
            kl_coef=actor.kl_loss_coef if actor.use_kl_loss else 0.0,
            aggregation="token-mean" if self.settings.preset == "reference" else "rank-mean",
        )

    # ---- one step ----

    def _compute_old_log_prob(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        """Skip the pass when strictly on-policy, but for the one that compares rollout and actor at start-up."""
        if self.rollout_is_checked and is_on_policy(self.config, self.parameter_sync_step):
            return batch
        batch = super()._compute_old_log_prob(batch, metrics)
        if self.settings.repair != "none":  # verl's comparison of rollout and actor takes in what no rollout sampled
            for name in [name for name in metrics if name.startswith("training/rollout_")]:
                del metrics[name]
        return batch

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        fields = ["uid", "responses", "response_mask", "extra_fields"]
        fields += ["loss_mask"] if self.settings.constrained else []
        fields += ["rollout_log_probs"] if self.settings.repair != "none" else []
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=fields)
        is_padding = np.array([tag.get("is_padding", False) for tag in batch.tags], dtype=bool)
        # rows that fill a batch up are no group of one another
        uid: list[Any] = [row if is_padding[row] else name for row, name in enumerate(data["uid"])]
        extra_fields = list(data["extra_fields"])
        infos = [extra["reward_extra_info"] for extra in extra_fields]
        turns = _turns(uid, extra_fields) if self.settings.get("ask") else None
        groups: list[Any] = turns.list_groups if turns else uid
        returns_BK = torch.tensor([info["rank_returns"] for info in infos], dtype=torch.float32)
        real = np.flatnonzero(~is_padding & ~turns.is_question_B.numpy() if turns else ~is_padding)
        groups_of_real = [groups[i] for i in real]
        # a repaired list trains as it is, and is logged as what the policy had written
        sampled = [extra_fields[i].get(REPAIRED, infos[i]) for i in real]
        sampled_BK = torch.tensor([info["rank_returns"] for info in sampled], dtype=torch.float32)
        of_lists = scalar_infos(sampled)
        prompts = [uid[i] for i in real]
        metrics.update(rank_metrics(sampled_BK, groups_of_real, self.settings.num_items, of_lists, prompts=prompts))
        if not self.is_rank_level:
            return super()._compute_advantage(batch, metrics)

        nested_mask = data["response_mask"]
        responses_BT = data["responses"].to_padded_tensor(padding=self.tokenizer.pad_token_id or 0)
        mask_BT = nested_mask.to_padded_tensor(padding=0)
        rank_ids_of = reference_rank_ids if self.settings.preset == "reference" else token_rank_ids
        rank_ids_BT = rank_ids_of(responses_BT, mask_BT, self.vocab_table, self.stop_token_ids)
        is_stop_BT = stop_token_mask(responses_BT, mask_BT, self.stop_token_ids)
        norm_by_std = self.config.algorithm.get("norm_adv_by_std_in_grpo", True)
        advantages_BK = rank_advantages(returns_BK, groups, norm_by_std=norm_by_std)
        if self.settings.rewards:
            weights: Mapping[str, float] = self.settings.rewards
            returns_PBK = torch.tensor([info["part_returns"] for info in infos], dtype=torch.float32).transpose(0, 1)
            advantages_PBK = part_advantages(returns_PBK, list(weights.values()), groups, norm_by_std)
            of_parts = torch.tensor([info["part_returns"] for info in sampled], dtype=torch.float32).transpose(0, 1)
            metrics.update(part_metrics(list(weights), of_parts, advantages_PBK[:, real], groups_of_real))
            if self.settings.reward_combination == "normalised":
                advantages_BK = advantages_PBK.sum(dim=0)
        units_BT, advantages_BT = assign_units(
            rank_ids_BT,
            advantages_BK,
            is_stop_BT,
            self.settings.num_items,
            preset=self.settings.preset,
            overflow_penalty=self.settings.overflow_penalty,
            underflow_penalty=self.settings.underflow_penalty,
            mask_truncated=self.settings.mask_truncated,
        )
        if turns:
            earned_B = question_advantages(turns, self.settings.ask_cost, norm_by_std)
            units_BT, advantages_BT = assign_questions(units_BT, advantages_BT, mask_BT.bool(), turns, earned_B)
            metrics["rank_grpo/questions"] = turns.turn_B[real].float().mean().item()
        loss_mask_BT = mask_BT
        if self.settings.constrained:  # forced tokens carry no choice: no ratio is diluted by them
            loss_mask_BT = data["loss_mask"].to_padded_tensor(padding=0)
            units_BT = units_BT.masked_fill(loss_mask_BT == 0, -1)
            advantages_BT = advantages_BT.masked_fill(loss_mask_BT == 0, 0.0)
            metrics["rank_grpo/forced"] = 1.0 - (loss_mask_BT.sum() / mask_BT.sum()).item()
        is_rank = (rank_ids_BT >= 0) & (rank_ids_BT < self.settings.num_items)
        token_returns_BT = returns_BK.gather(1, rank_ids_BT.clamp(0, self.settings.num_items - 1)) * is_rank
        metrics["rank_grpo/truncated"] = 1.0 - is_stop_BT.any(1)[real].float().mean().item()

        output = {"advantages": advantages_BT, "returns": token_returns_BT, "policy_units": units_BT + 1}
        if self.settings.mask_truncated:
            # verl's engine counts a mini-batch's tokens by it: those of dropped rows are not in the token mean
            output["loss_mask"] = loss_mask_BT = loss_mask_BT * is_stop_BT.any(1, keepdim=True)
        if self.settings.repair != "none":
            metrics["rank_grpo/repaired"] = sum(REPAIRED in extra_fields[i] for i in real) / len(set(groups_of_real))
            is_sampled_BT = data["rollout_log_probs"].to_padded_tensor(padding=0) < NOT_SAMPLED
            metrics[SAMPLED] = ((loss_mask_BT * is_sampled_BT).sum() / loss_mask_BT.sum().clamp(min=1)).item()
        if self.config.algorithm.rollout_correction.rollout_is is not None:
            output |= self._rollout_correction(batch, units_BT, metrics)
        nested = {key: response_to_nested(value, nested_mask) for key, value in output.items()}
        return tq.kv_batch_put(
            keys=batch.keys, partition_id=batch.partition_id, fields=TensorDict(nested, batch_size=len(batch))
        )

    def _rollout_correction(
        self, batch: KVBatchMeta, units_BT: torch.Tensor, metrics: dict[str, Any]
    ) -> dict[str, torch.Tensor]:
        """verl's truncated importance sampling of the rollout/actor mismatch, as its own trainers apply it.

        `rollout_is=rank` is ours: the weight of a token is that of its unit, a product over the unit's tokens.
        """
        correction = self.config.algorithm.rollout_correction
        fields = ["response_mask", "rollout_log_probs", "old_log_probs"]
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=fields)
        padded = data.to_padded_tensor()
        sampled_BT = padded["rollout_log_probs"] < NOT_SAMPLED
        padded["rollout_log_probs"] = padded["rollout_log_probs"].where(sampled_BT, padded["old_log_probs"])
        if correction.rollout_is == "rank":
            log_ratio_BT = sum_over_units(padded["old_log_probs"] - padded["rollout_log_probs"], units_BT)
            weights_BT, found = compute_rollout_correction_weights(
                log_ratio_BT,
                padded["response_mask"],
                "token",  # each token has its unit's ratio now; thresholds and normalisation are verl's
                correction.rollout_is_threshold,
                correction.rollout_is_batch_normalize,
            )
            metrics.update({f"rollout_corr/{name}": value for name, value in found.items()})
            return {"rollout_is_weights": weights_BT}
        proto, correction_metrics = compute_rollout_correction_and_add_to_batch(DataProto(batch=padded), correction)
        metrics.update(correction_metrics)
        return {"rollout_is_weights": proto.batch["rollout_is_weights"]}

    def _get_required_batch_multiple(self, dp_size: int) -> int:
        """Questions are rows of their own: a batch has no fixed number of rows, and is one update all the same."""
        return dp_size if self.settings.get("ask") else super()._get_required_batch_multiple(dp_size)

    def _update_actor(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        batch = (self._update_at_once if self.settings.get("ask") else super()._update_actor)(batch, metrics)
        if self.is_rank_level:
            parts = {key: metrics.pop(key) for key in list(metrics) if key.startswith("actor/") and ":" in key}
            metrics.update(finish_policy_metrics({k.removeprefix("actor/"): v for k, v in parts.items()}, "actor/"))
            for name in {"actor/entropy", "actor/rollout_diff_mean"} & metrics.keys():
                metrics[name] /= metrics.get(SAMPLED, 1.0)  # sums over sampled tokens had been divided by all
        mean = metrics.get("actor/rollout_diff_mean")
        if mean is not None and not mean <= self.settings.rollout_check_bound:
            logger.warning(
                "step %d: mean |log p_vllm - log p_actor| is %.3g, above %g: the rollout drifts from the policy",
                self.global_steps,
                mean,
                self.settings.rollout_check_bound,
            )
        return batch

    def _update_at_once(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        actor, rollout = self.config.actor_rollout_ref.actor, self.config.actor_rollout_ref.rollout
        configured = actor.ppo_mini_batch_size, rollout.n  # verl's rows of an update are the product of both
        actor.ppo_mini_batch_size, rollout.n = len(batch), 1
        batch.extra_info[NUM_PADDING] = sum(tag.get("is_padding", False) for tag in batch.tags)
        try:
            return super()._update_actor(batch, metrics)
        finally:
            actor.ppo_mini_batch_size, rollout.n = configured


@register_trainer(registration.NAME)
class RankGRPOTrainer(RankGRPOMixin, PPOTrainerSync):
    """Rollout and training share their devices and take turns: verl's "sync" mode."""


@register_trainer(f"{registration.NAME}_separate_async")
class RankGRPOSeparateAsyncTrainer(RankGRPOMixin, PPOTrainerSeparateAsync):
    """Rollout on devices of its own, ahead of training: verl's "separate_async" mode."""

    verls_mode = "separate_async"
    worker = ConvRecDetachWorker

    def _setup(self) -> None:
        trainer_separate_async.logger = _WithoutFlush(trainer_separate_async.logger, {})
        super()._setup()

    def _replicas(self) -> list[Any]:
        standalone = self.standalone_server_manager.get_replicas() if hasattr(self, "standalone_server_manager") else []
        return [*super()._replicas(), *standalone]


class _WithoutFlush(logging.LoggerAdapter):
    """verl 0.9.1 calls `logger.info(..., flush=True)` when no rollout shares the training GPUs: a TypeError."""

    def process(self, message: Any, kwargs: Any) -> tuple[Any, Any]:
        return message, {key: value for key, value in kwargs.items() if key != "flush"}


def _turns(uid: Sequence[Any], extra_fields: Sequence[Mapping[str, Any]]) -> Turns:
    """Of the rows of a batch, whose fields have convrec.rollout's TURN."""
    noted = [extra[TURN] for extra in extra_fields]
    turn_B = torch.tensor([one["turn"] for one in noted])
    is_question_B = torch.tensor([one["question"] for one in noted])
    gain_B = torch.tensor([extra["reward_extra_info"]["score"] for extra in extra_fields], dtype=torch.float32)
    return Turns(uid, turn_B, is_question_B, gain_B, torch.tensor([one["asked"] for one in noted]))
