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
    """What prompts ask for, how rows are split, and what may be left out or replaced."""

    item: str = "movie"
    """what the prompt calls an item"""
    num_items: ItemCount = 20
    """items the prompt asks for"""
    validation_from: Date = None
    """rows or ratings from this date or time on are validation"""
    test_from: Date = None
    """rows or ratings from this date or time on are test"""
    validation_share: Share = 0.0
    """share of the rows or ratings for validation, by time"""
    test_share: Share = 0.0
    """share of the rows or ratings for test, the last of them"""
    skip_damaged: SkipDamaged = None
    """leave damaged rows and items out and name them in damaged.jsonl, up to this share of the rows (0.05)"""
    overwrite: bool = False
    """replace a folder that is there"""
