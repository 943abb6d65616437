"""Options of the commands that write what `convrec data own` writes."""

from dataclasses import dataclass
from typing import Annotated

from cyclopts import Parameter

from convrec.base.options import FiniteNumber, Group, ItemCount
from convrec.data.options import SkipDamaged

Date = Annotated[str | None, Parameter(metavar="DATE")]
Share = Annotated[FiniteNumber, Parameter(metavar="SHARE")]


@Group
@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """Prompts, splits, damaged rows and the output folder."""

    item: str = "movie"
    """word for an item in the prompt"""
    num_items: ItemCount = 20
    """items the prompt asks for"""
    validation_from: Date = None
    """date or time from which rows or ratings are validation"""
    test_from: Date = None
    """date or time from which rows or ratings are test"""
    validation_share: Share = 0.0
    """share of the rows or ratings for validation, by time"""
    test_share: Share = 0.0
    """share of the rows or ratings for test, by time"""
    skip_damaged: SkipDamaged = None
    """leave out damaged rows and items, up to this share of the rows (0.05); damaged.jsonl lists them"""
    overwrite: bool = False
    """replace an existing folder"""
