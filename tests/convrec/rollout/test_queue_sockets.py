"""A stranger of the same machine sends a pickle to every port of a real queue: nothing of it runs, and the run goes on.

The same pickle runs in a queue that is started without us: when that test fails, TransferQueue has learned it.
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import zmq

from tests.strangers import try_as_stranger

QUEUE = """
import json, sys
from pathlib import Path
from recipes.launch.environment import init_ray, set_up_process, use_own_token

is_ours = sys.argv[1] == "ours"
folder = Path(sys.argv[2])
set_up_process()
use_own_token(folder)
import ray, torch
import transfer_queue as tq
from omegaconf import OmegaConf
from tensordict import TensorDict
from convrec.rollout import queue

init_ray(address="local", num_cpus=4, include_dashboard=False, _temp_dir=str(folder / "ray"), log_to_driver=False)
units = {"SimpleStorage": {"num_data_storage_units": "${trainer.nnodes}"}}
settings = OmegaConf.create({"trainer": {"nnodes": 1}, "transfer_queue": {"backend": units}}).transfer_queue
queue.start(settings) if is_ours else tq.init(OmegaConf.create(OmegaConf.to_container(settings, resolve=True)))

@ray.remote(num_cpus=1)
class Worker:
    def read(self, keys):
        if is_ours:
            queue.use_own_queue()
        tq.init()
        rows = tq.kv_batch_get(keys=keys, partition_id="train")
        return [row.tolist() for row in rows["numbers"].unbind()]

actors = queue.actors()
infos = ray.get([actor.get_zmq_server_info.remote() for actor in actors.values()])
print(json.dumps([[*actors], [info.to_addr(port) for info in infos for port in info.ports]]), flush=True)
for line in sys.stdin:
    keys = [f"{line.strip()}-{number}" for number in range(2)]
    rows = torch.nested.as_nested_tensor([torch.arange(3), torch.arange(5)], layout=torch.jagged)
    tags = [{"status": "finished", "words": ["a", "b"]} for _ in keys]
    tq.kv_batch_put(keys=keys, partition_id="train", fields=TensorDict({"numbers": rows}, batch_size=2), tags=tags)
    print(json.dumps(ray.get(Worker.remote().read.remote(keys))), flush=True)
"""
ROWS = [[0, 1, 2], [0, 1, 2, 3, 4]]


@dataclass
class StartedQueue:
    """A queue in a separate process. Its settings refer to another section, as verl's config does.

    Attributes:
        process: the driver.
        actors: names of the queue's processes.
        addresses: of their sockets.
    """

    process: subprocess.Popen[str]
    actors: list[str]
    addresses: list[str]

    def put_and_get(self, name: str) -> Any:
        """Write two rows and have another process read them."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{name}\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


@contextlib.contextmanager
def started_queue(whose: str, folder: Path) -> Iterator[StartedQueue]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    process = subprocess.Popen(
        [sys.executable, "-c", QUEUE, whose, str(folder)],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            assert process.stdout is not None
            yield StartedQueue(process, *json.loads(process.stdout.readline()))
        finally:
            process.communicate(timeout=60)  # it ends when its input does


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A short folder, like a run's: paths of Ray's sockets have at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="convrec-", ignore_cleanup_errors=True) as name:
        yield Path(name)


@pytest.fixture
def proof() -> Iterator[Path]:
    """A file that the pickle makes."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name) / "it-ran"


def test_a_stranger_is_refused_and_the_run_goes_on(short_folder: Path, proof: Path) -> None:
    other_key, _ = zmq.curve_keypair()
    with started_queue("ours", short_folder) as queue:
        assert queue.actors == ["TransferQueueController", "TransferQueueStorageUnit#0"]
        assert len(queue.addresses) == 3  # the controller's two, and the storage unit's
        assert queue.put_and_get("before") == ROWS
        for key in (None, other_key):
            assert try_as_stranger(queue.addresses, proof, key) == []
        assert queue.put_and_get("after") == ROWS
        assert not proof.exists()


@pytest.mark.long  # what convrec prevents, shown with TransferQueue alone
def test_transfer_queue_alone_runs_what_a_stranger_sends(short_folder: Path, proof: Path) -> None:
    """The reason for our sockets."""
    with started_queue("theirs", short_folder) as queue:
        assert queue.put_and_get("before") == ROWS
        assert try_as_stranger(queue.addresses, proof) == [[address, "ZeroMQ"] for address in queue.addresses]
        deadline = time.monotonic() + 20
        while not proof.exists():
            assert time.monotonic() < deadline
            time.sleep(0.1)
