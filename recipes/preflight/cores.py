"""Ray's CPU slots that a run needs, counted before it starts: verl and TransferQueue wait for them without a limit.

SFT               1 per GPU, on the GPU's node, and nothing else
RL training       3 per GPU, on the GPU's node: verl's resource pools reserve them, used or not
separate rollout  2 per GPU of the rollout
TransferQueue     1 for its controller and 1 per storage unit, on any node
other actors      1: actors that reserve no slot (reward, agent loop) still need one while Ray places them, in turn
"""

import os
from typing import NamedTuple

from convrec.settings.run import Run
from convrec.settings.training import TrainingConfig

CPUS_PER_SFT_GPU = 1  # convrec.training.sft.on_ray
CPUS_PER_GPU = 3  # verl's ResourcePoolManager.max_colocate_count
CPUS_PER_ROLLOUT_GPU = 2  # of a separate rollout: RolloutReplica.init_standalone
CONTROLLER = 1
PLACING = 1


class Slots(NamedTuple):
    """Ray's slots that a run needs.

    Attributes:
        groups: (number of nodes, GPU slots per node, CPU slots per node) of the training and of a separate rollout.
        anywhere: further CPU slots; each may be on any node.
    """

    groups: list[tuple[int, int, int]]
    anywhere: int

    @property
    def cpus(self) -> int:
        return sum(nodes * cpus for nodes, _, cpus in self.groups) + self.anywhere


def uses_ray(run: Run[TrainingConfig]) -> bool:
    """Return whether a run starts Ray or joins a cluster: SFT on one device of this machine needs neither."""
    return not run.is_sft or bool(os.environ.get("RAY_ADDRESS")) or run.num_devices > 1


def count_run_slots(run: Run[TrainingConfig]) -> Slots:
    """Count the slots of a run by the rules above."""
    nodes = run.settings.num_nodes
    gpus = run.gpus_per_node
    if run.is_sft:
        return Slots([(nodes, gpus, CPUS_PER_SFT_GPU * gpus)], 0)
    groups = [(nodes, gpus, CPUS_PER_GPU * gpus)]
    rollout_nodes, rollout_gpus = run.rollout_devices
    if rollout_nodes:
        groups.append((rollout_nodes, rollout_gpus, CPUS_PER_ROLLOUT_GPU * rollout_gpus))
    return Slots(groups, CONTROLLER + run.storage_units + PLACING)
