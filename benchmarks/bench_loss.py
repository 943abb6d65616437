"""Ranks of tokens, and forward plus backward of the rank-level loss, against verl's losses. Prints one JSON object.

python benchmarks/bench_loss.py [--device cpu|cuda] [--dtype float32|bfloat16] [--threads 1] [--repeats 15] [--compile]

A step at full scale: B = 384 responses of up to T = 1,024 tokens in 20 ranks, lists of 180 to 240 tokens; the rest is
padding, as in verl's batch; segmentation also where no row has padding, beside a mere count of newlines. Losses get the
same log-probs (old, new, reference) and masks; each is timed with what a step needs of it: policy term, k3 KL, metrics,
backward. Milliseconds are medians of --repeats with the quartiles; memory is the peak above what is there before, in
B T tensors of 4 bytes; `operations` are torch's that are no mere views: kernels, on a GPU, which at this size takes
longer to launch than to run them. `floor`: reading the inputs and writing the gradient once, at the speed of a copy of
the same tensors. verl's losses are left out where verl is not installed; --compile adds the rank-level loss through
torch.compile.
"""

import argparse
import importlib.util
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.machine import print_report
from benchmarks.meters import is_view, measure_peak, measure_seconds, summarise
from convrec.lists.token_ranks import VocabTable, reference_rank_ids, stop_token_mask, table_from_bytes, token_rank_ids
from convrec.rank_grpo.advantages import assign_units
from convrec.rank_grpo.policy_loss import BatchCounts, RankLossSettings, compute_rank_policy_loss

B, T, RANKS, KL = 384, 1024, 20, 0.001
NEWLINE, WORDS = 1, 2000  # token ids: 0 ends, 1 is a new line, the others are words
EOS = [0]


def make_batch(
    device: str, num_lists: int = B, num_ranks: int = RANKS, num_tokens: int = T
) -> tuple[torch.Tensor, torch.Tensor, VocabTable]:
    """Return (responses (B, T), response mask (B, T), the vocabulary's table); a rank has 8 to 11 tokens."""
    generator = torch.Generator().manual_seed(3407)
    responses = torch.randint(2, WORDS, (num_lists, num_tokens), generator=generator)
    mask = torch.zeros(num_lists, num_tokens, dtype=torch.long)
    for row in range(num_lists):
        lengths = torch.randint(8, 12, (num_ranks,), generator=generator)
        ends = lengths.cumsum(0)
        responses[row, ends - 1] = NEWLINE
        responses[row, ends[-1]] = EOS[0]
        mask[row, : ends[-1] + 1] = 1
    table = table_from_bytes([b"", b"\n", *[b" word%d" % number for number in range(2, WORDS)]])
    return responses.to(device), mask.to(device), table.to(device)


