"""Options of `convrec retrieval`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from cyclopts import Parameter

from convrec.base.options import PositiveInteger


@dataclass(frozen=True, kw_only=True)
class FitOptions:
    """Lists without a model, fitted on training conversations.

    Writes the folder `catalog.retrieval` beside the catalog. What counts how much is chosen on the validation rows.

    convrec retrieval fit --train data/sample/train.parquet \\
        --validation data/sample/validation.parquet --catalog data/sample/catalog.parquet
    """

    COMMAND: ClassVar[str] = "retrieval fit"

    train: Annotated[Sequence[Path], Parameter(metavar="FILE...")]
    """training tables of RL"""
    validation: Annotated[Path, Parameter(metavar="FILE")]
    """rows on which weights are chosen"""
    catalog: Path
    """.parquet or .pkl"""
    out: Path | None = None
    """folder to write (beside the catalog, CATALOG.retrieval)"""
    overwrite: bool = False
    """replace a folder that is there"""


@dataclass(frozen=True, kw_only=True)
class CandidatesOptions:
    """Tables whose prompts name the best items of a retrieval, for runs with CANDIDATES.

    A training row's own conversation has no part in its candidates.

    convrec retrieval candidates --retrieval data/sample/catalog.retrieval \\
        --catalog data/sample/catalog.parquet \\
        --tables data/sample/train.parquet data/sample/validation.parquet --out data/sample_50
    """

    COMMAND: ClassVar[str] = "retrieval candidates"

    retrieval: Annotated[Path, Parameter(metavar="FOLDER")]
    """folder of `convrec retrieval fit`"""
    catalog: Path
    """.parquet or .pkl"""
    tables: Annotated[Sequence[Path], Parameter(metavar="FILE...")]
    """tables of RL and SFT, all splits"""
    out: Path
    """folder to write"""
    count: PositiveInteger = 50
    """candidates of a prompt; CANDIDATES of the runs"""
    overwrite: bool = False
    """replace a folder that is there"""
