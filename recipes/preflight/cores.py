"""Ray's slots that a run asks for. verl and TransferQueue wait for them without a limit: they are counted before.

SFT                 1 for each GPU, on the GPU's node, and nothing else
training            3 for each GPU, on the GPU's node: verl's resource pools reserve them, used or not
rollout of its own  2 for each of its GPUs
TransferQueue       1 for its controller and 1 for each storage unit, on any node
others              1: actors without a number of their own (reward, agent loop) are placed one after another
"""

import os
from typing import NamedTuple

from omegaconf import DictConfig, OmegaConf

CPUS_PER_SFT_GPU = 1  # convrec.train.sft.on_ray
CPUS_PER_GPU = 3  # verl's ResourcePoolManager.max_colocate_count
CPUS_PER_ROLLOUT_GPU = 2  # of a rollout with GPUs of its own: RolloutReplica.init_standalone
CONTROLLER, PLACING = 1, 1


class Slots(NamedTuple):
    """groups: (number of nodes, GPU and CPU slots on each of them), of those that train and of a rollout of its own.
    anywhere: further CPU slots, of which each may be on any node."""

    groups: list[tuple[int, int, int]]
    anywhere: int

    @property
    def cpus(self) -> int:
        return sum(nodes * cpus for nodes, _, cpus in self.groups) + self.anywhere


def uses_ray(config: DictConfig) -> bool:
    """Whether a run starts Ray, or joins a cluster's: SFT on one device of this machine needs none."""
    devices = config.trainer.nnodes * config.trainer.n_gpus_per_node
    return "actor_rollout_ref" in config or bool(os.environ.get("RAY_ADDRESS")) or devices > 1


def needed_slots(config: DictConfig) -> Slots:
    nodes, gpus = config.trainer.nnodes, config.trainer.n_gpus_per_node
    if "actor_rollout_ref" not in config:
        return Slots([(nodes, gpus, CPUS_PER_SFT_GPU * gpus)], 0)
    groups = [(nodes, gpus, CPUS_PER_GPU * gpus)]
    rollout_nodes, rollout_gpus = rollout_devices(config)
    if rollout_nodes:
        groups.append((rollout_nodes, rollout_gpus, CPUS_PER_ROLLOUT_GPU * rollout_gpus))
    units = OmegaConf.select(config, "transfer_queue.backend.SimpleStorage.num_data_storage_units") or 1
    return Slots(groups, CONTROLLER + units + PLACING)


def rollout_devices(config: DictConfig) -> tuple[int, int]:
    """(nodes, devices of each) that sample and do not train; (0, 0) where rollout and training share theirs."""
    if not str(OmegaConf.select(config, "trainer.v1.trainer_mode")).endswith("separate_async"):
        return 0, 0
    rollout = config.actor_rollout_ref.rollout
    return rollout.nnodes, rollout.n_gpus_per_node
