"""Hydra's errors as one line that names the override and the most similar setting."""

import difflib
import re
from collections.abc import Callable, Iterator
from typing import Any

from hydra.errors import MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf

from recipes.launch.variables import VARIABLES

_UNKNOWN_KEY = re.compile(r"Could not override '([^']+)'")


def describe_override_error(error: Exception, compose_defaults: Callable[[], DictConfig]) -> str:
    """Describe an error of Hydra's in one line.

    Args:
        error: raised while overrides were composed.
        compose_defaults: composes the config without the overrides; called only to look up similar names.
    """
    if unknown := _UNKNOWN_KEY.match(str(error)):
        key = unknown[1]
        full_key = str(getattr(error.__cause__, "full_key", ""))
        key = full_key if full_key.startswith(key) else key  # for section={key: value}
        return f"{key}: no such setting; {_suggest_keys(key, compose_defaults())}"
    if isinstance(error, OverrideParseException):
        return f"{error.override}: Hydra cannot parse it; put 'single quotes' around a value with special characters"
    if isinstance(error, MissingConfigException) and error.options:
        group, _, name = str(error.missing_cfg_file).rpartition("/")
        return f"{group}={name}: expected one of {', '.join(error.options)}"
    return f"settings: {str(error).strip().splitlines()[0]}"


def _suggest_keys(key: str, config: DictConfig) -> str:
    """Suggest similar keys: from the same section, else from a similar section, else with the same last word."""
    if key.upper() in {variable.name for variable in VARIABLES}:
        return f"{key.upper()} is an environment variable: write {key.upper()}=... before the command"
    names = [*_iter_names(OmegaConf.to_container(config, resolve=False))]
    section, _, word = key.rpartition(".")
    siblings = {name.rpartition(".")[2]: name for name in names if name.rpartition(".")[0] == section}
    similar = [siblings[other] for other in difflib.get_close_matches(word, siblings, n=2, cutoff=0.64)]
    similar = similar or difflib.get_close_matches(key, names, n=1, cutoff=0.85)
    similar = similar or sorted((name for name in names if name.rpartition(".")[2] == word), key=len)[:2]
    if similar:
        return "did you mean " + " or ".join(similar) + "?"
    return f"to add it anyway, write +{key}=..."


def _iter_names(section: Any, prefix: str = "") -> Iterator[str]:
    """Yield the dotted names of everything below a section."""
    for name, value in section.items():
        yield prefix + str(name)
        if isinstance(value, dict):
            yield from _iter_names(value, f"{prefix}{name}.")
