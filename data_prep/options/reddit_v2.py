"""Options of `convrec data reddit-v2`."""

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, kw_only=True)
class RedditOptions:
    """Convert the released Reddit-v2 download to the parquet that the recipes read. docs/how-to/reproduce-paper.md

    convrec data reddit-v2 --source processed_datasets --out data/reddit_v2
    """

    COMMAND: ClassVar[str] = "data reddit-v2"

    source: str = "processed_datasets"
    """folder of the unpacked download"""
    out: str = "data/reddit_v2"
    """folder to write"""
    overwrite: bool = False
    """replace an existing folder"""
