"""Two runs on one machine, whose Ray jobs have the same id, each send their weights to their own vLLM."""

import asyncio
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from verl.checkpoint_engine.base import CheckpointEngineWorker
from verl.workers.engine_workers import ActorRolloutRefWorker
from verl.workers.rollout.vllm_rollout.bucketed_weight_transfer import BucketedWeightReceiver, BucketedWeightSender

from convrec.checkpoints import plain_load
from convrec.cpu.server import CPUHttpServer, CPUWorkerExtension
from convrec.rollout.server import ConvRecHttpServer, ConvRecReplica, WeightsWorker, WorkerExtension
from convrec.runs import guard
from convrec.runs.guard import move_socket_to_run_folder
from convrec.training import registration, worker

VERLS = "ipc:///tmp/rl-colocate-zmq-01000000-replica-0-rank-0.sock"  # as verl's sender has it


def socket_of_vllm(extension: type = WorkerExtension) -> str:
    """Where the process of vLLM's first GPU receives."""
    one: Any = object.__new__(extension)
    one.model_runner, one.local_rank = None, 0
    return one._get_zmq_handle()


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short folder, like a run's: a socket's path has at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="convrec-") as name:
        yield Path(name)


def test_two_senders_reach_their_own_receivers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VERL_RAY_JOB_ID", "01000000")  # of both
    senders, receivers = [], []
    for run in (folder / "one", folder / "two"):
        run.mkdir()
        monkeypatch.setenv(guard.FOLDER_VARIABLE, str(run))
        senders.append(move_socket_to_run_folder(VERLS))
        receivers.append(socket_of_vllm())
    assert senders == receivers
    assert senders[0] != senders[1]

    def receive(handle: str) -> list[float]:
        found: list[float] = []
        receiver = BucketedWeightReceiver(zmq_handle=handle, device=torch.device("cpu"), use_shm=True)
        receiver.receive_weights(
            on_bucket_received=lambda bucket, is_last: found.extend(float(weight.sum()) for _, weight in bucket)
        )
        return found

    with ThreadPoolExecutor(4) as pool:
        for number, handle in enumerate(senders, start=1):
            sender = BucketedWeightSender(handle, bucket_size_mb=1, use_shm=True)
            pool.submit(asyncio.run, sender.async_send_weights(iter([("w", torch.full((3,), float(number)))])))
        received = [pool.submit(receive, handle) for handle in receivers]
        assert [one.result(timeout=60) for one in received] == [[3.0], [6.0]]


def test_every_worker_has_its_socket_in_the_runs_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's workers, the actor's worker, and the worker that receives weights for a separate rollout."""
    monkeypatch.setenv("VERL_RAY_JOB_ID", "01000000")
    monkeypatch.setenv(guard.FOLDER_VARIABLE, str(folder))
    expected = f"ipc://{folder}/{Path(VERLS).name}"
    for server, extension in ((ConvRecHttpServer, WorkerExtension), (CPUHttpServer, CPUWorkerExtension)):
        name = server._get_worker_extension_cls(server.__new__(server))
        assert name == f"{extension.__module__}.{extension.__qualname__}"
        assert socket_of_vllm(extension) == expected

    def of_verl(self: Any, *args: Any) -> None:
        self.server_adapter = self.rollout = SimpleNamespace(zmq_handle=VERLS)

    monkeypatch.setattr(CheckpointEngineWorker, "__init__", of_verl)
    assert ConvRecReplica.weights_worker is WeightsWorker
    assert WeightsWorker().server_adapter.zmq_handle == expected

    monkeypatch.setattr(ActorRolloutRefWorker, "init_model", of_verl)
    monkeypatch.setenv(plain_load.VARIABLE, "1")  # which the worker sets for good
    for name in ("VERL_PLATFORM", registration.DRIVERS_DIGEST):
        monkeypatch.delenv(name, raising=False)
    actor: Any = object.__new__(worker.ConvRecWorker)
    actor.config = SimpleNamespace(rollout={}, model=SimpleNamespace(use_fused_kernels=False))
    actor._is_actor, actor.actor, actor.ref = False, None, None
    actor.init_model()
    assert actor.rollout.zmq_handle == expected

    monkeypatch.delenv(guard.FOLDER_VARIABLE)
    assert move_socket_to_run_folder(VERLS) == VERLS
