"""Does a run fit into the GPUs' memory, and which change makes it fit?"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from omegaconf import DictConfig, OmegaConf

from recipes.planning.estimate import FULL, Requirements
from recipes.planning.figures import GIB
from recipes.planning.models import ModelSize
from recipes.planning.network import Cluster
from recipes.planning.plan import memory
from recipes.planning.run import rollout_of
from recipes.planning.step_time import cache_bytes, cache_bytes_of_token

MOST_NODES = 1024
TENSOR_PARALLEL = "actor_rollout_ref.rollout.tensor_model_parallel_size"
OFFLOAD = (
    "actor_rollout_ref.actor.fsdp_config.param_offload",
    "actor_rollout_ref.actor.fsdp_config.optimizer_offload",
    "actor_rollout_ref.ref.fsdp_config.param_offload",
)


def lacks(config: DictConfig, size: ModelSize, cluster: Cluster, requirements: Requirements) -> list[str]:
    """What does not fit, in words; empty where all does."""
    training, sampling = memory(config, size, cluster, requirements)
    room, found = FULL * cluster.gpu.memory(), []
    for name, parts in (("training", training), ("sampling", sampling)):
        needed = sum(part.value for part in parts)
        if needed > room:
            found.append(f"{name} needs {needed / GIB:.1f} GiB of a GPU, {room / GIB:.1f} can be used")
    if sampling and (short := _cache_lacks(config, size, cluster)):
        found.append(short)
    return found


def _cache_lacks(config: DictConfig, size: ModelSize, cluster: Cluster) -> str:
    """vLLM refuses to start where its cache has no room for one sequence of the greatest length."""
    rollout = rollout_of(config)
    longest = config.data.max_prompt_length + config.data.max_response_length
    needed = longest * cache_bytes_of_token(size, rollout)
    there = cache_bytes(cluster, size, rollout)
    if there >= needed:
        return ""
    if there < 0:
        return f"vLLM's share of a GPU is {-there / GIB:.1f} GiB less than it needs before any cache"
    return (
        f"vLLM's share of a GPU leaves {there / GIB:.1f} GiB to its cache; a sequence of {longest:,} tokens takes "
        f"{needed / GIB:.1f}"
    )


def tensor_parallel(config: DictConfig, size: ModelSize, cluster: Cluster) -> int | None:
    """The fewest GPUs of a node that a replica can span so that its cache has room; None where none are enough."""
    for gpus in replica_sizes(size, cluster):
        with changed(config, {TENSOR_PARALLEL: gpus}):
            if not _cache_lacks(config, size, cluster):
                return gpus
    return None


def replica_sizes(size: ModelSize, cluster: Cluster) -> list[int]:
    """GPUs of a node that a replica can span, in rising order."""
    node = cluster.gpus_per_node
    return [gpus for gpus in range(1, node + 1) if node % gpus == 0 and size.heads % gpus == 0]


@contextmanager
def changed(config: DictConfig, changes: Mapping[str, Any]) -> Iterator[None]:
    """The config with these keys set, for a while: a copy of verl's whole config takes a hundred times as long."""
    before = {key: OmegaConf.select(config, key) for key in changes}
    for key, value in changes.items():
        OmegaConf.update(config, key, value)
    try:
        yield
    finally:
        for key, value in before.items():
            OmegaConf.update(config, key, value)


def remedies(config: DictConfig, size: ModelSize, cluster: Cluster, requirements: Requirements) -> list[str]:
    """Command lines' words that make it fit. A replica over more GPUs comes first where vLLM's share is too small; then
    any one change that is enough; where none is, all of them, with as many nodes as they need. Empty: nor is that."""

    def fits(words: Mapping[str, Mapping[str, Any]], nodes: int = cluster.nodes) -> bool:
        keys = {key: value for change in words.values() for key, value in change.items()}
        with changed(config, {**keys, "trainer.nnodes": nodes}):
            return not lacks(config, size, replace(cluster, nodes=nodes), requirements)

    first, others = _wider_replica(config, size, cluster), _changes(config)
    if fits(first):
        return [" ".join(first)]
    enough = [{**first, said: change} for said, change in others.items() if fits({**first, said: change})]
    found = [" ".join(words) for words in enough]
    if nodes := _fewest_nodes(cluster.nodes, lambda nodes: fits(first, nodes)):
        found.append(" ".join([f"N_NODES={nodes}", *first]))
    if not found and (nodes := _fewest_nodes(cluster.nodes, lambda nodes: fits({**first, **others}, nodes))):
        found.append(" ".join([f"N_NODES={nodes}", *first, *others]))
    return found


def _fewest_nodes(nodes: int, fits: Callable[[int], bool]) -> int | None:
    while nodes <= MOST_NODES:
        if fits(nodes):
            return nodes
        nodes *= 2
    return None


def _wider_replica(config: DictConfig, size: ModelSize, cluster: Cluster) -> dict[str, dict[str, Any]]:
    """As `_changes`; empty where vLLM has room, or no number of a node's GPUs gives it."""
    if "actor_rollout_ref" not in config or not _cache_lacks(config, size, cluster):
        return {}
    gpus = tensor_parallel(config, size, cluster)
    return {f"TENSOR_PARALLEL={gpus}": {TENSOR_PARALLEL: gpus}} if gpus else {}


def _changes(config: DictConfig) -> dict[str, dict[str, Any]]:
    """Words of a command line -> the keys that they set, of what may help besides."""
    if "actor_rollout_ref" not in config:
        return _tokens("data.max_token_len_per_gpu", config.data.max_length)
    longest = config.data.max_prompt_length + config.data.max_response_length
    return {
        **_tokens("actor_rollout_ref.actor.ppo_max_token_len_per_gpu", longest),
        " ".join(f"{key}=true" for key in OFFLOAD): dict.fromkeys(OFFLOAD, True),
    }


def _tokens(key: str, tokens: int) -> dict[str, dict[str, Any]]:
    return {f"{key}={tokens}": {key: tokens}}
