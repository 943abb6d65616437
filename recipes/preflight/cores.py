"""Ray's slots that a run asks for. verl and TransferQueue wait for them without a limit: they are counted before.

SFT                 1 for each GPU, on the GPU's node, and nothing else
training            3 for each GPU, on the GPU's node: verl's resource pools reserve them, used or not
rollout of its own  2 for each of its GPUs
TransferQueue       1 for its controller and 1 for each storage unit, on any node
others              1: actors without a number of their own (reward, agent loop) are placed one after another
"""

import os
from typing import NamedTuple

from convrec.settings.run import Run
from convrec.settings.training import TrainingConfig

CPUS_PER_SFT_GPU = 1  # convrec.training.sft.on_ray
CPUS_PER_GPU = 3  # verl's ResourcePoolManager.max_colocate_count
CPUS_PER_ROLLOUT_GPU = 2  # of a rollout with GPUs of its own: RolloutReplica.init_standalone
CONTROLLER = 1
PLACING = 1


class Slots(NamedTuple):
    """groups: (number of nodes, GPU and CPU slots on each of them), of those that train and of a rollout of its own.
    anywhere: further CPU slots, of which each may be on any node."""

    groups: list[tuple[int, int, int]]
    anywhere: int

    @property
    def cpus(self) -> int:
        return sum(nodes * cpus for nodes, _, cpus in self.groups) + self.anywhere


def uses_ray(run: Run[TrainingConfig]) -> bool:
    """Whether a run starts Ray, or joins a cluster's: SFT on one device of this machine needs none."""
    return not run.is_sft or bool(os.environ.get("RAY_ADDRESS")) or run.num_devices > 1


def needed_slots(run: Run[TrainingConfig]) -> Slots:
    nodes = run.settings.num_nodes
    gpus = run.gpus_per_node
    if run.is_sft:
        return Slots([(nodes, gpus, CPUS_PER_SFT_GPU * gpus)], 0)
    groups = [(nodes, gpus, CPUS_PER_GPU * gpus)]
    rollout_nodes, rollout_gpus = run.rollout_devices
    if rollout_nodes:
        groups.append((rollout_nodes, rollout_gpus, CPUS_PER_ROLLOUT_GPU * rollout_gpus))
    return Slots(groups, CONTROLLER + run.storage_units + PLACING)
