"""Start TransferQueue, which carries the rollouts of a run, for this run only.

This module does not import verl, so that the queue can start while verl's slow imports run.
"""

from types import SimpleNamespace
from typing import Any

import ray
import transfer_queue as tq
from omegaconf import DictConfig, OmegaConf
from transfer_queue import controller, interface

from convrec.rollout import queue_sockets


class _RayOfThisRun:
    """A replacement of `ray` for TransferQueue, in which actors are always looked up in the run's namespace.

    Ray gives each driver its own namespace, which its actors share.
    """

    def __getattr__(self, name: str) -> Any:
        return getattr(ray, name)

    def get_actor(self, name: str, namespace: str) -> Any:
        return ray.get_actor(name)


def use_own_queue() -> None:
    """Make this process use only the queue of its own run. Every process of a run calls this before it uses the queue.

    TransferQueue's controller has one name in a namespace of the whole Ray cluster. A second run on the cluster would
    silently use the queue of the first one and take its rollouts. The queue's sockets need the run's key.
    """
    queue_sockets.secure_sockets()
    interface.ray = _RayOfThisRun()
    options = controller.TransferQueueController.options
    interface.TransferQueueController = SimpleNamespace(options=lambda name, namespace: options(name=name))


def start(settings: DictConfig) -> None:
    """Start TransferQueue; verl's task then uses it.

    Args:
        settings: the section `transfer_queue` of the config.
    """
    queue_sockets.make_key()
    use_own_queue()
    # resolved, because TransferQueue copies the settings without the config that they refer to
    tq.init(OmegaConf.create(OmegaConf.to_container(settings, resolve=True)))


def actors() -> dict[str, Any]:
    """Return name -> handle of the queue's processes, in the process that called `start`."""
    return {"TransferQueueController": interface._TQ_CONTROLLER, **interface._TQ_STORAGE.get("SimpleStorage", {})}
