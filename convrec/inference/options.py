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
    """What lists say of their items."""

    show: CommaSeparated = ()
    """columns of the catalog that items have in lists"""
    train: Annotated[Sequence[Path], Parameter(metavar="FILE...")] = ()
    """training tables of RL to count, once: what popularity and --why say"""
