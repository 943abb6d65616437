"""A cluster of GPUs, and what its collectives take."""

from dataclasses import dataclass

from recipes.planning import constants
from recipes.planning.constants import GPU, Constant


@dataclass(frozen=True)
class Cluster:
    """network: of a GPU to other nodes, bytes a second in one direction."""

    nodes: int
    gpus_per_node: int
    gpu: GPU
    network: Constant

    @property
    def gpus(self) -> int:
        return self.nodes * self.gpus_per_node


def received(size_bytes: float, ranks: int) -> float:
    """Bytes that each of `ranks` GPUs gets in a gather of so many, of which it has its own part already.

    In a ring as much enters each node. A sum that is scattered (reduce-scatter) moves the same.
    """
    return size_bytes * (ranks - 1) / ranks


def collective_seconds(cluster: Cluster, size_bytes: float, ranks: int, count: float) -> float:
    """Seconds of `count` gathers or reduce-scatters, of so many bytes together, over `ranks` GPUs.

    Rings over nodes next to each other, as NCCL's cost model has them: the narrowest link is that within a node, or all
    of a node's adapters together; each passes ranks - 1 hops, one a node of them through the network.
    """
    if ranks == 1:
        return 0.0
    nodes = -(-ranks // cluster.gpus_per_node)
    link = cluster.gpu.nvlink()
    hops = (ranks - nodes) * constants.NVLINK_HOP()
    if nodes > 1:
        link = min(link, cluster.network() * cluster.gpus_per_node)
        hops += (nodes - 1) * constants.NETWORK_HOP()
    transfer = received(size_bytes, ranks) / (link * constants.LINK_SHARE())
    return transfer + count * (constants.COLLECTIVE_BASE() + hops)
