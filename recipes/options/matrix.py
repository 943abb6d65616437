"""Options of `convrec matrix`."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar

from cyclopts import Parameter

from convrec.base.options import PositiveInteger


@dataclass(frozen=True, kw_only=True)
class MatrixOptions:
    """Train and evaluate the runs of a matrix with the same settings; rerunning resumes. docs/how-to/matrix.md

    convrec matrix docs/examples/matrix.yaml --dry-run
    """

    COMMAND: ClassVar[str] = "matrix"

    matrix: Path = field(kw_only=False)
    """YAML file such as docs/examples/matrix.yaml"""
    only: Annotated[Sequence[str], Parameter(metavar="RUN...")] = ()
    """runs to do (default: all); runs that they start from must exist"""
    parallel: Annotated[PositiveInteger | None, Parameter(metavar="N")] = None
    """number of simultaneous runs on a cluster (1), at most as many as it has slots for"""
    dry_run: bool = False
    """check the file, and print the number of runs and steps"""
