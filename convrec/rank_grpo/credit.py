"""From a step's lists to the credit of their tokens: the method in the order in which it is computed.

    RankBatch                      what the rollout workers wrote: tokens, and what the reward returned
      -> rank_advantages           returns of each rank, compared within the rollouts of a prompt
      -> assign_units              tokens to units, units to advantages
      -> Credit                    what the policy loss trains on

A run may turn on features (convrec.features), each of which changes one of these results. The paper's setting has none.

Shapes: B sequences, T response tokens, K = N ranks. The definitions are docs/explanation/method.md, sections 1 to 3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from convrec.lists.token_ranks import VocabTable, reference_rank_ids, stop_token_mask, token_rank_ids
from convrec.rank_grpo.advantages import Preset, assign_units, rank_advantages
from convrec.rank_grpo.step_metrics import rank_metrics

SAMPLED_TOKENS = "rank_grpo/sampled_tokens"
# Stands for the rollout's log-prob of a token that the rollout did not sample (a repair wrote it, or changed the text
# before it). No log-prob is above 0. Readers ask `is_sampled`.
NOT_SAMPLED = 1.0
# Stands for the log-prob of a token that the rollout sampled without reporting how likely it was
# (`convrec.rollout_check_share`). Readers ask `has_log_prob`.
NOT_REPORTED = 2.0


def is_sampled(rollout_log_probs: torch.Tensor) -> torch.Tensor:
    """Return where the rollout sampled the token itself; same shape, bool."""
    return rollout_log_probs != NOT_SAMPLED


def has_log_prob(rollout_log_probs: torch.Tensor) -> torch.Tensor:
    """Return where the rollout sampled the token and reported its log-prob; same shape, bool."""
    return rollout_log_probs < NOT_SAMPLED


@dataclass
class RankBatch:
    """The rows of one training step.

    Attributes:
        prompts: (B,) label of each row's prompt. A padding row has a label of its own, so that padding rows do not form
            a group.
        is_padding_B: rows that fill the batch up to a multiple of its processes.
        extra_fields: (B,) what the rollout noted about each response.
        responses_BT: token ids.
        mask_BT: 1 for a response token, 0 for padding.
        optional_BT: further fields that a feature asked for, by name.
        groups: (B,) label of the rows whose returns are compared with each other; the prompts unless a feature
            separates them further.
        is_list_B: rows that hold a list, and are counted in what is logged about lists.
        logged_infos: (B,) what the reward function returned for the list as the policy wrote it.
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
        """(B,) what the reward function returned for the response that trains."""
        return [extra["reward_extra_info"] for extra in self.extra_fields]

    @property
    def returns_BK(self) -> torch.Tensor:
        """Rank returns of the responses that train, float32."""
        return torch.tensor([info["rank_returns"] for info in self.infos], dtype=torch.float32)

    @property
    def list_rows(self) -> list[int]:
        """Indices of the rows that hold a list."""
        return self.is_list_B.nonzero().flatten().tolist()


@dataclass
class Credit:
    """What the loss trains a step's tokens on.

    Attributes:
        rank_ids_BT: 0-based rank of each token, -1 for none.
        is_stop_BT: True at the end-of-sequence token of a response that was not cut off.
        advantages_BK: advantage of each rank.
        units_BT: unit of each token, -1 for none (see convrec.rank_grpo.advantages).
        advantages_BT: advantage of each token, 0 where it has no unit.
        loss_mask_BT: 1 for the tokens that the loss counts.
        metrics: what the step logs about its credit.
    """

    rank_ids_BT: torch.Tensor
    is_stop_BT: torch.Tensor
    advantages_BK: torch.Tensor
    units_BT: torch.Tensor
    advantages_BT: torch.Tensor
    loss_mask_BT: torch.Tensor
    metrics: dict[str, float] = field(default_factory=dict)

    def returns_BT(self, returns_BK: torch.Tensor) -> torch.Tensor:
        """Return of each token's rank; 0 for a token without one. Only logged."""
        num_ranks = returns_BK.shape[1]
        is_rank_BT = (self.rank_ids_BT >= 0) & (self.rank_ids_BT < num_ranks)
        return returns_BK.gather(1, self.rank_ids_BT.clamp(0, num_ranks - 1)) * is_rank_BT


class CreditFeature(Protocol):
    """The part of a feature that changes the credit; convrec.features.feature.Feature has hooks that do nothing."""

    def prepare(self, batch: RankBatch) -> None:
        """Change the groups, or what is logged, before anything is computed."""

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
        num_ranks: N, items asked for.
        vocab_table: what the bytes of each token do to the count of lines.
        stop_token_ids: ids that end a response.
        preset: "paper" or "reference".
        norm_by_std: whether advantages are divided by the standard deviation of their group.
        overflow_penalty: advantage of an item after the N-th.
        underflow_penalty: advantage of the end of a list shorter than N.
        mask_truncated: whether responses that were cut off train nothing.
    """

    num_ranks: int
    vocab_table: VocabTable
    stop_token_ids: Sequence[int]
    preset: Preset = "paper"
    norm_by_std: bool = True
    overflow_penalty: float = -0.1
    underflow_penalty: float = -0.1
    mask_truncated: bool = False


def list_metrics(batch: RankBatch, num_ranks: int) -> dict[str, float]:
    """Return what a step logs about its lists as the policy wrote them, whatever the algorithm."""
    rows = batch.list_rows
    infos = [batch.logged_infos[row] for row in rows]
    return rank_metrics(
        torch.tensor([info["rank_returns"] for info in infos], dtype=torch.float32),
        [batch.groups[row] for row in rows],
        num_ranks,
        scalar_infos(infos),
        prompts=[batch.prompts[row] for row in rows],
    )


def assign_credit(batch: RankBatch, settings: CreditSettings, features: Sequence[CreditFeature] = ()) -> Credit:
    """Return the units and advantages of all tokens of a step (docs/explanation/method.md 3).

    Args:
        batch: after `prepare` of every feature.
        settings: of the method.
        features: that the run turned on, in the order in which they apply.
    """
    read_ranks = reference_rank_ids if settings.preset == "reference" else token_rank_ids
    rank_ids_BT = read_ranks(batch.responses_BT, batch.mask_BT, settings.vocab_table, settings.stop_token_ids)
    credit = Credit(
        rank_ids_BT=rank_ids_BT,
        is_stop_BT=stop_token_mask(batch.responses_BT, batch.mask_BT, settings.stop_token_ids),
        advantages_BK=rank_advantages(batch.returns_BK, batch.groups, norm_by_std=settings.norm_by_std),
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


def scalar_infos(infos: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Return the numbers among what the reward function returned: {name: one number per response}."""
    names = [name for name, value in infos[0].items() if isinstance(value, (int, float))]
    return {name: [float(info[name]) for info in infos] for name in names}
