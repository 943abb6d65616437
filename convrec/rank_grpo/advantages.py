"""Rank returns -> rank-relative advantages -> units of tokens (docs/explanation/method.md 3; paper, section 4).

A *unit* is a set of tokens of one response with one importance ratio and one term in the loss: the tokens of an item,
or a premature stop token. Unit ids: 0..N-1 the ranks, N the premature stop token, N+1.. overflow items, -1 no unit.

Shapes: B sequences, T response tokens, K = N ranks, G groups of rollouts of one prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch

from convrec.base.errors import UserError

Preset = Literal["paper", "reference"]


def _group_index(uid: Sequence[Any], device: torch.device) -> tuple[torch.Tensor, int]:
    """Return the group number of each sequence (B,), in order of first appearance, and the number of groups."""
    number: dict[Any, int] = {}
    index = [number.setdefault(u, len(number)) for u in uid]
    return torch.tensor(index, dtype=torch.long, device=device), len(number)


def _group_range(values_BK: torch.Tensor, group_B: torch.Tensor, num_groups: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the minimum and the maximum of each group at each rank, both (G, K)."""
    index_BK = group_B[:, None].expand_as(values_BK)
    zeros_GK = values_BK.new_zeros(num_groups, values_BK.shape[1])
    low_GK = zeros_GK.scatter_reduce(0, index_BK, values_BK, "amin", include_self=False)
    high_GK = zeros_GK.scatter_reduce(0, index_BK, values_BK, "amax", include_self=False)
    return low_GK, high_GK


def find_zero_std_ranks(returns_BK: torch.Tensor, uid: Sequence[Any]) -> torch.Tensor:
    """Find the ranks that do not train, because all returns of a group are equal.

    Args:
        returns_BK: rank returns.
        uid: B hashable group labels, in any order.

    Returns:
        (G, K) bool, True where the returns are equal; groups in order of first appearance.
    """
    group_B, num_groups = _group_index(uid, returns_BK.device)
    low_GK, high_GK = _group_range(returns_BK, group_B, num_groups)
    return low_GK == high_GK


def compute_rank_advantages(
    returns_BK: torch.Tensor, uid: Sequence[Any], norm_by_std: bool = True, eps: float = 1e-4
) -> torch.Tensor:
    """Compare the returns of each rank within the rollouts of a prompt.

        A[i,k] = (r[i,k] - mean_i r[i,k]) / (std_i r[i,k] + eps),  mean and std over the rollouts with the same uid

    Args:
        returns_BK: rank returns; 0 where a response has no such rank, so short lists enter the statistics with 0.
        uid: B hashable group labels, in any order.
        norm_by_std: divide by the std; False only subtracts the mean.
        eps: added to the std (unbiased, ddof 1).

    Returns:
        Advantages (B, K) in the dtype of `returns_BK`; 0 for groups of one sample or with equal returns.

    Raises:
        ValueError: the number of labels is not B.
    """
    if returns_BK.ndim != 2 or len(uid) != returns_BK.shape[0]:
        raise ValueError(f"returns_BK has shape {tuple(returns_BK.shape)}, but there are {len(uid)} uids")
    group_B, num_groups = _group_index(uid, returns_BK.device)
    # The statistics are in float64, because a rounding error in the mean must not become an advantage.
    values_BK = returns_BK.detach().double()
    count_G1 = torch.bincount(group_B)[:, None].double()
    sums_GK = values_BK.new_zeros(num_groups, values_BK.shape[1])
    mean_GK = sums_GK.index_add(0, group_B, values_BK) / count_G1
    centred_BK = values_BK - mean_GK[group_B]
    if norm_by_std:
        variance_GK = sums_GK.index_add(0, group_B, centred_BK.square()) / (count_G1 - 1).clamp(min=1)
        centred_BK = centred_BK / (variance_GK.sqrt()[group_B] + eps)
    low_GK, high_GK = _group_range(values_BK, group_B, num_groups)
    return centred_BK.masked_fill((low_GK == high_GK)[group_B], 0.0).to(returns_BK.dtype)


