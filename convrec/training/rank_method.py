"""Rank-GRPO and its baselines as a method of the training loop, for verl's trainers.

verl's registries know no ranks: a registered estimator gets token rewards, a registered loss gets log-probs and
advantages. So the method itself reads responses and rank returns, and writes advantages and units for its own loss.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from omegaconf import DictConfig
from transfer_queue import KVBatchMeta
from verl.protocol import DataProto
from verl.trainer.ppo.rollout_corr_helper import (
    compute_rollout_correction_and_add_to_batch,
    compute_rollout_correction_weights,
)
from verl.utils.fs import copy_to_local

from convrec.data.tokenizer import stop_token_ids
from convrec.features.registry import active_features
from convrec.lists.token_ranks import build_vocab_table
from convrec.rank_grpo.credit import CreditSettings, assign_credit, compute_list_metrics, has_log_prob
from convrec.rank_grpo.loss_metrics import finish_policy_metrics
from convrec.rank_grpo.on_policy import is_on_policy
from convrec.rank_grpo.policy_loss import RankLossSettings, sum_over_units
from convrec.settings.rank_grpo import RankGRPOConfig
from convrec.settings.run import Run
from convrec.training.batch import read_log_probs, read_rank_batch, write_credit
from convrec.training.dataset import ConvRecDataset
from convrec.training.loss import COMPARED_TOKENS, rank_grpo_loss
from convrec.training.rollout_check import choose_bound, warn_about_drift


class RankMethod:
    """The credit of lists (docs/explanation/method.md 1 to 3), with the features that the run turns on.

    Args:
        run: a run on lists.
        credit_settings: settings of the credit.
        pad_token_id: pads the shorter responses.
    """

    def __init__(self, run: Run[RankGRPOConfig], credit_settings: CreditSettings, pad_token_id: int = 0) -> None:
        self.run = run
        self.settings = run.settings
        self.credit_settings = credit_settings
        self.pad_token_id = pad_token_id
        self.features = active_features(run)
        self.is_rank_level = run.is_rank_level

    @classmethod
    def from_run(cls, config: DictConfig, tokenizer: Any) -> "RankMethod":
        """Return the method of a run, whose policy has this tokenizer."""
        run: Run[RankGRPOConfig] = Run.from_config(config)
        settings = run.settings
        credit_settings = CreditSettings(
            num_ranks=settings.num_items,
            vocab_table=build_vocab_table(tokenizer, settings.delimiter),
            stop_token_ids=stop_token_ids(tokenizer, copy_to_local(settings.model)),
            preset=settings.preset,
            norm_by_std=run.normalizes_by_std,
            overflow_penalty=settings.overflow_penalty,
            underflow_penalty=settings.underflow_penalty,
            mask_truncated=settings.mask_truncated,
        )
        return cls(run, credit_settings, tokenizer.pad_token_id or 0)

    @property
    def has_variable_batch(self) -> bool:
        return any(feature.has_variable_batch for feature in self.features)

    def configure_datasets(self, engine: Any) -> None:
        """Merge equal prompts of the validation data, unless a feature answers each row."""
        together = not any(feature.answers_each_row for feature in self.features)
        if isinstance(engine.val_dataset, ConvRecDataset):
            engine.val_dataset.use_for_validation(together=together)

    def loss_function(self) -> Callable[..., Any] | None:
        """Return the loss for verl's workers; None means verl's own, for GRPO and GSPO."""
        if not self.is_rank_level:
            return None
        bypass_mode = self.run.rollout_correction.bypass
        return partial(rank_grpo_loss, settings=self.make_loss_settings(), bypass_mode=bypass_mode)

    def make_loss_settings(self) -> RankLossSettings:
        """Return the settings of the loss."""
        actor = self.run.verl_config.actor_rollout_ref.actor
        return RankLossSettings(
            num_ranks=self.settings.num_items,
            clip_ratio_low=actor.clip_ratio_low,
            clip_ratio_high=actor.clip_ratio_high,
            kl_coef=actor.kl_loss_coef if actor.use_kl_loss else 0.0,
            aggregation="token-mean" if self.settings.preset == "reference" else "rank-mean",
        )

    def skips_old_log_probs(self, updates_per_step: int) -> bool:
        return is_on_policy(self.run.verl_config, updates_per_step)

    def assign_credit(self, engine: Any, meta: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        """Log the lists of a batch, and write the credit of its tokens; for GRPO and GSPO verl computes it.

        Args:
            engine: the verl trainer.
            meta: the step's rows.
            metrics: the metrics of the step, to which those of lists and credit are added.

        Returns:
            The rows with the fields that the loss reads.
        """
        optional = [name for feature in self.features for name in feature.fields]
        batch = read_rank_batch(meta, self.pad_token_id, optional)
        for feature in self.features:
            feature.prepare(batch)
        metrics.update(compute_list_metrics(batch, self.settings.num_items))
        if not self.is_rank_level:
            return engine._compute_advantage(meta, metrics)
        credit = assign_credit(batch, self.credit_settings, self.features)
        metrics.update(credit.metrics)
        extra_fields_BT = {}
        if credit.loss_mask_BT is not batch.mask_BT:
            extra_fields_BT["loss_mask"] = credit.loss_mask_BT
        if self.run.rollout_correction.weights is not None:
            extra_fields_BT["rollout_is_weights"] = self._correct_rollout(meta, credit.units_BT, metrics)
        return write_credit(meta, batch, credit, extra_fields_BT)

    def _correct_rollout(self, meta: KVBatchMeta, units_BT: torch.Tensor, metrics: dict[str, Any]) -> torch.Tensor:
        """Return verl's truncated importance weights for the mismatch between rollout and actor, (B, T).

        `rollout_is=rank` is ours: the weight of a token is that of its unit, a product over the unit's tokens.
        """
        correction = self.run.verl_config.algorithm.rollout_correction
        data = read_log_probs(meta)
        # A token that the rollout did not sample has no mismatch.
        has_log_prob_BT = has_log_prob(data["rollout_log_probs"])
        data["rollout_log_probs"] = data["rollout_log_probs"].where(has_log_prob_BT, data["old_log_probs"])
        if correction.rollout_is == "rank":
            log_ratio_BT = sum_over_units(data["old_log_probs"] - data["rollout_log_probs"], units_BT)
            weights_BT, correction_metrics = compute_rollout_correction_weights(
                log_ratio_BT,
                data["response_mask"],
                "token",  # each token has its unit's ratio now; thresholds and normalisation are verl's
                correction.rollout_is_threshold,
                correction.rollout_is_batch_normalize,
            )
            metrics.update({f"rollout_corr/{name}": value for name, value in correction_metrics.items()})
            return weights_BT
        output, correction_metrics = compute_rollout_correction_and_add_to_batch(DataProto(batch=data), correction)
        metrics.update(correction_metrics)
        return output.batch["rollout_is_weights"]

    def finish_metrics(self, step: int, metrics: dict[str, Any]) -> None:
        """Turn the sums that the loss logged per micro-batch into means, and let features add their metrics.

        The loss logs `actor/<name>:<sum or max>` (convrec.rank_grpo.loss_metrics).

        Args:
            step: the step's number.
            metrics: the metrics of the step, changed in place.
        """
        if self.is_rank_level:
            parts = {name: metrics.pop(name) for name in list(metrics) if name.startswith("actor/") and ":" in name}
            by_name = {name.removeprefix("actor/"): value for name, value in parts.items()}
            metrics.update(finish_policy_metrics(by_name, "actor/"))
        share_compared = metrics.pop(f"actor/{COMPARED_TOKENS}", None)
        if share_compared:
            metrics["actor/rollout_diff_mean"] /= share_compared
        for feature in self.features:
            feature.finish_metrics(metrics)
        warn_about_drift(step, metrics, choose_bound(self.run))

    def write_card(self, engine: Any, folder: Any) -> None:
        """Do nothing: the run's card is enough."""
