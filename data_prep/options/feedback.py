"""Options of `convrec data feedback`."""

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from cyclopts import Parameter

from data_prep.options.output import OutputOptions


@dataclass(frozen=True, kw_only=True)
class FeedbackOptions:
    """Convert the feedback log of `convrec serve --feedback` to the tables of `convrec data own`.

    OUT.jsonl has the rows as `convrec data own` reads them, the folder --out the tables.
    docs/how-to/collect-feedback.md

    convrec data feedback --catalog data/own/catalog.parquet --out data/feedback
    """

    COMMAND: ClassVar[str] = "data feedback"

    catalog: Annotated[str, Parameter(metavar="FILE")]
    """catalog that was served, as .parquet"""
    out: str
    """folder to write"""
    state: str = "outputs/serve"
    """--state of the service"""
    output: OutputOptions = field(default_factory=OutputOptions)
