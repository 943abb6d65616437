"""Advantages of questions, next to those of ranks (docs/explanation/method.md 10).

A rollout has one row of the batch per turn: its questions, then its list. Shapes: B rows, T tokens, K ranks.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from convrec.rank_grpo.advantages import compute_rank_advantages


class Turns(NamedTuple):
    """The turns of a batch's rows.

    Attributes:
        uid: the prompt of each row.
        turn_B: the turn within the rollout, from 0.
        is_question_B: whether the row is a question, not a list.
        gain_B: the return (DCG) of the list that ends the row's rollout.
        asked_B: the number of questions in the row's rollout.
    """

    uid: Sequence[Any]
    turn_B: torch.Tensor
    is_question_B: torch.Tensor
    gain_B: torch.Tensor
    asked_B: torch.Tensor

    @property
    def list_groups(self) -> list[tuple[Any, int, bool]]:
        """Return each row's group for the statistics of ranks: lists of one prompt at the same turn.

        In a single group per prompt, lists that follow questions would be credited for the questions' gain again, and
        without their cost.
        """
        return list(zip(self.uid, self.turn_B.tolist(), self.is_question_B.tolist(), strict=True))


def question_advantages(turns: Turns, ask_cost: float, norm_by_std: bool = True) -> torch.Tensor:
    """Compute the advantages of questions: A = (R - mean R) / (pooled std + 1e-4), R = gain - ask_cost * questions.

    The mean is over all rollouts of the prompt that reached this turn, whether they asked in it or gave their list.
    The standard deviation (unbiased) is the one within such groups, pooled over the batch: with a standard deviation
    for each group, groups without a hit would penalise asking however small the cost.

    Args:
        turns: the batch's turns.
        ask_cost: cost of one question, in units of the return.
        norm_by_std: False only centres the returns.

    Returns:
        (B,) advantages; 0 for lists.
    """
    return_B1 = (turns.gain_B - ask_cost * turns.asked_B)[:, None]
    labels = list(zip(turns.uid, turns.turn_B.tolist(), strict=True))
    centred_B = compute_rank_advantages(return_B1, labels, norm_by_std=False)[:, 0]
    if norm_by_std:
        freedom = max(len(labels) - len(set(labels)), 1)
        centred_B = centred_B / ((centred_B.square().sum() / freedom).sqrt() + 1e-4)
    return centred_B * turns.is_question_B


def assign_questions(
    unit_ids_BT: torch.Tensor,
    advantages_BT: torch.Tensor,
    own_BT: torch.Tensor,
    turns: Turns,
    question_advantages_B: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Overwrite the units and advantages of `assign_units` in rows that are questions.

    All tokens of a question, the end of the sequence included, are unit 0.

    Args:
        unit_ids_BT: the units, -1 for tokens outside the loss.
        advantages_BT: the advantages.
        own_BT: whether the model wrote the token.
        turns: the batch's turns.
        question_advantages_B: from `question_advantages`.

    Returns:
        New units and advantages, both (B, T); other rows are unchanged.
    """
    is_question_B1 = turns.is_question_B[:, None]
    unit_ids_BT = unit_ids_BT.where(~is_question_B1, own_BT.long() - 1)
    return unit_ids_BT, advantages_BT.where(~is_question_B1, own_BT * question_advantages_B[:, None])
