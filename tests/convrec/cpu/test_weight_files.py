"""Weights go through a file from one process to others. conf/scale/separate_async_cpu.yaml uses it."""

import asyncio
from pathlib import Path

import pytest
import torch

from convrec.cpu.weight_files import FileWeights
from convrec.runs import guard


def test_every_rollout_worker_receives_the_gathered_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(guard.FOLDER_VARIABLE, str(tmp_path))
    training, rollout = FileWeights.build_topology(2, 2, [{}] * 4)
    senders = [FileWeights(0, is_master=rank == 0) for rank in range(2)]
    receivers = [FileWeights(0) for _ in range(2)]
    for engines, paths in ((senders, training["path"]), (receivers, rollout["path"])):
        for engine, path in zip(engines, paths, strict=True):
            engine.init_process_group(path)
    weights = {"head": torch.arange(6.0).reshape(2, 3), "bias": torch.ones(2, dtype=torch.bfloat16)}

    async def synchronise() -> list[dict[str, torch.Tensor]]:
        async def receive(engine: FileWeights) -> dict[str, torch.Tensor]:
            return {name: tensor async for name, tensor in engine.receive_weights()}

        waiting = [asyncio.create_task(receive(engine)) for engine in receivers]
        await asyncio.sleep(0.05)  # they are there first
        for engine in reversed(senders):
            await engine.send_weights(iter(weights.items()))
        return await asyncio.gather(*waiting)

    for received in asyncio.run(synchronise()):
        assert received.keys() == weights.keys()
        assert all(torch.equal(received[name], tensor) for name, tensor in weights.items())
    for engine in senders:
        engine.finalize()
    assert not list(tmp_path.iterdir())
    assert FileWeights.build_topology(2, 2, [{}] * 4) != (training, rollout)  # none is read twice
