"""An in-memory TransferQueue for code that reads and writes the rows of a step, and simulated machines."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.queue_calls import replace_queue


def nested(rows: Sequence[Any]) -> Any:
    """Return a ragged tensor of lists of numbers, or of tensors."""
    import torch

    return torch.nested.as_nested_tensor([torch.as_tensor(row) for row in rows], layout=torch.jagged)


class Queue:
    """The functions of TransferQueue that a trainer calls, for one batch."""

    def __init__(self, fields: dict[str, Any], tags: list[dict[str, Any]], keys: list[str] | None) -> None:
        import transfer_queue as tq

        self.fields = fields
        keys = keys or [f"{index}_0_0" for index in range(len(tags))]
        self.batch = tq.KVBatchMeta(partition_id="train", keys=keys, tags=tags)

    def kv_batch_get(self, keys: list[str], partition_id: str, select_fields: list[str]) -> Any:
        from verl.utils.tensordict_utils import get_tensordict

        return get_tensordict({name: self.fields[name] for name in select_fields})

    def kv_batch_put(self, keys: list[str], partition_id: str, fields: Any) -> Any:
        assert keys == self.batch.keys
        self.fields |= dict(fields.items())
        return self.batch


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Queue]:
    """Replace TransferQueue with a Queue: queue(tags, **fields)."""

    def start(tags: list[dict[str, Any]], keys: list[str] | None = None, **fields: Any) -> Queue:
        queue = Queue(fields, tags, keys)
        replace_queue(monkeypatch, kv_batch_get=queue.kv_batch_get, kv_batch_put=queue.kv_batch_put)
        return queue

    return start


@pytest.fixture
def with_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Simulate a machine by its PATH: with_gpus(capabilities, has_nvcc) sets NVIDIA's driver output and compiler."""

    def set_path(capabilities: Sequence[str], has_nvcc: bool) -> None:
        programs = {"nvidia-smi": "".join(f"echo {capability}\n" for capability in capabilities)}
        if has_nvcc:
            programs["nvcc"] = ""
        for name, script in programs.items():
            file = tmp_path / name
            file.write_text(f"#!/bin/sh\n{script}")
            file.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))

    return set_path


@pytest.fixture
def b200_without_nvcc(with_gpus: Callable[..., None]) -> None:
    with_gpus(["10.0"], has_nvcc=False)
