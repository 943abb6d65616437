"""Options of `convrec data sample`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from cyclopts import Parameter

from convrec.base.options import Integer

Rows = Annotated[Integer, Parameter(metavar="ROWS")]


@dataclass(frozen=True, kw_only=True)
class SampleOptions:
    """Write the embedded sample data: conversations about real films with generated tastes, in the released columns.

    convrec data sample --out data/sample
    """

    COMMAND: ClassVar[str] = "data sample"

    out: str = "data/sample"
    """folder to write"""
    seed: Integer = 3407
    """random seed for the conversations and tastes"""
    train: Rows = 4000
    """rows of train"""
    validation: Rows = 300
    """rows of validation"""
    test: Rows = 500
    """rows of test"""
    num_items: Integer = 20
    """items the prompt asks for"""
    requests: Literal["plain", "hard"] = "plain"
    """plain: words alone decide; hard: negation, comparison, reversal or quantity, see the column `request`"""
    ask: Annotated[Sequence[str] | None, Parameter(metavar="ATTRIBUTE...")] = None
    """columns of the catalog, or decade, that demonstrations ask about"""
    overwrite: bool = False
    """replace an existing folder"""
