"""Clusters to plan for."""

from recipes.planning.constants import GPUS
from recipes.planning.network import Cluster


def cluster(nodes: int, gpus_per_node: int = 8, gpu: str = "H100") -> Cluster:
    return Cluster(nodes, gpus_per_node, GPUS[gpu], GPUS[gpu].network)
