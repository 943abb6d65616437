"""Variables of a matrix file as text: which of them are lists to try, and the combinations of these."""

import itertools
import re
from collections.abc import Mapping
from typing import Any

from convrec.errors import UserError
from recipes.launch.recipe import Recipe
from recipes.launch.variables import VARIABLES

COMMA_SEPARATED = ("LOGGER",)  # takes several values at once: a list is one value, a list of lists is a grid
_UNSAFE = re.compile(r"[^\w.+-]+")  # in the name of a folder


def combinations(
    recipe: Recipe, common: Mapping[str, Any], own: Mapping[str, Any]
) -> list[tuple[dict[str, str], dict[str, str]]]:
    """(variables, those of them that are from a list) of each run, the last list's values in turn first.

    common: of the whole matrix; a list there that the recipe does not read is left out. own: the run's, which win.
    Raises UserError for a variable that is none, a list that is empty or has a value twice, and a list that a recipe
    does not read.
    """
    known = {variable.name: bool(variable.keys_of(recipe)) for variable in VARIABLES}
    if unknown := (set(common) | set(own)) - set(known):
        raise UserError(f"{sorted(unknown)[0]} is no variable of the recipes")
    fixed: dict[str, str] = {}
    lists: dict[str, list[str]] = {}
    for name, value in {**common, **own}.items():
        if not _is_grid(name, value):
            fixed[name] = _text(value)
        elif known[name]:
            lists[name] = _values(name, value)
        elif name in own:
            raise UserError(f"{name}={value}: {recipe.name} does not read it, so its runs would all be the same")
    points = (dict(zip(lists, values, strict=True)) for values in itertools.product(*lists.values()))
    return [(fixed | point, point) for point in points]


def label(point: Mapping[str, str]) -> str:
    """`LR=1e-6-MU=2`: the values as part of a name, with nothing that a folder's name should not have."""
    return "-".join(f"{name}={_UNSAFE.sub('_', value).strip('_')}" for name, value in point.items())


def _is_grid(name: str, value: Any) -> bool:
    if name in COMMA_SEPARATED:
        return isinstance(value, list) and all(isinstance(one, list) for one in value)
    return isinstance(value, list)


def _values(name: str, value: list[Any]) -> list[str]:
    if name == "SEED":
        raise UserError(f"SEED={value}: several seeds are `seeds: {value}`, beside `variables`")
    texts = [_text(one) for one in value]
    if not texts or len(set(texts)) < len(texts):
        raise UserError(f"{name}={value}: a list has one value or more, each once")
    return texts


def _text(value: Any) -> str:
    """As it would be written in a shell: `console,file` of a list, `relevance: 1, diversity: 0.3` of a mapping."""
    if isinstance(value, list):
        return ",".join(map(str, value))
    if isinstance(value, dict):
        return ", ".join(f"{name}: {inner}" for name, inner in value.items())
    return str(value)