def make_full_rows(responses: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The same number of lines, but each row has T tokens of text: (responses, mask)."""
    full = torch.where(responses == EOS[0], NEWLINE, responses)
    full[:, -1] = EOS[0]
    return full, torch.ones_like(full)


def timed(calls: dict[str, Callable[[], Any]], repeats: int, device: str) -> dict[str, list[float]]:
    """Return the milliseconds of each call, all of them in each round: they meet the same moments of the machine."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for round_ in range(repeats + 3):
        for name, call in calls.items():
            seconds = measure_seconds(call, device)
            if round_ >= 3:  # warm
                times[name].append(seconds * 1e3)
    return times


class OperationCount(TorchDispatchMode):
    """Counts torch's operations that are no mere views."""

    count = 0

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not is_view(operation)
        return operation(*args, **(kwargs or {}))


def operations(call: Callable[[], Any]) -> int:
    with OperationCount() as counted:
        call()
    return counted.count


def verls_losses(
    log_prob: torch.Tensor, reference: torch.Tensor, batch: dict[str, torch.Tensor], tokens: int
) -> dict[str, Callable[[], None]]:
    """verl's token-level and sequence-level losses on the same tensors."""
    from verl.trainer.ppo.core_algos import (
        agg_loss,
        compute_policy_loss_gspo,
        compute_policy_loss_vanilla,
        kl_penalty,
    )
    from verl.workers.config import FSDPActorConfig

    config = FSDPActorConfig(strategy="fsdp2", rollout_n=8, ppo_micro_batch_size_per_gpu=B, clip_ratio_c=3.0)
    config.global_batch_info.update(dp_size=1, batch_num_tokens=tokens, global_batch_size=B)

    def run(policy_loss: Callable[..., Any], with_kl: bool) -> None:
        log_prob.grad = None
        loss, _ = policy_loss(log_prob=log_prob, config=config, **batch)
        if with_kl:
            divergence = kl_penalty(logprob=log_prob, ref_logprob=reference, kl_penalty="low_var_kl")
            loss = loss + KL * agg_loss(
                loss_mat=divergence,
                loss_mask=batch["response_mask"],
                loss_agg_mode="token-mean",
                **config.global_batch_info,
            )
        loss.backward()

    return {
        "vanilla": lambda: run(compute_policy_loss_vanilla, True),
        "gspo": lambda: run(compute_policy_loss_gspo, True),
        "vanilla without KL": lambda: run(compute_policy_loss_vanilla, False),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"], help="of the log-probs")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--compile", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    device, dtype = options.device, getattr(torch, options.dtype)

    responses, mask, table = make_batch(device)
    full_responses, full_mask = make_full_rows(responses)
    ranks = token_rank_ids(responses, mask, table, EOS)
    stop = stop_token_mask(responses, mask, EOS)
    generator = torch.Generator().manual_seed(1)
    compute_rank_advantages = torch.randn(B, RANKS, generator=generator).to(device)
    units, advantages = assign_units(ranks, compute_rank_advantages, stop, RANKS)
    new = (-torch.rand(B, T, generator=generator) * 2).to(device, dtype)
    old = new + 0.05 * torch.randn(B, T, generator=generator).to(device, dtype)
    reference = new + 0.1 * torch.randn(B, T, generator=generator).to(device, dtype)
    log_prob = new.clone().requires_grad_()
    tokens = int(mask.sum())

    def ours(
        with_kl: bool, old_log_prob: torch.Tensor | None, loss_of: Callable[..., Any] = compute_rank_policy_loss
    ) -> None:
        log_prob.grad = None
        loss, _ = loss_of(
            log_prob,
            advantages,
            units,
            RankLossSettings(RANKS, kl_coef=KL if with_kl else 0.0),
            BatchCounts(B),
            old_log_prob_BT=old_log_prob,
            ref_log_prob_BT=reference if with_kl else None,
        )
        loss.backward()

    losses: dict[str, Callable[[], None]] = {
        "rank_grpo, mu 1": lambda: ours(True, None),
        "rank_grpo": lambda: ours(True, old),
        "rank_grpo without KL": lambda: ours(False, old),
    }
    if options.compile:
        compiled = torch.compile(compute_rank_policy_loss)
        losses["rank_grpo compiled"] = lambda: ours(True, old, compiled)
    if importlib.util.find_spec("verl"):
        batch = {"old_log_prob": old, "advantages": advantages, "response_mask": mask}
        losses |= verls_losses(log_prob, reference, batch, tokens)
    report: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if device == "cuda" else f"cpu, {options.threads} thread(s)",
        "dtype": options.dtype,
        "B, T, tokens": [B, T, tokens],
    }
    # log-probs new, old, reference and the gradient; advantages and unit ids are read as well
    touched = [new, old, reference, new, advantages, units]
    copies = [torch.empty_like(tensor) for tensor in touched]
    calls = {
        "segmentation": lambda: token_rank_ids(responses, mask, table, EOS),
        "segmentation, full rows": lambda: token_rank_ids(full_responses, full_mask, table, EOS),
        "newlines counted, full rows": lambda: reference_rank_ids(full_responses, full_mask, table, EOS),
        **losses,
        "copy": lambda: [a.copy_(b) for a, b in zip(copies, touched, strict=True)],
    }
    times = timed(calls, options.repeats, device)
    for name in [name for name in calls if name != "copy"]:
        report[name] = summarise(times[name])
        if name in losses:
            report[name]["peak"] = round(measure_peak(losses[name], device) / (B * T * 4), 2)  # in tensors of B x T
            if "compiled" not in name:
                report[name]["operations"] = operations(losses[name])
    report["floor"] = {
        "ms": round(statistics.median(times["copy"]) / 2, 3),
        "bytes": sum(tensor.nbytes for tensor in touched),
    }
    for name in ("vanilla", "gspo"):
        if name in times:
            ratios = [ours / theirs for ours, theirs in zip(times["rank_grpo"], times[name], strict=True)]
            report[f"times {name}"] = round(statistics.median(ratios), 3)
    report["times floor"] = round(report["rank_grpo"]["ms"] / report["floor"]["ms"], 2)
    print_report(report)


if __name__ == "__main__":
    main()
