"""TransferQueue, through which the rollouts of a run go: started for this run alone, and its processes.

Without verl, whose imports take long: it starts while they go on.
"""

import time
from typing import Any

import ray
import transfer_queue as tq
from omegaconf import DictConfig, OmegaConf
from transfer_queue import interface

from convrec.errors import UserError

OTHERS_SECONDS = 30.0
HELD = (
    "another run holds this Ray cluster, which trains one at a time: wait until it has ended, or end it "
    "(`ray job list`, `ray job stop ID`), or give RAY_ADDRESS the address of another cluster"
)


def start(settings: DictConfig) -> None:
    """Start TransferQueue; verl's task then finds it there.

    Its controller has one name in a whole Ray cluster, and a second run would silently attach to the first one's and
    take its rollouts: UserError. That of a run that has just ended is gone within OTHERS_SECONDS.
    """
    deadline = time.monotonic() + OTHERS_SECONDS
    while _has_controller():
        if time.monotonic() > deadline:
            raise UserError(HELD)
        time.sleep(1)
    tq.init(OmegaConf.create(OmegaConf.to_container(settings, resolve=True)))  # it copies them away from their root
    if interface._TQ_STORAGE is None:  # not started but attached: another run came first
        raise UserError(HELD)


def _has_controller() -> bool:
    try:
        ray.get_actor("TransferQueueController", namespace="transfer_queue")
    except ValueError:
        return False
    return True


def actors() -> dict[str, Any]:
    """Name -> handle of its processes, in the process that called `start`."""
    return {"TransferQueueController": interface._TQ_CONTROLLER, **interface._TQ_STORAGE.get("SimpleStorage", {})}
