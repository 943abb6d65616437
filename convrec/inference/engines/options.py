"""Options of the commands that run a local model."""

from dataclasses import dataclass
from typing import Annotated, Literal

from cyclopts import Parameter

from convrec.base.options import Group, PositiveInteger

Replicas = Annotated[Literal["auto"] | PositiveInteger, Parameter(metavar="auto|N")]


@Group
@dataclass(frozen=True, kw_only=True)
class PlacementOptions:
    """GPUs and replicas of the engine."""

    tensor_parallel: PositiveInteger = 1
    """GPUs per engine"""
    replicas: Replicas = "auto"
    """engines that run in parallel; auto: one per --tensor-parallel GPUs, or a single one on a CPU"""
