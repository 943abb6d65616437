"""Options of `convrec matrix`."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar

from cyclopts import Parameter

from convrec.base.options import PositiveInteger


@dataclass(frozen=True, kw_only=True)
class MatrixOptions:
    """Train and evaluate a matrix of runs: one command that reruns an experiment. docs/how-to/evaluation.md

    convrec matrix docs/examples/matrix.yaml --dry-run
    """

    COMMAND: ClassVar[str] = "matrix"

    matrix: Path = field(kw_only=False)
    """YAML file, like docs/examples/matrix.yaml"""
    only: Annotated[Sequence[str], Parameter(metavar="RUN...")] = ()
    """only these runs (their starts must be there)"""
    parallel: Annotated[PositiveInteger | None, Parameter(metavar="N")] = None
    """runs at once on a cluster (1): as many as it has slots for"""
    dry_run: bool = False
    """check the file and say how many runs and steps it is"""
