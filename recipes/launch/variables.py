"""The environment variables of the recipes: what they say as overrides of Hydra's, and their defaults.

Overrides on the command line come after them and win.
"""

import re
from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

from convrec import kinds
from convrec.errors import UserError
from recipes.launch.recipe import Recipe
from recipes.launch.schema import GROUP, SETTINGS, Setting
from recipes.launch.texts import in_hydra

VARIABLES = tuple(setting for setting in SETTINGS if setting.name)


def overrides_from_environment(recipe: Recipe, environment: Mapping[str, str]) -> list[str]:
    """Hydra overrides for every variable that is set, in the table's order.

    Raises UserError naming the variable, its value and what it takes.
    """
    overrides = []
    for variable in VARIABLES:
        text = environment.get(variable.name, "").strip()
        keys = variable.keys_of(recipe)
        if not text or not keys:
            continue
        is_nullable = bool(variable.null_of(recipe))
        try:
            value = None if is_nullable and text == variable.null_word else _read(variable, text)
        except ValueError as error:
            or_null = f", or {variable.null_word}" if is_nullable else ""
            raise UserError(f"{variable.name}={text}: expected {error}{or_null}") from None
        overrides += [f"{key}={in_hydra(value)}" for key in keys]
    return overrides


def _read(variable: Setting, text: str) -> Any:
    if variable.read is None:
        return kinds.read(variable.kind, text)
    value = variable.read(text)
    if not kinds.fits(variable.kind, value):
        raise ValueError(kinds.wanted(variable.kind))
    return value


def default_of(setting: Setting, recipe: Recipe, config: DictConfig) -> str:
    """What it is where nobody sets it, in words. config: the recipe's, composed without variables and overrides."""
    key, *_ = setting.keys_of(recipe)
    value = config.run.algorithm if key == GROUP else _unresolved(config, key)
    if setting.default or value is None:
        return setting.default or setting.null_of(recipe)
    if reference := re.fullmatch(r"\$\{([\w.]+)\}", str(value)):
        return next(other.name for other in VARIABLES if reference[1] in other.keys_of(recipe))
    return ", ".join(value) if isinstance(value, list) else kinds.shown(value)


def _unresolved(config: DictConfig, key: str) -> Any:
    value: Any = OmegaConf.to_container(config, resolve=False)
    for part in key.split("."):
        value = value[part]
    return value
