"""Two runs of one machine, whose Ray jobs have one id, each hand their own weights to their own vLLM."""

import asyncio
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from verl.workers.rollout.vllm_rollout.bucketed_weight_transfer import BucketedWeightReceiver, BucketedWeightSender

from convrec.cpu.server import CPUHttpServer, CPUWorkerExtension
from convrec.rollout.server import ConvRecHttpServer, ConvRecReplica, WeightsWorker, WorkerExtension
from convrec.rollout.weight_socket import in_run_folder
from convrec.runs import guard

VERLS = "ipc:///tmp/rl-colocate-zmq-01000000-replica-0-rank-0.sock"


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short, as a run's: a socket's path has at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="convrec-") as name:
        yield Path(name)


def test_two_senders_reach_their_own_receivers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    handles = []
    for run in (folder / "one", folder / "two"):
        run.mkdir()
        monkeypatch.setenv(guard.FOLDER_VARIABLE, str(run))
        handles.append(in_run_folder(VERLS))
    assert handles[0] != handles[1]

    def receive(handle: str) -> list[float]:
        found: list[float] = []
        receiver = BucketedWeightReceiver(zmq_handle=handle, device=torch.device("cpu"), use_shm=True)
        receiver.receive_weights(
            on_bucket_received=lambda bucket, is_last: found.extend(float(weight.sum()) for _, weight in bucket)
        )
        return found

    with ThreadPoolExecutor(4) as pool:
        for number, handle in enumerate(handles, start=1):
            sender = BucketedWeightSender(handle, bucket_size_mb=1, use_shm=True)
            pool.submit(asyncio.run, sender.async_send_weights(iter([("w", torch.full((3,), float(number)))])))
        received = [pool.submit(receive, handle) for handle in handles]
        assert [one.result(timeout=60) for one in received] == [[3.0], [6.0]]


def test_every_device_has_it_in_the_runs_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's workers, and the worker that takes weights for a rollout of its own."""
    assert issubclass(CPUWorkerExtension, WorkerExtension)
    for server, extension in ((ConvRecHttpServer, WorkerExtension), (CPUHttpServer, CPUWorkerExtension)):
        name = server._get_worker_extension_cls(server.__new__(server))
        assert name == f"{extension.__module__}.{extension.__qualname__}"
    assert ConvRecReplica.weights_worker is WeightsWorker
    monkeypatch.delenv(guard.FOLDER_VARIABLE, raising=False)
    assert in_run_folder(VERLS) == VERLS
