"""A number of a plan with what it rests on, and how it is written."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from recipes.planning.constants import Constant, recorded

GIB = 2**30
KINDS = ("given", "measured", "assumed")
SCALES = {  # unit -> (what it is shown in, how many of the first that is)
    "bytes": ("GiB", GIB),
    "bytes/day": ("GiB/day", GIB),
    "bytes/s": ("GB/s", 1e9),
    "FLOP/s": ("TFLOP/s", 1e12),
}


@dataclass(frozen=True)
class Figure:
    name: str
    value: float
    unit: str
    constants: frozenset[Constant] = frozenset()

    @property
    def rests_on(self) -> str:
        """Kinds of constants; a figure without any is counted: from the config, the data and the model's shape."""
        return " + ".join(kind for kind in KINDS if kind in {c.kind for c in self.constants}) or "counted"


def figure(name: str, unit: str, compute: Callable[[], float], besides: Iterable[Constant] = ()) -> Figure:
    """besides: constants that what `compute` uses was made from before."""
    with recorded() as used:
        value = compute()
    return Figure(name, value, unit, frozenset(used | set(besides)))


def total(name: str, parts: Iterable[Figure]) -> Figure:
    parts = list(parts)
    constants = frozenset[Constant]().union(*(part.constants for part in parts))
    return Figure(name, sum(part.value for part in parts), parts[0].unit, constants)


def shown(value: float, unit: str) -> str:
    """A value with its unit, three digits or more: `7.36 GiB`, `15,958`, `0.012 s`."""
    unit, scale = ("us", 1e-6) if unit == "s" and 0 < value < 1e-3 else SCALES.get(unit, (unit, 1))
    value /= scale
    is_whole = abs(value) >= 100 or value == int(value)
    return f"{value:,.0f} {unit}".strip() if is_whole else f"{value:.3g} {unit}".strip()
