"""The environment variables of the recipes: what they say as overrides of Hydra's, and their defaults.

Overrides on the command line come after them and win.
"""

import re
from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

from convrec import kinds
from convrec.errors import UserError
from recipes.launch.recipe import RECIPES, Recipe
from recipes.launch.schema import GROUP, Setting
from recipes.launch.texts import in_hydra

_SETTINGS = [setting for recipe in RECIPES.values() for setting in recipe.settings.values()]
VARIABLES = tuple({setting.name: setting for setting in _SETTINGS if setting.name}.values())


def overrides_from_environment(recipe: Recipe, environment: Mapping[str, str]) -> list[str]:
    """Hydra overrides for every variable that is set, in the table's order.

    Raises UserError naming the variable, its value and what it takes.
    """
    texts = {variable.name: environment.get(variable.name, "").strip() for variable in VARIABLES}
    return [
        f"{key}={in_hydra(_value(setting, texts[setting.name]))}"
        for key, setting in recipe.settings.items()
        if texts.get(setting.name)
    ]


def _value(setting: Setting, text: str) -> Any:
    if setting.null and text == setting.null_word:
        return None
    try:
        if setting.read is None:
            return kinds.read(setting.kind, text)
        value = setting.read(text)
        if kinds.fits(setting.kind, value):
            return value
        raise ValueError(kinds.wanted(setting.kind))
    except ValueError as error:
        or_null = f", or {setting.null_word}" if setting.null else ""
        raise UserError(f"{setting.name}={text}: expected {error}{or_null}") from None


def default_of(variable: Setting, recipe: Recipe, config: DictConfig) -> str:
    """What the variable is where nobody sets it, in words; "" where the recipe does not read it.

    config: the recipe's, composed without variables and overrides.
    """
    for key in variable.keys_of(recipe)[:1]:
        setting, value = recipe.settings[key], config.run.algorithm if key == GROUP else _unresolved(config, key)
        if setting.default or value is None:
            return setting.default or setting.null
        if reference := re.fullmatch(r"\$\{([\w.]+)\}", str(value)):
            return recipe.settings[reference[1]].name
        return ", ".join(value) if isinstance(value, list) else kinds.shown(value)
    return ""


def _unresolved(config: DictConfig, key: str) -> Any:
    value: Any = OmegaConf.to_container(config, resolve=False)
    for part in key.split("."):
        value = value[part]
    return value
