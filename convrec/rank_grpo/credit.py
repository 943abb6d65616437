"""Assign credit to the tokens of a step's lists: the method in the order in which it is computed.

    RankBatch                      tokens from the rollout workers, and the results of the reward function
      -> compute_rank_advantages           compare the returns of each rank within the rollouts of a prompt
      -> assign_units              assign tokens to units, and units to advantages
      -> Credit                    the input of the policy loss

A run may turn on features (convrec.features), each of which changes one of these results. The paper uses none.

Shapes: B sequences, T response tokens, K = N ranks. The definitions are docs/explanation/method.md, sections 1 to 3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from convrec.lists.token_ranks import VocabTable, reference_rank_ids, stop_token_mask, token_rank_ids
from convrec.rank_grpo.advantages import Preset, assign_units, compute_rank_advantages
from convrec.rank_grpo.step_metrics import compute_rank_metrics

SAMPLED_TOKENS = "rank_grpo/sampled_tokens"
# Placeholder for the rollout's log-prob of a token that the rollout did not sample, because a repair wrote it or
# changed the text before it; see `is_sampled`. No log-prob is above 0.
NOT_SAMPLED = 1.0
# Placeholder for the log-prob of a token that the rollout sampled without reporting its log-prob
# (`convrec.rollout_check_share`); see `has_log_prob`.
NOT_REPORTED = 2.0


def is_sampled(rollout_log_probs: torch.Tensor) -> torch.Tensor:
    """Return where the rollout itself sampled the token.

    Args:
        rollout_log_probs: log-probs from the rollout, of any shape, with the placeholders NOT_SAMPLED and NOT_REPORTED.

    Returns:
        A bool tensor of the same shape.
    """
    return rollout_log_probs != NOT_SAMPLED


def has_log_prob(rollout_log_probs: torch.Tensor) -> torch.Tensor:
    """Return where the rollout sampled the token and reported its log-prob.

    Args:
        rollout_log_probs: log-probs from the rollout, of any shape, with the placeholders NOT_SAMPLED and NOT_REPORTED.

    Returns:
        A bool tensor of the same shape.
    """
    return rollout_log_probs < NOT_SAMPLED


@dataclass
class RankBatch:
    """The rows of one training step.

    Attributes:
        prompts: (B,) label of each row's prompt. Each padding row has its own label, so that padding rows do not form a
            group.
        is_padding_B: rows that fill the batch up to a multiple of the number of processes.
        extra_fields: (B,) fields that the rollout added to each response, among them the reward function's result.
        responses_BT: token ids.
        mask_BT: 1 for a response token, 0 for padding.
        optional_BT: further fields that a feature requested, by name.
        groups: (B,) label of the rows whose returns are compared with each other; the prompts, unless a feature splits
            them further.
        is_list_B: rows that hold a list; only these count in the logged metrics of lists.
        logged_infos: (B,) result of the reward function for the list as the policy wrote it.
    """

    prompts: list[Any]
    is_padding_B: torch.Tensor
    extra_fields: list[dict[str, Any]]
    responses_BT: torch.Tensor
    mask_BT: torch.Tensor
    optional_BT: dict[str, torch.Tensor] = field(default_factory=dict)
    groups: list[Any] = field(init=False)
    is_list_B: torch.Tensor = field(init=False)
    logged_infos: list[dict[str, Any]] = field(init=False)

    def __post_init__(self) -> None:
        self.groups = list(self.prompts)
        self.is_list_B = ~self.is_padding_B
        self.logged_infos = list(self.infos)

    @property
    def infos(self) -> list[dict[str, Any]]:
        """(B,) result of the reward function for the response that trains."""
        return [extra["reward_extra_info"] for extra in self.extra_fields]

    @property
    def returns_BK(self) -> torch.Tensor:
        """Rank returns of the responses that train, (B, K) float32."""
        return torch.tensor([info["rank_returns"] for info in self.infos], dtype=torch.float32)

    @property
    def list_rows(self) -> list[int]:
        """Indices of the rows that hold a list."""
        return self.is_list_B.nonzero().flatten().tolist()


@dataclass
class Credit:
    """The credit of a step's tokens, on which the policy loss trains.

    Attributes:
        rank_ids_BT: 0-based rank of each token, -1 for none.
        is_stop_BT: True at the end-of-sequence token of a response that was not truncated.
        advantages_BK: advantage of each rank.
        units_BT: unit of each token, -1 for none (see convrec.rank_grpo.advantages).
        advantages_BT: advantage of each token, 0 where it has no unit.
        loss_mask_BT: 1 for the tokens that count in the loss.
        metrics: metrics of the step about its credit.
    """

    rank_ids_BT: torch.Tensor
    is_stop_BT: torch.Tensor
    advantages_BK: torch.Tensor
    units_BT: torch.Tensor
    advantages_BT: torch.Tensor
    loss_mask_BT: torch.Tensor
    metrics: dict[str, float] = field(default_factory=dict)

    def spread_returns(self, returns_BK: torch.Tensor) -> torch.Tensor:
        """Return the rank return of each token's rank; used for logging only.

        Args:
            returns_BK: rank returns of the same rows.

        Returns:
            (B, T), 0 for a token without a rank and for overflow items.
        """
        num_ranks = returns_BK.shape[1]
        is_rank_BT = (self.rank_ids_BT >= 0) & (self.rank_ids_BT < num_ranks)
        return returns_BK.gather(1, self.rank_ids_BT.clamp(0, num_ranks - 1)) * is_rank_BT


class CreditFeature(Protocol):
    """The hooks of a feature that change the credit; those of convrec.features.feature.Feature do nothing."""

    def prepare(self, batch: RankBatch) -> None:
        """Change the groups, or the logged results, before anything is computed."""

    def adjust_ranks(self, batch: RankBatch, credit: Credit) -> None:
        """Change the advantages of ranks."""

    def adjust_tokens(self, batch: RankBatch, credit: Credit) -> None:
        """Change the units, advantages and loss mask of tokens."""

    def log_credit(self, batch: RankBatch, credit: Credit) -> None:
        """Add metrics about the finished credit."""


@dataclass(frozen=True)
class CreditSettings:
    """The settings of `assign_credit`.

    Attributes:
        num_ranks: N, the number of items that the prompt asks for.
        vocab_table: effect of each token's bytes on the count of lines.
        stop_token_ids: ids that end a response.
        preset: "paper" or "reference".
        norm_by_std: divide advantages by the standard deviation of their group.
        overflow_penalty: advantage of an item after the N-th.
        underflow_penalty: advantage of the stop token of a list shorter than N.
        mask_truncated: truncated responses do not train.
    """

    num_ranks: int
    vocab_table: VocabTable
    stop_token_ids: Sequence[int]
    preset: Preset = "paper"
    norm_by_std: bool = True
    overflow_penalty: float = -0.1
    underflow_penalty: float = -0.1
    mask_truncated: bool = False


def compute_list_metrics(batch: RankBatch, num_ranks: int) -> dict[str, float]:
    """Compute the metrics of a step's lists as the policy wrote them, for every algorithm.

    Args:
        batch: the step's rows, after `prepare` of every feature; at least one of them holds a list.
        num_ranks: N.

    Returns:
        The metrics of `compute_rank_metrics`, among them the mean of every number in the reward function's results.
    """
    rows = batch.list_rows
    infos = [batch.logged_infos[row] for row in rows]
    return compute_rank_metrics(
        torch.tensor([info["rank_returns"] for info in infos], dtype=torch.float32),
        [batch.groups[row] for row in rows],
        num_ranks,
        collect_scalar_infos(infos),
        prompts=[batch.prompts[row] for row in rows],
    )


def assign_credit(batch: RankBatch, settings: CreditSettings, features: Sequence[CreditFeature] = ()) -> Credit:
    """Compute the units and advantages of all tokens of a step (docs/explanation/method.md 3).

    Args:
        batch: the step's rows, after `prepare` of every feature.
        settings: settings of the method.
        features: features of the run, in the order in which they apply.

    Returns:
        The credit. Its metrics are those of the features and `rank_grpo/truncated`, the share of lists without an
        end-of-sequence token.
    """
    read_ranks = reference_rank_ids if settings.preset == "reference" else token_rank_ids
    rank_ids_BT = read_ranks(batch.responses_BT, batch.mask_BT, settings.vocab_table, settings.stop_token_ids)
    credit = Credit(
        rank_ids_BT=rank_ids_BT,
        is_stop_BT=stop_token_mask(batch.responses_BT, batch.mask_BT, settings.stop_token_ids),
        advantages_BK=compute_rank_advantages(batch.returns_BK, batch.groups, norm_by_std=settings.norm_by_std),
        units_BT=torch.full_like(rank_ids_BT, -1),
        advantages_BT=torch.zeros(rank_ids_BT.shape),
        loss_mask_BT=batch.mask_BT,
    )
    for feature in features:
        feature.adjust_ranks(batch, credit)

    credit.units_BT, credit.advantages_BT = assign_units(
        credit.rank_ids_BT,
        credit.advantages_BK,
        credit.is_stop_BT,
        settings.num_ranks,
        preset=settings.preset,
        overflow_penalty=settings.overflow_penalty,
        underflow_penalty=settings.underflow_penalty,
        mask_truncated=settings.mask_truncated,
    )
    for feature in features:
        feature.adjust_tokens(batch, credit)

    ends_B = credit.is_stop_BT.any(dim=1)
    if settings.mask_truncated:
        credit.loss_mask_BT = credit.loss_mask_BT * ends_B[:, None]
    credit.metrics["rank_grpo/truncated"] = 1.0 - ends_B[batch.list_rows].float().mean().item()
    for feature in features:
        feature.log_credit(batch, credit)
    return credit


def collect_scalar_infos(infos: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Collect the numbers among the results of the reward function.

    Args:
        infos: the result for each response, at least one; all have the keys of the first.

    Returns:
        name -> one number per response.
    """
    names = [name for name, value in infos[0].items() if isinstance(value, (int, float))]
    return {name: [float(info[name]) for info in infos] for name in names}