def assign_units(
    rank_ids_BT: torch.Tensor,
    rank_advantages_BK: torch.Tensor,
    stop_mask_BT: torch.Tensor,
    num_ranks: int,
    preset: Preset = "paper",
    overflow_penalty: float = -0.1,
    underflow_penalty: float = -0.1,
    end_of_list_reward: float = 0.1,
    mask_truncated: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Assign each token to a unit, and each token the advantage of its unit.

    Preset "paper", with ranks from `token_rank_ids`: each of the first N overflow items is a separate unit with
    `overflow_penalty`; later ones have no unit. The stop token of a list shorter than N is a separate unit with
    `underflow_penalty`; in any other list it belongs to the last item.

    Preset "reference", with ranks from `reference_rank_ids`: all overflow tokens share one unit. The stop token shares
    the unit of its rank, and so its ratio, but its advantage is `end_of_list_reward` if the list has exactly N items,
    and `underflow_penalty` if it is shorter.

    Args:
        rank_ids_BT: 0-based rank of each token, -1 for none; the stop token has the last started rank, -1 in an empty
            list.
        rank_advantages_BK: the result of `compute_rank_advantages`; K = num_ranks.
        stop_mask_BT: True at the end-of-sequence token of a response; a row without one was truncated.
        num_ranks: N.
        preset: "paper" or "reference".
        overflow_penalty: advantage of an item after the N-th.
        underflow_penalty: advantage of the stop token of a list shorter than N.
        end_of_list_reward: advantage of the stop token of a list of exactly N items; "reference" only.
        mask_truncated: truncated rows have no units.

    Returns:
        unit_ids_BT (long, -1 for none), and advantages_BT (dtype of `rank_advantages_BK`, 0 where the unit is -1).

    Raises:
        UserError: the preset is unknown.
        ValueError: K is not num_ranks.
    """
    if rank_advantages_BK.shape[1] != num_ranks:
        raise ValueError(f"rank_advantages_BK has {rank_advantages_BK.shape[1]} ranks, num_ranks is {num_ranks}")
    rank_ids_BT = rank_ids_BT.long()
    stop_mask_BT = stop_mask_BT.bool()
    # The largest id of any token counts: in "reference" a stop token after a final newline is an item.
    num_items_B1 = rank_ids_BT.max(dim=1, keepdim=True).values + 1
    overflow_BT = rank_ids_BT >= num_ranks

    gathered_BT = rank_advantages_BK.gather(1, rank_ids_BT.clamp(0, num_ranks - 1))
    advantages_BT = gathered_BT.masked_fill(overflow_BT, overflow_penalty)
    short_stop_BT = stop_mask_BT & (num_items_B1 < num_ranks)
    advantages_BT = advantages_BT.masked_fill(short_stop_BT, underflow_penalty)
    if preset == "paper":
        unit_ids_BT = torch.where(overflow_BT, rank_ids_BT + 1, rank_ids_BT).masked_fill(short_stop_BT, num_ranks)
        # a list that never ends must not dominate the batch, so its overflow has at most the weight of its ranks
        unit_ids_BT = unit_ids_BT.masked_fill(rank_ids_BT >= 2 * num_ranks, -1)
    elif preset == "reference":
        unit_ids_BT = rank_ids_BT.masked_fill(overflow_BT, num_ranks + 1)
        exact_stop_BT = stop_mask_BT & (num_items_B1 == num_ranks)
        advantages_BT = advantages_BT.masked_fill(exact_stop_BT, end_of_list_reward)
    else:
        raise UserError("method.unknown-preset", f"preset={preset!r}: expected 'paper' or 'reference'")

    if mask_truncated:
        unit_ids_BT = unit_ids_BT.masked_fill(~stop_mask_BT.any(dim=1, keepdim=True), -1)
    return unit_ids_BT, advantages_BT.masked_fill(unit_ids_BT < 0, 0.0)
