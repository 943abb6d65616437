"""Loss and gradient of a batch depend neither on micro-batches nor on data-parallel processes (gloo, FSDP2)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from convrec.rank_grpo.advantages import assign_units, rank_advantages
from convrec.rank_grpo.loss_metrics import finish_policy_metrics
from convrec.rank_grpo.policy_loss import BatchCounts, RankLossSettings, rank_policy_loss

VOCAB, WIDTH, N, B, T = 17, 8, 3, 8, 14


def make_model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Embedding(VOCAB, WIDTH), torch.nn.Linear(WIDTH, VOCAB)).double()


def make_batch():
    """Two groups of four lists: exact, short, overflowing and truncated; very uneven lengths, so wrong weights show."""
    g = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, VOCAB, (B, T + 1), generator=g)
    ranks = torch.full((B, T), -1)
    rows = [
        [0, 0, 0, 0, 0, 1, 2, 2], [0, 0, 0], [0, 1, 1, 2, 3, 3, 4, 4, 4], [0, 0, 1],
        [0, 1, 2], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 2, 2], [0, 1, 1, 1, 2, 2, 2], [-1, 0, 0, 0, 1, 1],
    ]  # fmt: skip
    stop = torch.zeros(B, T, dtype=torch.bool)
    for b, row in enumerate(rows):
        ranks[b, : len(row)] = torch.tensor(row)
        stop[b, len(row) - 1] = b not in (3, 5)
    returns = torch.rand(B, N, generator=g, dtype=torch.float64)
    units, advantages = assign_units(ranks, rank_advantages(returns, [0, 0, 0, 0, 1, 1, 1, 1]), stop, N)
    noise = 0.1 * torch.randn(2, B, T, generator=g, dtype=torch.float64)
    return tokens, units, advantages, noise


def train_step(model, rows, micro_batches, dp_size):
    """Backward of this process's rows; returns its share of the loss and its metric parts."""
    tokens, units, advantages, noise = make_batch()
    with torch.no_grad():
        start = log_probs(make_model(), tokens)  # the old and reference policies, near the model's own
    loss_sum, parts = 0.0, []
    for chunk in rows.chunk(micro_batches):
        loss, part = rank_policy_loss(
            log_probs(model, tokens[chunk]),
            advantages[chunk],
            units[chunk],
            RankLossSettings(N, kl_coef=0.05),
            BatchCounts(B, dp_size=dp_size),
            old_log_prob_BT=(start + noise[0])[chunk],
            ref_log_prob_BT=(start + noise[1])[chunk],
        )
        loss.backward()
        loss_sum += loss.item()
        parts.append(part)
    return loss_sum, parts


def log_probs(model, tokens):
    logits = model(tokens[:, :-1])
    return logits.log_softmax(-1).gather(-1, tokens[:, 1:, None])[..., 0]


def worker(process, world, micro_batches, folder):
    """What one data-parallel process does; this file is its program."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=process, world_size=world)
    model = make_model()
    fully_shard(model, mesh=init_device_mesh("cpu", (world,)))  # averages gradients, which is what dp_size undoes
    loss, parts = train_step(model, torch.arange(B).chunk(world)[process], micro_batches, world)
    grads = [p.grad.full_tensor() for p in model.parameters()]
    torch.save((loss, parts, grads), f"{folder}/result{process}.pt")
    dist.destroy_process_group()


def single(micro_batches):
    model = make_model()
    loss, parts = train_step(model, torch.arange(B), micro_batches, dp_size=1)
    return loss, finish_policy_metrics(parts), [p.grad for p in model.parameters()]


@pytest.mark.parametrize("micro_batches", [2, 4])
def test_micro_batches_change_nothing(micro_batches):
    loss, metrics, grads = single(1)
    assert max(g.abs().max() for g in grads) > 1e-3  # there is something to compare
    other_loss, other_metrics, other_grads = single(micro_batches)
    assert other_loss == pytest.approx(loss, abs=1e-6)
    assert other_metrics == pytest.approx(metrics)
    torch.testing.assert_close(other_grads, grads, rtol=0, atol=1e-6)


def test_two_data_parallel_processes_change_nothing(tmp_path):
    loss, metrics, grads = single(1)
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    commands = [[sys.executable, __file__, str(process), "2", "2", str(tmp_path)] for process in range(2)]
    processes = [subprocess.Popen(command, env=environment) for command in commands]
    try:
        assert [process.wait(timeout=300) for process in processes] == [0, 0]
    finally:
        for process in processes:
            process.kill()
    results = [torch.load(tmp_path / f"result{process}.pt") for process in range(2)]
    # losses carry dp_size and are averaged over processes; the other values are quotients, which need no such care
    assert sum(result[0] for result in results) / 2 == pytest.approx(loss, abs=1e-6)
    both = finish_policy_metrics([part for result in results for part in result[1]])
    unscaled = {name: value for name, value in both.items() if name not in ("policy_loss", "kl_loss")}
    assert unscaled == pytest.approx({name: metrics[name] for name in unscaled})
    assert both["policy_loss"] / 2 == pytest.approx(metrics["policy_loss"])
    for result in results:
        for ours, whole in zip(result[2], grads, strict=True):
            torch.testing.assert_close(ours, whole, rtol=0, atol=1e-6)


if __name__ == "__main__":
    worker(*map(int, sys.argv[1:4]), sys.argv[4])
