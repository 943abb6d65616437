"""Options of the commands that write lists."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from convrec.base.options import CommaSeparated, Group


@Group
@dataclass(frozen=True, kw_only=True)
class MentionOptions:
    """Information about the items of a list."""

    show: CommaSeparated = ()
    """catalog columns to show with the items of a list"""
    train: Annotated[Sequence[Path], Parameter(metavar="FILE...")] = ()
    """RL training tables in which to count mentions, once, for popularity and --why"""
