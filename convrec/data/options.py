"""Options of the commands that read tables."""

from collections.abc import Sequence
from typing import Annotated, Any

from cyclopts import Parameter

SHARE = 0.05  # of the rows may be damaged if the option has no value


class DamagedShare(float):
    """A share of the rows, at least 0 and below 1; SHARE without a value."""

    def __new__(cls, share: float = SHARE) -> "DamagedShare":
        return super().__new__(cls, share)


def _read_share(_: Any, tokens: Sequence[Any]) -> DamagedShare:
    """Read the option's value. Raises ValueError with the expected values."""
    try:
        share = float(tokens[0].value)
    except ValueError:
        share = -1.0
    if not 0 <= share < 1:
        raise ValueError("a share from 0 to below 1, such as 0.05")
    return DamagedShare(share)


# --skip-damaged [SHARE]; None without the option.
SkipDamaged = Annotated[
    DamagedShare | None,
    Parameter(
        converter=_read_share, n_tokens=-1, consume_multiple=(0, 1), accepts_keys=False, metavar="[SHARE]", negative=""
    ),
]
