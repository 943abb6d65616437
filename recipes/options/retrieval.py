"""Options of `convrec retrieval`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from cyclopts import Parameter

from convrec.base.options import PositiveInteger


@dataclass(frozen=True, kw_only=True)
class FitOptions:
    """Fit a retrieval, which makes lists without a model, to training conversations.

    Writes the folder `catalog.retrieval` next to the catalog. The weights of its parts are tuned on validation rows.

    convrec retrieval fit --train data/sample/train.parquet \\
        --validation data/sample/validation.parquet --catalog data/sample/catalog.parquet
    """

    COMMAND: ClassVar[str] = "retrieval fit"

    train: Annotated[Sequence[Path], Parameter(metavar="FILE...")]
    """training tables of RL"""
    validation: Annotated[Path, Parameter(metavar="FILE")]
    """rows to tune weights on"""
    catalog: Path
    """catalog, .parquet or .pkl"""
    out: Path | None = None
    """folder to write (default: CATALOG.retrieval next to the catalog)"""
    overwrite: bool = False
    """replace an existing folder"""


@dataclass(frozen=True, kw_only=True)
class CandidatesOptions:
    """Write tables whose prompts name the best items of a retrieval, for runs with CANDIDATES.

    The candidates of a training row do not depend on its own conversation.

    convrec retrieval candidates --retrieval data/sample/catalog.retrieval \\
        --catalog data/sample/catalog.parquet \\
        --tables data/sample/train.parquet data/sample/validation.parquet --out data/sample_50
    """

    COMMAND: ClassVar[str] = "retrieval candidates"

    retrieval: Annotated[Path, Parameter(metavar="FOLDER")]
    """folder of `convrec retrieval fit`"""
    catalog: Path
    """catalog, .parquet or .pkl"""
    tables: Annotated[Sequence[Path], Parameter(metavar="FILE...")]
    """tables of RL and SFT, all splits"""
    out: Path
    """folder to write"""
    count: PositiveInteger = 50
    """number of candidates in a prompt; CANDIDATES of the runs"""
    overwrite: bool = False
    """replace an existing folder"""
