"""Phase `kernels`: ranks of tokens and the rank-level loss on this device, at the size of a full step."""

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from convrec.lists.token_ranks import table_from_bytes, token_rank_ids
from convrec.rank_grpo.policy_loss import BatchCounts, RankLossSettings, rank_policy_loss
from recipes.selftest.checks import Machine, require, require_at_most

B = 384
T = 1024
RANKS = 20
TOKENS_OF_A_RANK = 10
NEWLINE = 1
WORDS = 2000
EOS = 0


def kernels(machine: Machine) -> dict[str, Any]:
    """Lists of `RANKS` lines in rows that are padded to T, and full rows; the loss beside itself in float64 on the CPU,
    and through torch.compile where a run would use it."""
    generator = torch.Generator().manual_seed(0)
    responses = torch.randint(2, WORDS, (B, T), generator=generator)
    length = RANKS * TOKENS_OF_A_RANK
    responses[:, TOKENS_OF_A_RANK - 1 : length : TOKENS_OF_A_RANK] = NEWLINE
    responses[:, length - 1] = EOS
    mask = (torch.arange(T) < length).long().expand(B, T).contiguous()
    expected = (torch.arange(T) // TOKENS_OF_A_RANK).masked_fill(torch.arange(T) >= length, -1).expand(B, T)
    table = table_from_bytes([b"", b"\n", *[b" word%d" % number for number in range(2, WORDS)]]).to(machine.device)
    find_ranks = partial(token_rank_ids, responses.to(machine.device), mask.to(machine.device), table, [EOS])
    require(bool((find_ranks().cpu() == expected).all()), "ranks of tokens are not those of the lines")
    figures: dict[str, Any] = {"ranks, ms": milliseconds(find_ranks)}

    advantages = torch.randn(B, RANKS, generator=generator).repeat_interleave(TOKENS_OF_A_RANK, dim=1)
    advantages = torch.nn.functional.pad(advantages, (0, T - length))
    old, new, reference = (-3 + 0.05 * torch.randn(B, T, generator=generator) for _ in range(3))

    def loss(device: str, dtype: torch.dtype, function: Callable[..., Any]) -> tuple[float, torch.Tensor]:
        log_prob = new.to(device, dtype).requires_grad_()
        value, _ = function(
            log_prob,
            advantages.to(device, dtype),
            expected.to(device),
            RankLossSettings(RANKS, kl_coef=0.001),
            BatchCounts(B),
            old_log_prob_BT=old.to(device, dtype),
            ref_log_prob_BT=reference.to(device, dtype),
        )
        value.backward()
        assert log_prob.grad is not None
        return value.item(), log_prob.grad.double().cpu()

    wanted, wanted_gradient = loss("cpu", torch.float64, rank_policy_loss)
    functions: dict[str, Callable[..., Any]] = {"eager": rank_policy_loss}
    if os.environ.get("TORCH_COMPILE_DISABLE") == "1":
        figures["left out"] = "torch.compile: runs on a CPU have it off"
    else:
        functions["compiled"] = torch.compile(rank_policy_loss)
    for name, function in functions.items():
        value, gradient = loss(machine.device, torch.float32, function)
        require_at_most(f"loss, {name}, difference to float64", abs(value - wanted), 1e-4)
        difference = float((gradient - wanted_gradient).abs().max() / wanted_gradient.abs().max())
        require_at_most(f"gradient, {name}, relative difference to float64", difference, 1e-3)
        figures[f"loss, {name}, ms with copies"] = milliseconds(loss, machine.device, torch.float32, function)
    return figures


def milliseconds(call: Callable[..., Any], *arguments: Any) -> float:
    """Of a call, after one that does not count."""
    from torch.utils.benchmark import Timer  # here: it warns where there is no CUDA

    return round(Timer("call(*arguments)", globals={"call": call, "arguments": arguments}).timeit(5).median * 1e3, 3)
