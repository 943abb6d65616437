"""Load a checkpoint of W processes with another number of processes, by resharding verl's FSDP2 shards.

Each process maps the W files of model and optimizer into memory and copies its own rows of every tensor. Processes
exchange no data, and no file is written.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.distributed.tensor.placement_types import Replicate, Shard

from convrec.base.errors import UserError
from convrec.checkpoints.files import read_world_size


def load_any_world_size(manager: Any) -> None:
    """Let a checkpoint manager also load checkpoints of another number of processes.

    Args:
        manager: verl's FSDPCheckpointManager, whose `load_checkpoint` is replaced.
    """
    load_same_world_size = manager.load_checkpoint

    def load_checkpoint(local_path: str | None, *args: Any, **kwargs: Any) -> None:
        saved_world_size = read_world_size(Path(local_path)) if local_path else None
        if saved_world_size in (None, manager.world_size):
            load_same_world_size(local_path, *args, **kwargs)
        else:
            load_resharded(manager, Path(local_path or ""), saved_world_size)

    manager.load_checkpoint = load_checkpoint


def load_resharded(manager: Any, folder: Path, saved_world_size: int) -> None:
    """Load a checkpoint as verl's `load_checkpoint` does, from the shards of another number of processes.

    Every process of the run must call it: it ends with a barrier.

    Args:
        manager: verl's FSDPCheckpointManager in this process.
        folder: the folder of the shards.
        saved_world_size: number of processes that wrote them.

    Raises:
        UserError: a tensor was neither sharded nor replicated.
    """
    if manager.should_load_model:
        _load_model(manager, _map_shards(folder, "model", saved_world_size))
    if manager.should_load_optimizer:
        _load_optimizer(manager.optimizer, _map_shards(folder, "optim", saved_world_size))
    if manager.should_load_extra:
        _load_extra(manager, folder, saved_world_size)
    torch.distributed.barrier()


def _load_model(manager: Any, shards: list[dict[str, Any]]) -> None:
    """Load all tensors in the shards; with LoRA, verl may have saved only the adapter's."""
    model_state = manager.model.state_dict()
    state = {name: _reshard_value(name, [shard[name] for shard in shards], model_state.get(name)) for name in shards[0]}
    manager.model.load_state_dict(state, strict=not manager.is_lora_only_state_dict(state))


def _load_optimizer(optimizer: Any, shards: list[dict[str, Any]]) -> None:
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state: dict[int, dict[str, Any]] = {}
    for index, values in shards[0]["state"].items():
        state[index] = {
            key: _reshard_value(
                f"{key} of parameter {index}", [shard["state"][index][key] for shard in shards], parameters[index]
            )
            for key in values
        }
    optimizer.load_state_dict({"state": state, "param_groups": shards[0]["param_groups"]})


def _load_extra(manager: Any, folder: Path, saved_world_size: int) -> None:
    """Load the learning-rate schedule, and the random state if a process of this rank saved one."""
    has_saved_state = manager.rank < saved_world_size
    source = manager.rank if has_saved_state else 0
    extra = torch.load(folder / f"extra_state_world_size_{saved_world_size}_rank_{source}.pt", weights_only=True)
    if "rng" in extra and has_saved_state:
        manager.load_rng_state(extra["rng"])
    if extra["lr_scheduler"] is not None and manager.lr_scheduler is not None:
        manager.lr_scheduler.load_state_dict(extra["lr_scheduler"])


def _map_shards(folder: Path, kind: str, saved_world_size: int) -> list[dict[Any, Any]]:
    files = [folder / f"{kind}_world_size_{saved_world_size}_rank_{rank}.pt" for rank in range(saved_world_size)]
    return [torch.load(file, map_location="cpu", weights_only=True, mmap=True) for file in files]


def _reshard_value(name: str, saved: Sequence[Any], like: Any) -> Any:
    """Return a saved value, sharded like the same tensor of this run.

    Args:
        name: what error messages call the value.
        saved: the value in every process's file, by rank.
        like: the run's tensor.
    """
    if not isinstance(saved[0], DTensor):
        return saved[0]  # a step count or a buffer: every process has the same
    whole = gather_tensor(name, saved)
    if not isinstance(like, DTensor):
        return whole
    # src_data_rank=None: every process has the whole tensor and takes its part without communication.
    sharded = distribute_tensor(whole, like.device_mesh, like.placements, src_data_rank=None)
    part = sharded.to_local().clone().to(like.device)  # a view would keep the whole tensor in memory
    return DTensor.from_local(
        part, like.device_mesh, like.placements, run_check=False, shape=whole.shape, stride=whole.stride()
    )


def gather_tensor(name: str, saved: Sequence[DTensor]) -> torch.Tensor:
    """Return the whole tensor from the parts that processes saved.

    Args:
        name: what error messages call the tensor.
        saved: by rank, each process's rows, or a copy of another process's.

    Raises:
        UserError: the tensor was neither sharded nor replicated.
    """
    mesh = saved[0].device_mesh.mesh
    placements = saved[0].placements
    *groups, last = placements
    if not all(isinstance(group, Replicate) for group in groups) or type(last) not in (Replicate, Shard):
        raise UserError(
            "checkpoint.unsupported-placement",
            f"{name} was saved as {placements}. Resume such a checkpoint with the same number of processes",
        )
    for _ in groups:  # replicas of sharded groups (HSDP): the first replica is enough
        mesh = mesh[0]
    if isinstance(last, Replicate):
        return saved[int(mesh[0])]._local_tensor
    parts = [saved[int(rank)]._local_tensor for rank in mesh]
    return torch.cat([part for part in parts if part.numel()] or parts[:1], dim=last.dim)
