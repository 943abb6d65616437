"""TransferQueue, through which the rollouts of a run go: started for this run alone, and its processes.

Without verl, whose imports take long: it starts while they go on.
"""

from types import SimpleNamespace
from typing import Any

import ray
import transfer_queue as tq
from omegaconf import DictConfig, OmegaConf
from transfer_queue import controller, interface

from convrec.rollout import queue_sockets


class _RayOfThisRun:
    """`ray` as TransferQueue sees it: actors have their names in the run's namespace, whatever namespace is asked for.

    Ray gives each driver a namespace of its own, which its actors share.
    """

    def __getattr__(self, name: str) -> Any:
        return getattr(ray, name)

    def get_actor(self, name: str, namespace: str) -> Any:
        return ray.get_actor(name)


def keep_to_this_run() -> None:
    """Have this process look for the queue of its own run alone. Every process of a run calls it before it uses it.

    TransferQueue's controller has one name in a namespace of the whole Ray cluster, so that a second run there would
    silently attach to the first one's and take its rollouts. Its sockets ask for the key of the run.
    """
    queue_sockets.secure_sockets()
    interface.ray = _RayOfThisRun()
    options = controller.TransferQueueController.options
    interface.TransferQueueController = SimpleNamespace(options=lambda name, namespace: options(name=name))


def start(settings: DictConfig) -> None:
    """Start TransferQueue; verl's task then finds it there."""
    queue_sockets.make_key()
    keep_to_this_run()
    tq.init(OmegaConf.create(OmegaConf.to_container(settings, resolve=True)))  # it copies them away from their root


def actors() -> dict[str, Any]:
    """Name -> handle of its processes, in the process that called `start`."""
    return {"TransferQueueController": interface._TQ_CONTROLLER, **interface._TQ_STORAGE.get("SimpleStorage", {})}
