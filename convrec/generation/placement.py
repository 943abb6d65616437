"""Where replicas run: on this node's GPUs or cores, or over a Ray cluster.

A replica is a process of its own with an engine of `tensor_parallel` GPUs. Each of the commands that ask a local model
takes the same three options for it: --tensor-parallel, --replicas, --address.
"""

import argparse
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from convrec.errors import UserError
from convrec.generation.room import AUTO, Room, room_here
from convrec.runs import guard, supervisor


@dataclass(frozen=True)
class Placement:
    """replicas: AUTO: as many as the GPUs of the node (with an address: of the cluster) are enough for; one on a CPU.

    address: of a Ray cluster, as `ray.init` takes it; None: this node. Raises UserError for numbers below 1.
    """

    replicas: int | str = 1
    tensor_parallel: int = 1
    address: str | None = None

    def __post_init__(self) -> None:
        for option, value in (("--replicas", self.replicas), ("--tensor-parallel", self.tensor_parallel)):
            if (option, value) != ("--replicas", AUTO) and (not isinstance(value, int) or value < 1):
                choice = f"{AUTO}, or a number from 1" if option == "--replicas" else "a number from 1"
                raise UserError(f"{option} {value}: give {choice}")

    @contextlib.contextmanager
    def open(self) -> Iterator[Room]:
        """On leaving, whatever has been started there is ended.

        Raises UserError for more replicas than the GPUs are enough for, and for a cluster that does not answer.
        """
        if self.address is not None:
            from convrec.generation.cluster import cluster_room  # imports Ray

            with cluster_room(self.replicas, self.tensor_parallel, self.address) as room:
                yield room
            return
        with guard.guarded_children() as folder:  # whatever happens, no engine is left
            supervisor.note(temporary=str(folder))
            yield room_here(self.replicas, self.tensor_parallel, folder, guard.environment(folder))


def add_placement(parser: argparse.ArgumentParser) -> None:
    """The three options."""
    add = parser.add_argument
    add("--tensor-parallel", type=int, default=1, help="GPUs of one engine (%(default)s)")
    add(
        "--replicas",
        type=_replicas,
        metavar="auto|N",
        default=AUTO,
        help="engines side by side (%(default)s: one for every --tensor-parallel GPUs; 1 on a CPU)",
    )
    add("--address", help="of a Ray cluster (auto, HOST:6379) that has the engines, instead of this node")


def _replicas(text: str) -> int | str:
    return text if text == AUTO else int(text)
