"""Phase `kernels`: token ranks and the rank-level loss on this device, at the size of a full step."""

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from convrec.lists.token_ranks import table_from_bytes, token_rank_ids
from convrec.rank_grpo.policy_loss import BatchCounts, RankLossSettings, compute_rank_policy_loss
from recipes.selftest.checks import Machine, require, require_at_most

B = 384
T = 1024
RANKS = 20
TOKENS_OF_A_RANK = 10
NEWLINE = 1
WORDS = 2000
EOS = 0


def check_kernels(machine: Machine) -> dict[str, Any]:
    """Check token ranks on lists of `RANKS` lines padded to T, and the loss against float64 on the CPU.

    The loss is also checked through torch.compile, if runs use that here.
    """
    generator = torch.Generator().manual_seed(0)
    responses = torch.randint(2, WORDS, (B, T), generator=generator)
    length = RANKS * TOKENS_OF_A_RANK
    responses[:, TOKENS_OF_A_RANK - 1 : length : TOKENS_OF_A_RANK] = NEWLINE
    responses[:, length - 1] = EOS
    mask = (torch.arange(T) < length).long().expand(B, T).contiguous()
    expected = (torch.arange(T) // TOKENS_OF_A_RANK).masked_fill(torch.arange(T) >= length, -1).expand(B, T)
    table = table_from_bytes([b"", b"\n", *[b" word%d" % number for number in range(2, WORDS)]]).to(machine.device)
    find_ranks = partial(token_rank_ids, responses.to(machine.device), mask.to(machine.device), table, [EOS])
    require(bool((find_ranks().cpu() == expected).all()), "token ranks differ from the lines of the lists")
    figures: dict[str, Any] = {"ranks, ms": measure_milliseconds(find_ranks)}

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

    expected_loss, expected_gradient = loss("cpu", torch.float64, compute_rank_policy_loss)
    functions: dict[str, Callable[..., Any]] = {"eager": compute_rank_policy_loss}
    if os.environ.get("TORCH_COMPILE_DISABLE") == "1":
        figures["left out"] = "torch.compile: runs on a CPU do not use it"
    else:
        functions["compiled"] = torch.compile(compute_rank_policy_loss)
    for name, function in functions.items():
        value, gradient = loss(machine.device, torch.float32, function)
        require_at_most(f"loss, {name}, difference to float64", abs(value - expected_loss), 1e-4)
        difference = float((gradient - expected_gradient).abs().max() / expected_gradient.abs().max())
        require_at_most(f"gradient, {name}, relative difference to float64", difference, 1e-3)
        figures[f"loss, {name}, ms with copies"] = measure_milliseconds(loss, machine.device, torch.float32, function)
    return figures


def measure_milliseconds(call: Callable[..., Any], *arguments: Any) -> float:
    """Measure the median milliseconds of a call, after a warm-up."""
    from torch.utils.benchmark import Timer  # not at module level: it warns without CUDA

    return round(Timer("call(*arguments)", globals={"call": call, "arguments": arguments}).timeit(5).median * 1e3, 3)
