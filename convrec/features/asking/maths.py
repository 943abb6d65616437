"""What a question earns beside the ranks of lists (docs/explanation/method.md 10).

A rollout has a row of the batch for each of its turns: questions, then its list. Shapes: B rows, T tokens, K ranks.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from convrec.rank_grpo.advantages import rank_advantages


class Turns(NamedTuple):
    """uid: of the prompt. turn_B: from 0. is_question_B: bool. gain_B: the return DCG of the list with which the row's
    rollout ends. asked_B: the questions of the row's rollout."""

    uid: Sequence[Any]
    turn_B: torch.Tensor
    is_question_B: torch.Tensor
    gain_B: torch.Tensor
    asked_B: torch.Tensor

    @property
    def list_groups(self) -> list[tuple[Any, int, bool]]:
        """The label of each row for the statistics of ranks: lists of one prompt that stand at the same turn.

        In one group of all, lists behind questions would earn for what those brought: a second time, without the cost.
        """
        return list(zip(self.uid, self.turn_B.tolist(), self.is_question_B.tolist(), strict=True))


def question_advantages(turns: Turns, ask_cost: float, norm_by_std: bool = True) -> torch.Tensor:
    """(B,) A = (R - mean R) / (pooled std + 1e-4), R = gain - ask_cost * questions; 0 of lists.

    The mean is over all rollouts of the prompt that came to this turn, whether they asked in it or listed. The standard
    deviation (unbiased) is that within such groups, over the whole batch: by their own, groups without a hit would
    count against asking however small the cost. norm_by_std: False centres only.
    """
    return_B1 = (turns.gain_B - ask_cost * turns.asked_B)[:, None]
    labels = list(zip(turns.uid, turns.turn_B.tolist(), strict=True))
    centred_B = rank_advantages(return_B1, labels, norm_by_std=False)[:, 0]
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
    """Units and advantages of `assign_units` with the rows of questions overwritten: all tokens of a question, its end
    included, are unit 0. own_BT: the model's tokens."""
    is_question_B1 = turns.is_question_B[:, None]
    unit_ids_BT = unit_ids_BT.where(~is_question_B1, own_BT.long() - 1)
    return unit_ids_BT, advantages_BT.where(~is_question_B1, own_BT * question_advantages_B[:, None])
