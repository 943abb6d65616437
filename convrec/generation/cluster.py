"""Replicas on a Ray cluster: an actor each, which has the same child process beside it."""

import contextlib
import socket
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import ray

from convrec.errors import UserError
from convrec.generation.engine_settings import NO_COMPILER
from convrec.generation.pool import Room, count_of
from convrec.generation.process import Died, Load, Process
from convrec.runs import guard

ROOT = Path(__file__).resolve().parents[2]  # of the packages
CONNECT_SECONDS = 10.0


class Actor:
    """A child process on the actor's node. Ray gives it its GPUs, and ends it with the job."""

    def __init__(self, load: Load, settings: Any, environment: dict[str, str]) -> None:
        self.guard = guard.guarded("")  # of this node: when the actor is killed, nothing of its child is left
        self.process = Process(load, settings, self.guard.__enter__() / "vllm.log", environment)

    def ask(self, task: Any) -> Any:
        return self.process.ask(task, lambda number: None)


class ActorReplica:
    """The driver's side of an Actor. The log stays on the actor's node; what it ends with is in the error."""

    def __init__(self, load: Load, settings: Any, log: Path, gpus: int, environment: dict[str, str]) -> None:
        options = {"num_cpus": 1, "num_gpus": gpus, "scheduling_strategy": "SPREAD", "max_restarts": 0}
        self._actor = ray.remote(Actor).options(**options).remote(load, settings, environment)

    def ask(self, task: Any, progress: Callable[[int], None]) -> Any:
        try:
            return ray.get(self._actor.ask.remote(task))
        except ray.exceptions.RayTaskError as error:  # around what was raised there
            raise error.cause from None
        except ray.exceptions.RayActorError as error:
            raise Died(f"its actor is gone: {error}".splitlines()[0]) from None

    def end(self) -> None:
        ray.kill(self._actor)


@contextlib.contextmanager
def cluster_room(replicas: int | str, tensor_parallel: int, address: str) -> Iterator[Room]:
    """On the cluster at `address`. Code goes along; files that replicas read lie on storage of all nodes.

    Raises UserError for a cluster that does not answer, or has no room.
    """
    with joined(address):
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        count, gpus, environment = divide_cluster(replicas, tensor_parallel, nodes)
        starts = [partial(ActorReplica, gpus=gpus, environment=environment)] * count
        yield Room(starts, gpus > 0)


@contextlib.contextmanager
def joined(address: str) -> Iterator[None]:
    """This process as a driver of the cluster at `address`, with our code. Raises UserError where there is none."""
    packages = [str(ROOT / name) for name in ("convrec", "recipes", "data_prep")]
    try:
        if address.rpartition(":")[2].isdigit():  # Ray tries for a minute and more
            host, _, port = address.rpartition(":")
            socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
        ray.init(address, runtime_env={"py_modules": packages}, log_to_driver=False)
    except (OSError, ray.exceptions.AuthenticationError) as error:  # a ConnectionError is an OSError
        raise UserError(f"--address {address}: {error} (where it asks for a token: RAY_AUTH_MODE=token)") from None
    try:
        yield
    finally:
        ray.shutdown()


def divide_cluster(
    replicas: int | str, tensor_parallel: int, nodes: Sequence[dict[str, float]]
) -> tuple[int, int, dict[str, str]]:
    """(how many replicas, GPUs of each, which are of one node, environment of each).

    nodes: the resources of each.
    """
    gpus = sum(int(node.get("GPU", 0)) for node in nodes)
    room = sum(int(node.get("GPU", 0)) // tensor_parallel for node in nodes)
    count = count_of(replicas, room)
    if gpus and count > room:
        raise UserError(f"--replicas {count} of {tensor_parallel} GPUs each: the cluster has room for {room}")
    if gpus:
        return count, tensor_parallel, {}
    cores = [int(node.get("CPU", 0)) for node in nodes]
    if count > sum(cores):
        raise UserError(f"--replicas {count}: the cluster has {sum(cores)} CPUs")
    threads = min(max(cores), sum(cores) // count)
    return count, 0, dict([NO_COMPILER]) | {"OMP_NUM_THREADS": str(threads)}
