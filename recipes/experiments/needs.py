"""What each run of a matrix needs of a cluster, and after what it can start."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from omegaconf import DictConfig

from convrec.errors import UserError
from recipes.experiments.matrix_file import Run
from recipes.experiments.schedule import Node, Task, has_room
from recipes.preflight.cores import needed_cpu_slots, rollout_devices

DEVICES = "N_GPUS_PER_NODE"
TRAIN, EVALUATE = "-train", "-evaluate"  # a run's two tasks are called by its name and one of these


def nodes_of(address: str) -> list[Node]:
    """The slots that each living node of the cluster has, taken or not."""
    from ray.util.state import list_nodes

    found = list_nodes(address=address, filters=[("state", "=", "ALIVE")], limit=1000)
    totals = [node.resources_total for node in found]
    return [Node(int(total.get("GPU", 0)), int(total.get("CPU", 0))) for total in totals]


def with_devices(runs: Sequence[Run], nodes: Sequence[Node]) -> list[Run]:
    """The runs with N_GPUS_PER_NODE among their variables, so that they take there what is counted here.

    Raises UserError where it is not said and a node has several slots.
    """
    most = max((node.gpus for node in nodes), default=0)
    found = []
    for run in runs:
        devices = {**os.environ, **run.variables}.get(DEVICES, "").strip()
        if not devices and most > 1:
            raise UserError(f"{run.name}: set {DEVICES} (variables, or the environment): nodes have up to {most} GPUs")
        found.append(replace(run, variables={**run.variables, DEVICES: devices or "1"}))
    return found


def tasks_of(
    runs: Sequence[Run], configs: Mapping[str, DictConfig], evaluate: Mapping[str, Any], nodes: Sequence[Node]
) -> list[Task]:
    """Of each run its training, once its start is trained, and its evaluation, once its start is evaluated.

    A start that is not among the runs is there already. Raises UserError for what the empty cluster has no room for.
    """
    has_slots = any(node.gpus for node in nodes)
    names = {run.name for run in runs}
    tasks = []
    for run in runs:
        config = configs[run.name]
        groups = [(config.trainer.nnodes, config.trainer.n_gpus_per_node)]
        if (rollout := rollout_devices(config))[0]:
            groups.append(rollout)
        start = [run.start] if run.start in names else []
        cpus = needed_cpu_slots(config).total
        tasks.append(Task(run.name + TRAIN, tuple(name + TRAIN for name in start), tuple(groups), cpus))
        devices = ((1, evaluate.get("tensor_parallel", 1) * _number(evaluate.get("replicas", 1))),) if has_slots else ()
        tasks.append(Task(run.name + EVALUATE, (run.name + TRAIN, *(name + EVALUATE for name in start)), devices))
    for task in tasks:
        if not has_room(nodes, [], task):
            needs = " and ".join(f"{number} x {gpus} GPU slots" for number, gpus in task.groups)
            have = ", ".join(f"{node.gpus} GPU and {node.cpus} CPU slots" for node in nodes)
            raise UserError(f"{task.name}: it needs {needs} and {task.cpus} CPU slots in all; the nodes have {have}")
    return tasks


def _number(replicas: int | str) -> int:
    """ "auto" is what the GPUs of its job are enough for."""
    return replicas if isinstance(replicas, int) else 1
