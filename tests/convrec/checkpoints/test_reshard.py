"""A run continues with another number of processes (1, 2 or 4), with verl's checkpoint manager, FSDP2 and gloo."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
ROWS = 4
TOKENS = 6
VOCAB = 101  # rows of the embedding: 2 and 4 processes cannot share them evenly
BEFORE = 3  # updates before the checkpoint
AFTER = 3  # updates after it
CASES = [(4, 2), (4, 1), (1, 4)]  # processes that save, processes that resume


def make(processes: int) -> tuple[Any, Any, Any]:
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from transformers import Qwen2Config, Qwen2ForCausalLM
    from verl.trainer.config import CheckpointConfig
    from verl.utils.checkpoint.fsdp_checkpoint_manager import FSDPCheckpointManager

    from convrec.checkpoints.reshard import load_any_world_size

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = Qwen2ForCausalLM(Qwen2Config(vocab_size=VOCAB, num_key_value_heads=1, **sizes))
    mesh = init_device_mesh("cpu", (processes,), mesh_dim_names=("fsdp",))
    fully_shard(model.model.layers[0], mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step)
    manager = FSDPCheckpointManager(model, optimizer, schedule, SimpleNamespace(save_pretrained=lambda _: None),
                                    CheckpointConfig(save_contents=["model", "optimizer", "extra"]))  # fmt: skip
    load_any_world_size(manager)
    return model, manager, schedule


def train(model: Any, manager: Any, schedule: Any, processes: int, first: int, updates: int) -> list[list[float]]:
    """Train, and return [loss of all rows, gradient norm, learning rate] for each update."""
    import torch
    import torch.distributed as dist

    metrics = []
    for step in range(first, first + updates):
        tokens = torch.randint(0, VOCAB, (ROWS, TOKENS), generator=torch.Generator().manual_seed(step))
        local_tokens = tokens.chunk(processes)[dist.get_rank()]
        loss = model(input_ids=local_tokens, labels=local_tokens).loss
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).full_tensor()
        total_loss = loss.detach().clone()
        dist.all_reduce(total_loss)
        metrics.append([total_loss.item() / processes, norm.item(), schedule.get_last_lr()[0]])
        manager.optimizer.step()
        schedule.step()
        manager.optimizer.zero_grad()
    return metrics


def run_process(rank: int, processes: int, folder: Path, saved: int | None) -> None:
    """Train, save and continue (saved None), or load and continue, as one process of a group.

    Args:
        rank: of this process.
        processes: size of the group.
        folder: for checkpoints and metrics.
        saved: how many processes saved the checkpoint to load, None to start fresh.
    """
    import torch.distributed as dist

    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meet-{saved}-{processes}", rank=rank, world_size=processes
    )
    model, manager, schedule = make(processes)
    if saved is None:
        metrics = train(model, manager, schedule, processes, 0, BEFORE)
        manager.save_checkpoint(str(folder / f"by_{processes}"), global_step=BEFORE)
        metrics += train(model, manager, schedule, processes, BEFORE, AFTER)
    else:
        manager.load_checkpoint(str(folder / f"by_{saved}"))
        metrics = train(model, manager, schedule, processes, BEFORE, AFTER)
    if rank == 0:
        (folder / f"{saved}-{processes}.json").write_text(json.dumps(metrics))
    dist.barrier()  # a process that exits early breaks the others' connections
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def metrics(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[list[float]]]:
    """Return the metrics of every group. The same processes form all groups: importing verl takes seconds."""
    folder = tmp_path_factory.mktemp("groups")
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    children = [
        subprocess.Popen([sys.executable, __file__, str(folder), str(rank)], env=environment, stderr=subprocess.PIPE)
        for rank in range(max(max(case) for case in CASES))
    ]
    errors = [child.communicate(timeout=300)[1].decode() for child in children]
    assert [child.returncode for child in children] == [0] * len(children), "\n".join(errors)
    return {file.stem: json.loads(file.read_text()) for file in folder.glob("*.json")}


@pytest.mark.long
@pytest.mark.parametrize(("saved", "resumed"), CASES)
def test_metrics_match_an_uninterrupted_run(metrics: dict[str, Any], saved: int, resumed: int) -> None:
    uninterrupted = metrics["None-1"]
    assert uninterrupted[BEFORE][0] != pytest.approx(uninterrupted[0][0], rel=1e-3)  # the loss has changed
    for step, values in enumerate(metrics[f"{saved}-{resumed}"], start=BEFORE):
        assert values == pytest.approx(uninterrupted[step], rel=1e-5), f"step {step}"


if __name__ == "__main__":
    import torch

    from convrec.checkpoints.plain_load import use_plain_load

    torch.set_num_threads(1)
    use_plain_load()
    target = Path(sys.argv[1])
    own_rank = int(sys.argv[2])
    groups = [(saved_by, None) for saved_by in sorted({case[0] for case in CASES})]
    groups += [(resumed_by, saved_by) for saved_by, resumed_by in CASES]
    for size, saved_by_size in groups:
        if own_rank < size:
            run_process(own_rank, size, target, saved_by_size)
