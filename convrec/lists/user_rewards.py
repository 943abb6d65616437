"""Custom rank rewards, `convrec.reward=package.module:function`: loading and checking them, and finding their source.

    function(relevance, items) -> returns

All are lists of length N, entry k for rank k + 1. relevance: 1 for a hit (docs/explanation/method.md 2), else 0. items:
`Item` (title, year), None for a rank without a line or a line that is not an item. returns: finite numbers.
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
PROJECT = Path(__file__).resolve().parents[2]
OUR_PACKAGES = ("convrec", "reward", "data_prep", "recipes")
_NAME = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):([A-Za-z_]\w*)", re.ASCII)

RankReturns = Callable[[Sequence[int], Sequence[Item | None]], list[float]]


def is_user_reward(name: str) -> bool:
    """Return whether a name has the form of a custom reward, without importing anything."""
    return bool(_NAME.fullmatch(name))


def parse_module_name(name: str) -> str:
    """Return the module of a custom reward."""
    return name.partition(":")[0]


@lru_cache
def load(name: str) -> RankReturns:
    """Import a custom reward, once per process.

    Args:
        name: `package.module:function`.

    Returns:
        The function, with a check of its returns at every call: it raises a UserError if their number differs from that
        of ranks, or if one is not a finite number.

    Raises:
        UserError: the module cannot be imported, or has no such function.
    """
    module_name, _, function_name = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise UserError(
            "reward.import",
            f"convrec.reward={name}: importing {module_name} raised {type(error).__name__}: {error}. Start in the "
            "module's folder, or add the folder to PYTHONPATH, so that "
            f"`python -c 'import {module_name}'` works.",
        ) from error
    function = getattr(module, function_name, None)
    if not callable(function):
        functions = [other for other, value in vars(module).items() if callable(value) and not other.startswith("_")]
        raise UserError(
            "reward.no-function",
            f"convrec.reward={name}: {module.__file__} has no function {function_name}; "
            f"{did_you_mean(function_name, functions)}",
        )

    def rank_returns(relevance_N: Sequence[int], items_N: Sequence[Item | None]) -> list[float]:
        returns = function(list(relevance_N), list(items_N))
        try:
            returns_N = [float(value) for value in returns]
        except (TypeError, ValueError):
            raise UserError(
                "reward.not-numbers", f"convrec.reward={name}: it returned {returns!r:.200}, not a list of numbers."
            ) from None
        if len(returns_N) != len(relevance_N):
            raise UserError(
                "reward.wrong-length",
                f"convrec.reward={name}: it returned {len(returns_N)} numbers for {len(relevance_N)} ranks. Return one "
                "per rank.",
            )
        if not all(map(math.isfinite, returns_N)):
            raise UserError(
                "reward.not-finite",
                f"convrec.reward={name}: it returned {returns!r:.200}, but every number must be finite.",
            )
        return returns_N

    return rank_returns


def check(name: str, num_items: int) -> None:
    """Load a custom reward, and call it for a few lists.

    Args:
        name: `package.module:function`.
        num_items: N, the length of these lists.

    Raises:
        UserError: it cannot be loaded, raises an error, or returns something invalid; the message names the list.
    """
    returns = load(name)
    items = [Item(f"Title {rank}", 2000) for rank in range(1, num_items + 1)]
    every_other = [rank % 2 for rank in range(num_items)]
    lists: dict[str, tuple[list[int], list[Item | None]]] = {
        "without lines": ([0] * num_items, [None] * num_items),
        "without hits": ([0] * num_items, [*items]),
        "of hits only": ([1] * num_items, [*items]),
        "with a hit at every other rank": (
            every_other,
            [item if hit else None for item, hit in zip(items, every_other, strict=True)],
        ),
    }
    for description, (relevance_N, items_N) in lists.items():
        try:
            returns(relevance_N, items_N)
        except UserError as error:
            raise UserError(error.code, f"{error} (for a list {description})") from None
        except Exception as error:
            raise UserError(
                "reward.raised",
                f"convrec.reward={name}: for a list {description}, it raised {type(error).__name__}: {error}. It was "
                f"called with relevance={relevance_N} and items={items_N!r:.200}.",
            ) from error


def sources(module: str) -> list[Path]:
    """Return the folders of a module's top-level package, or its single file; [] if it is not found."""
    spec = find_spec(module.partition(".")[0])
    if spec is None:
        return []
    if spec.submodule_search_locations is not None:
        return [Path(folder) for folder in spec.submodule_search_locations]
    return [Path(spec.origin)] if spec.has_location and spec.origin else []


def find_own_sources(name: str) -> list[Path]:
    """Return the `sources` of a custom reward that other nodes lack: not installed, and not part of this project."""
    installed = [Path(sysconfig.get_path(kind)) for kind in ("purelib", "platlib", "stdlib")]
    installed += [Path(site.getusersitepackages()), *(PROJECT / package for package in OUR_PACKAGES)]
    on_every_node = [folder.resolve() for folder in installed]
    return [
        source
        for source in sources(parse_module_name(name))
        if not any(source.resolve().is_relative_to(folder) for folder in on_every_node)
    ]
