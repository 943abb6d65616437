"""The environment variables of the recipes: as overrides of Hydra's (those of the command line come later and win), and
those whose names look like ours and that no recipe reads."""

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
    """An environment variable that sets a setting of one or several recipes; see `convrec.base.fields.Setting`."""

    name: str
    kind: Any
    help: str
    null_word: str
    read: Callable[[str], Any] | None
    also: Sequence[str]

    def collect_keys(self, recipe: Recipe) -> list[str]:
        """The keys of the config that it sets in this recipe; none where the recipe does not read it."""
        return [key for key, row in recipe.rows.items() if row.setting.variable == self.name]


def _variable(row: Row) -> Variable:
    setting = row.setting
    return Variable(setting.variable, row.kind, setting.help, setting.null_word, setting.read, setting.also)


_ROWS = [row for recipe in RECIPES.values() for row in recipe.rows.values() if row.setting.variable]
VARIABLES = tuple({row.setting.variable: _variable(row) for row in _ROWS}.values())
ELSEWHERE = {variable.name: variable.also for variable in VARIABLES}  # what other trainers call them
SIMILAR = 0.87  # difflib's ratio: one wrong letter in eight, but not MODULEPATH (environment modules) for MODEL_PATH
SHORTEST = 6  # letters of a name that is compared by similarity


def overrides_from_environment(recipe: Recipe, environment: Mapping[str, str]) -> list[str]:
    """Hydra overrides for every variable that is set, in the table's order.

    Raises UserError naming the variable, its value and what it takes.
    """
    overrides = []
    for key, row in recipe.rows.items():
        text = environment.get(row.setting.variable, "").strip()
        if text:
            overrides.append(f"{key}={to_hydra(_value(row, text))}")
    return overrides


def _value(row: Row, text: str) -> Any:
    setting = row.setting
    if setting.null and text == setting.null_word:
        return None
    wanted = kinds.wanted(row.kind)
    if "${" in text:  # Hydra would look for it among the settings
        raise UserError(
            f"{setting.variable}={text}: expected {wanted} without ${{...}}, which nobody fills in: write it out"
        )
    try:
        value = setting.read(text) if setting.read else kinds.read(row.kind, text)
        if not kinds.fits(row.kind, value):
            raise ValueError(wanted)
    except ValueError as error:
        or_null = f", or {setting.null_word}" if setting.null else ""
        raise UserError(f"{setting.variable}={text}: expected {error}{or_null}") from None
    return value


def misspelt_variables(environment: Mapping[str, str]) -> list[str]:
    """A warning for each variable that is set and looks like one of ours that is not."""
    ours = [*(variable.name for variable in VARIABLES), "RAY_ADDRESS", SAVE_VARIABLE]
    unset = [name for name in ours if not environment.get(name)]
    warnings = []
    for name in sorted(name for name, value in environment.items() if value and name not in ours):
        meant = _meant(name, unset)
        if meant:
            warnings.append(f"{name} is set, but no recipe reads it: did you mean {meant}?")
    return warnings


def _meant(name: str, unset: list[str]) -> str | None:
    plain = name.upper().replace("_", "")
    for other in unset:
        if plain == other.replace("_", "") or name.upper() in ELSEWHERE.get(other, ()):
            return other
    long = [other for other in unset if len(other) >= SHORTEST]
    return next(iter(difflib.get_close_matches(name.upper(), long, n=1, cutoff=SIMILAR)), None)
