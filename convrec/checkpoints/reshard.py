"""A checkpoint of W processes, loaded by another number of processes: verl's FSDP2 shards put together and cut anew.

Each process maps the W files of the model and of the optimizer into memory, and copies of every tensor the rows that
are its own; nothing is sent between processes, and no file is written.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.distributed.tensor.placement_types import Replicate, Shard

from convrec.base.errors import UserError
from convrec.checkpoints.files import world_size


def load_any_world_size(manager: Any) -> None:
    """Let verl's FSDPCheckpointManager also load what another number of processes has saved."""
    same_size = manager.load_checkpoint

    def load_checkpoint(local_path: str | None, *args: Any, **kwargs: Any) -> None:
        saved = world_size(Path(local_path)) if local_path else None
        if saved in (None, manager.world_size):
            same_size(local_path, *args, **kwargs)
        else:
            load_resharded(manager, Path(local_path or ""), saved)

    manager.load_checkpoint = load_checkpoint


def load_resharded(manager: Any, folder: Path, saved: int) -> None:
    """Load a checkpoint as verl's `load_checkpoint` does, from the shards of another number of processes.

    Args:
        manager: verl's FSDPCheckpointManager of this process.
        folder: with the shards.
        saved: number of processes that wrote them.
    """
    if manager.should_load_model:
        _load_model(manager, _shards(folder, "model", saved))
    if manager.should_load_optimizer:
        _load_optimizer(manager.optimizer, _shards(folder, "optim", saved))
    if manager.should_load_extra:
        _load_extra(manager, folder, saved)
    torch.distributed.barrier()


def _load_model(manager: Any, shards: list[dict[str, Any]]) -> None:
    """Load the tensors that the shards name: of LoRA the adapter's alone, where verl saved no others."""
    wanted = manager.model.state_dict()
    state = {name: _for_this_process(name, [shard[name] for shard in shards], wanted.get(name)) for name in shards[0]}
    manager.model.load_state_dict(state, strict=not manager.is_lora_only_state_dict(state))


def _load_optimizer(optimizer: Any, shards: list[dict[str, Any]]) -> None:
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state: dict[int, dict[str, Any]] = {}
    for index, values in shards[0]["state"].items():
        state[index] = {
            key: _for_this_process(
                f"{key} of parameter {index}", [shard["state"][index][key] for shard in shards], parameters[index]
            )
            for key in values
        }
    optimizer.load_state_dict({"state": state, "param_groups": shards[0]["param_groups"]})


def _load_extra(manager: Any, folder: Path, saved: int) -> None:
    """Load the schedule, and the random state of a process that was there; others keep the state of their start."""
    was_there = manager.rank < saved
    source = manager.rank if was_there else 0
    extra = torch.load(folder / f"extra_state_world_size_{saved}_rank_{source}.pt", weights_only=True)
    if "rng" in extra and was_there:
        manager.load_rng_state(extra["rng"])
    if extra["lr_scheduler"] is not None and manager.lr_scheduler is not None:
        manager.lr_scheduler.load_state_dict(extra["lr_scheduler"])


def _shards(folder: Path, what: str, saved: int) -> list[dict[Any, Any]]:
    files = [folder / f"{what}_world_size_{saved}_rank_{rank}.pt" for rank in range(saved)]
    return [torch.load(file, map_location="cpu", weights_only=True, mmap=True) for file in files]


def _for_this_process(name: str, saved: Sequence[Any], like: Any) -> Any:
    """One value of every process's file -> that value, cut as `like`, the same tensor of this run, is cut."""
    if not isinstance(saved[0], DTensor):
        return saved[0]  # a step count, a buffer: every process has the same
    whole = whole_tensor(name, saved)
    if not isinstance(like, DTensor):
        return whole
    # None: every process has all of it, and takes its part without asking another one
    cut = distribute_tensor(whole, like.device_mesh, like.placements, src_data_rank=None)
    part = cut.to_local().clone().to(like.device)  # a view would keep all of it
    return DTensor.from_local(
        part, like.device_mesh, like.placements, run_check=False, shape=whole.shape, stride=whole.stride()
    )


def whole_tensor(name: str, saved: Sequence[DTensor]) -> torch.Tensor:
    """The tensor of which each process r has saved `saved[r]`, its rows or a copy of another process's."""
    mesh = saved[0].device_mesh.mesh
    placements = saved[0].placements
    *groups, last = placements
    if not all(isinstance(group, Replicate) for group in groups) or type(last) not in (Replicate, Shard):
        raise UserError(f"{name} was saved as {placements}: such a checkpoint is resumed by as many processes only")
    for _ in groups:  # a replicated group of sharded ones (HSDP): the first of each is enough
        mesh = mesh[0]
    if isinstance(last, Replicate):
        return saved[int(mesh[0])]._local_tensor
    parts = [saved[int(rank)]._local_tensor for rank in mesh]
    return torch.cat([part for part in parts if part.numel()] or parts[:1], dim=last.dim)
