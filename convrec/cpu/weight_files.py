"""Send weights to a rollout in other processes through a file in the run's folder: verl's checkpoint engine `file`.

verl's own engines need GPUs. With this one the asynchronous trainer runs on one host without a GPU (conf/scale).
"""

import asyncio
import os
import tempfile
import uuid
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import torch
from verl.checkpoint_engine import CheckpointEngine, CheckpointEngineRegistry

from convrec.base.files import atomic_write
from convrec.runs import guard

POLL_SECONDS = 0.02


@CheckpointEngineRegistry.register("file")
class FileWeights(CheckpointEngine):
    """Each synchronisation has its own file, which the first training process writes and every rollout worker reads."""

    def __init__(self, bucket_size: int, is_master: bool = False) -> None:
        self.is_master = is_master
        self.path = Path()

    def prepare(self) -> dict[str, Any]:
        return {}

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[dict]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        """Choose the file of the next synchronisation; see verl's method."""
        folder = os.environ.get(guard.FOLDER_VARIABLE) or tempfile.gettempdir()
        path = f"{folder}/weights-{uuid.uuid4().hex}.pt"
        return {"path": [path] * actor_wg_world_size}, {"path": [path] * rollout_world_size}

    def init_process_group(self, path: str) -> None:
        self.path = Path(path)

    async def send_weights(self, weights: Iterable[tuple[str, torch.Tensor]], global_steps: int | None = None) -> None:
        """Gather the weights in every process, and write them in the first."""
        tensors = {name: tensor.detach().clone() for name, tensor in weights}  # every process takes part in gathering
        if self.is_master:
            with atomic_write(self.path) as partial:
                torch.save(tensors, partial)

    async def receive_weights(self, global_steps: int | None = None) -> AsyncIterator[tuple[str, torch.Tensor]]:
        """Wait for the file and yield the weights; it never times out."""
        while not self.path.exists():
            await asyncio.sleep(POLL_SECONDS)
        for name, tensor in torch.load(self.path, weights_only=True).items():
            yield name, tensor

    def finalize(self) -> None:
        if self.is_master:
            self.path.unlink(missing_ok=True)
