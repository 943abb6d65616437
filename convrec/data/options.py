"""Options of the commands that read tables."""

from collections.abc import Sequence
from typing import Annotated, Any

from cyclopts import Parameter

SHARE = 0.05  # of rows that may be damaged, where none is given


class DamagedShare(float):
    """A share of the rows, from 0 to below 1. Without a value it is SHARE."""

    def __new__(cls, share: float = SHARE) -> "DamagedShare":
        return super().__new__(cls, share)


def _read_share(_: Any, tokens: Sequence[Any]) -> DamagedShare:
    """A ValueError says what the option takes."""
    try:
        share = float(tokens[0].value)
    except ValueError:
        share = -1.0
    if not 0 <= share < 1:
        raise ValueError("a share from 0 to below 1, 0.05 say")
    return DamagedShare(share)


# --skip-damaged [SHARE]; None where it is not given
SkipDamaged = Annotated[
    DamagedShare | None,
    Parameter(
        converter=_read_share, n_tokens=-1, consume_multiple=(0, 1), accepts_keys=False, metavar="[SHARE]", negative=""
    ),
]
