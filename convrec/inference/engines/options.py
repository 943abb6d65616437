"""Options of the commands that ask a local model."""

from dataclasses import dataclass
from typing import Annotated, Literal

from cyclopts import Parameter

from convrec.base.options import Group, PositiveInteger

Replicas = Annotated[Literal["auto"] | PositiveInteger, Parameter(metavar="auto|N")]


@Group
@dataclass(frozen=True, kw_only=True)
class PlacementOptions:
    """Where engines run."""

    tensor_parallel: PositiveInteger = 1
    """GPUs of one engine"""
    replicas: Replicas = "auto"
    """engines side by side; auto: one for every --tensor-parallel GPUs, and one on a CPU"""
