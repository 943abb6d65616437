"""The environment variables of the recipes: their Hydra overrides, and warnings about misspelt names.

Overrides on the command line come later and win.
"""

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from convrec.base import kinds
from convrec.base.errors import UserError
from convrec.base.fields import Row
from convrec.runs.supervisor import SAVE_VARIABLE
from convrec.settings.overrides import to_hydra
from recipes.launch.recipe import RECIPES, Recipe


@dataclass(frozen=True)
class Variable:
    """An environment variable of one or several recipes; see `convrec.base.fields.Setting` for its fields."""

    name: str
    kind: Any
    help: str
    null_word: str
    read: Callable[[str], Any] | None
    also: Sequence[str]

    def collect_keys(self, recipe: Recipe) -> list[str]:
        """Return the keys of the config that it sets in this recipe; [] if the recipe does not read it."""
        return [key for key, row in recipe.rows.items() if row.setting.variable == self.name]


def _make_variable(row: Row) -> Variable:
    setting = row.setting
    return Variable(
        name=setting.variable,
        kind=row.kind,
        help=setting.help,
        null_word=setting.null_word,
        read=setting.read,
        also=setting.also,
    )


_ROWS = [row for recipe in RECIPES.values() for row in recipe.rows.values() if row.setting.variable]
VARIABLES = tuple({row.setting.variable: _make_variable(row) for row in _ROWS}.values())
OTHER_NAMES = {variable.name: variable.also for variable in VARIABLES}  # names in other trainers
MIN_SIMILARITY = 0.87  # difflib's ratio: one wrong letter in eight, but MODULEPATH does not match MODEL_PATH
MIN_SIMILAR_LENGTH = 6  # shorter names are not compared by similarity


def overrides_from_environment(recipe: Recipe, environment: Mapping[str, str]) -> list[str]:
    """Return a Hydra override for each variable of the recipe that is set.

    Raises:
        UserError: a value is wrong; the message names the variable, the value and the expected kind.
    """
    overrides = []
    for key, row in recipe.rows.items():
        text = environment.get(row.setting.variable, "").strip()
        if text:
            overrides.append(f"{key}={to_hydra(_read_value(row, text))}")
    return overrides


def _read_value(row: Row, text: str) -> Any:
    setting = row.setting
    if setting.null and text == setting.null_word:
        return None
    expected = kinds.describe_type(row.kind)
    if "${" in text:  # Hydra would interpolate it from the settings
        raise UserError(
            "variable.placeholder",
            f"{setting.variable}={text}: expected {expected}, but ${{...}} is not replaced here: write the value",
        )
    try:
        value = setting.read(text) if setting.read else kinds.read(row.kind, text)
        if not kinds.is_valid(row.kind, value):
            raise ValueError(expected)
    except ValueError as error:
        or_null = f", or {setting.null_word}" if setting.null else ""
        raise UserError("variable.wrong-value", f"{setting.variable}={text}: expected {error}{or_null}") from None
    return value


def find_misspelt_variables(environment: Mapping[str, str]) -> list[str]:
    """Return a warning for each variable that is set and looks like an unset variable of the recipes."""
    ours = [*(variable.name for variable in VARIABLES), "RAY_ADDRESS", SAVE_VARIABLE]
    unset = [name for name in ours if not environment.get(name)]
    warnings = []
    for name in sorted(name for name, value in environment.items() if value and name not in ours):
        variable = _find_similar(name, unset)
        if variable:
            warnings.append(f"{name} is set, but no recipe reads it: did you mean {variable}?")
    return warnings


def _find_similar(name: str, unset: list[str]) -> str | None:
    plain = name.upper().replace("_", "")
    for variable in unset:
        if plain == variable.replace("_", "") or name.upper() in OTHER_NAMES.get(variable, ()):
            return variable
    long = [variable for variable in unset if len(variable) >= MIN_SIMILAR_LENGTH]
    return next(iter(difflib.get_close_matches(name.upper(), long, n=1, cutoff=MIN_SIMILARITY)), None)
