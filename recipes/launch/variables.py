"""The environment variables of the recipes, as overrides of Hydra's. Those of the command line come later and win."""

import re
from collections.abc import Mapping
from typing import Any

from convrec import kinds
from convrec.errors import UserError
from recipes.launch.recipe import RECIPES, Recipe
from recipes.launch.schema import Setting

_SETTINGS = [setting for recipe in RECIPES.values() for setting in recipe.settings.values()]
VARIABLES = tuple({setting.name: setting for setting in _SETTINGS if setting.name}.values())


def overrides_from_environment(recipe: Recipe, environment: Mapping[str, str]) -> list[str]:
    """Hydra overrides for every variable that is set, in the table's order.

    Raises UserError naming the variable, its value and what it takes.
    """
    texts = {variable.name: environment.get(variable.name, "").strip() for variable in VARIABLES}
    return [
        f"{key}={_in_hydra(_value(setting, texts[setting.name]))}"
        for key, setting in recipe.settings.items()
        if texts.get(setting.name)
    ]


def _value(setting: Setting, text: str) -> Any:
    if setting.null and text == setting.null_word:
        return None
    wanted = kinds.wanted(setting.kind)
    if "${" in text:  # Hydra would look for it among the settings
        raise UserError(
            f"{setting.name}={text}: expected {wanted} without ${{...}}, which nobody fills in: write it out"
        )
    try:
        value = setting.read(text) if setting.read else kinds.read(setting.kind, text)
        if not kinds.fits(setting.kind, value):
            raise ValueError(wanted)
    except ValueError as error:
        or_null = f", or {setting.null_word}" if setting.null else ""
        raise UserError(f"{setting.name}={text}: expected {error}{or_null}") from None
    return value


def _in_hydra(value: Any) -> str:
    """The value in Hydra's grammar, which gives `=`, `,` and brackets a meaning."""
    if isinstance(value, str):
        escaped = re.sub(r"\\+(?='|\Z)", lambda match: match[0] * 2, value)  # others mean themselves
        return "'" + escaped.replace("'", "\\'") + "'"
    if isinstance(value, list):
        return "[" + ", ".join(map(_in_hydra, value)) + "]"
    if isinstance(value, dict):
        escaped_names = {name: re.sub(r"([\\()\[\]{}:=, \t])", r"\\\1", name) for name in value}
        return "{" + ", ".join(f"{escaped_names[name]}: {_in_hydra(inner)}" for name, inner in value.items()) + "}"
    return kinds.shown(value)
