"""The table of `convrec plan --table`: every size of KNOWN on 1 to 128 nodes, with the same settings and data."""

import math
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, replace

from omegaconf import DictConfig

from recipes.planning import fitting
from recipes.planning.estimate import Requirements
from recipes.planning.models import KNOWN, ModelSize, size_of
from recipes.planning.network import Cluster
from recipes.planning.plan import Plan, make_plan
from recipes.planning.run import Data

NODES = (1, 2, 4, 8, 16, 32, 64, 128)


@dataclass(frozen=True)
class Row:
    """plan: None where the run does not fit, and then lacks says why. tensor_parallel: 0 in SFT."""

    model: str
    nodes: int
    tensor_parallel: int
    plan: Plan | None
    lacks: list[str]


def rows(config: DictConfig, cluster: Cluster, data: Data, requirements: Requirements) -> Iterator[Row]:
    """A replica of the rollout spans as many GPUs as make the step shortest, whatever the config says."""
    changed = deepcopy(config)
    for name, (_, shape) in KNOWN.items():
        size = size_of(shape)
        assert size is not None
        for nodes in NODES:
            changed.trainer.nnodes = nodes
            yield min(
                _choices(name, size, changed, replace(cluster, nodes=nodes), data, requirements),
                key=lambda row: row.plan.step.value if row.plan else math.inf,
            )


def _choices(
    name: str, size: ModelSize, config: DictConfig, cluster: Cluster, data: Data, requirements: Requirements
) -> Iterator[Row]:
    """A row for each number of GPUs that a replica can span; the widest first, so that it says what still lacks."""
    is_rl = "actor_rollout_ref" in config
    for parallel in reversed(fitting.replica_sizes(size, cluster)) if is_rl else [0]:
        if is_rl:
            config.actor_rollout_ref.rollout.tensor_model_parallel_size = parallel
        lacks = fitting.lacks(config, size, cluster, requirements)
        plan = None if lacks else make_plan(config, size, cluster, data, requirements)
        yield Row(name, cluster.nodes, parallel, plan, lacks)
