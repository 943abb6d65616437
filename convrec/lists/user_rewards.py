"""A rank reward of the user's own, `convrec.reward=package.module:function`: found, tried out, and where its source is.

    function(relevance, items) -> returns

Lists of N, entry k for rank k + 1. relevance: 1 for a hit (docs/explanation/method.md 2), else 0. items: `Item`
(title, year), None for a rank without a line and for a line that is no item. returns: finite numbers.
"""

import importlib
import math
import re
import site
import sysconfig
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from convrec.base.errors import UserError
from convrec.base.kinds import did_you_mean
from convrec.titles.item import Item

FORM = "package.module:function"
OURS = Path(__file__).resolve().parents[2]  # the folder of the project
OUR_PACKAGES = ("convrec", "reward", "data_prep", "recipes")
_NAME = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):([A-Za-z_]\w*)", re.ASCII)

RankReturns = Callable[[Sequence[int], Sequence[Item | None]], list[float]]


def is_user_reward(name: str) -> bool:
    """Whether it has the form of one; nothing is imported."""
    return bool(_NAME.fullmatch(name))


def parse_module_name(name: str) -> str:
    return name.partition(":")[0]


@lru_cache
def load(name: str) -> RankReturns:
    """The function, once a process; what it returns is checked at every call.

    Raises UserError when it cannot be imported or is no function. The function that is returned raises UserError for
    another number of returns than of ranks, and for one that is no finite number.
    """
    module_name, _, function_name = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise UserError(
            f"convrec.reward={name}: importing {module_name} raised {type(error).__name__}: {error}; start where "
            f"`python -c 'import {module_name}'` works: in the folder it lies in, or with that folder on PYTHONPATH"
        ) from error
    function = getattr(module, function_name, None)
    if not callable(function):
        functions = [other for other, value in vars(module).items() if callable(value) and not other.startswith("_")]
        raise UserError(
            f"convrec.reward={name}: {module.__file__} has no function {function_name}; "
            + did_you_mean(function_name, functions)
        )

    def rank_returns(relevance_N: Sequence[int], items_N: Sequence[Item | None]) -> list[float]:
        returns = function(list(relevance_N), list(items_N))
        try:
            returns_N = [float(value) for value in returns]
        except (TypeError, ValueError):
            raise UserError(f"convrec.reward={name}: it returned {returns!r:.200}, not a list of numbers") from None
        if len(returns_N) != len(relevance_N):
            raise UserError(
                f"convrec.reward={name}: it returned {len(returns_N)} numbers for {len(relevance_N)} ranks: one a rank"
            )
        if not all(map(math.isfinite, returns_N)):
            raise UserError(f"convrec.reward={name}: it returned {returns!r:.200}: every number must be finite")
        return returns_N

    return rank_returns


def check(name: str, num_items: int) -> None:
    """Load the function and call it for lists of `num_items`. Raises UserError that says for which list it failed."""
    returns = load(name)
    items = [Item(f"Title {rank}", 2000) for rank in range(1, num_items + 1)]
    every_other = [rank % 2 for rank in range(num_items)]
    lists: dict[str, tuple[list[int], list[Item | None]]] = {
        "without a line": ([0] * num_items, [None] * num_items),
        "without a hit": ([0] * num_items, [*items]),
        "of hits": ([1] * num_items, [*items]),
        "with a hit at every other rank": (
            every_other,
            [item if hit else None for item, hit in zip(items, every_other, strict=True)],
        ),
    }
    for what, (relevance_N, items_N) in lists.items():
        try:
            returns(relevance_N, items_N)
        except UserError as error:
            raise UserError(f"{error} (for a list {what})") from None
        except Exception as error:
            raise UserError(
                f"convrec.reward={name}: for a list {what} it raised {type(error).__name__}: {error}; it is called "
                f"with relevance={relevance_N} and items={items_N!r:.200}"
            ) from error


def sources(module: str) -> list[Path]:
    """The folders of the module's top-level package, or its one file; [] where it cannot be found."""
    spec = find_spec(module.partition(".")[0])
    if spec is None:
        return []
    if spec.submodule_search_locations is not None:
        return [Path(folder) for folder in spec.submodule_search_locations]
    return [Path(spec.origin)] if spec.has_location and spec.origin else []


def own_sources(name: str) -> list[Path]:
    """`sources` of a reward's module, without what every node has: installed packages and those of this project."""
    installed = [Path(sysconfig.get_path(kind)) for kind in ("purelib", "platlib", "stdlib")]
    installed += [Path(site.getusersitepackages()), *(OURS / package for package in OUR_PACKAGES)]
    known = [folder.resolve() for folder in installed]
    return [
        source
        for source in sources(parse_module_name(name))
        if not any(source.resolve().is_relative_to(folder) for folder in known)
    ]
