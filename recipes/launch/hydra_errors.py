"""What Hydra refuses, in a line that names the override and the nearest name there is."""

import difflib
import re
from collections.abc import Callable, Iterator
from typing import Any

from hydra.errors import MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf

from recipes.launch.variables import VARIABLES

_UNKNOWN_KEY = re.compile(r"Could not override '([^']+)'")


def explain(error: Exception, without_overrides: Callable[[], DictConfig]) -> str:
    """The error's line. without_overrides: composes the config that the unknown key is not in."""
    if unknown := _UNKNOWN_KEY.match(str(error)):
        key = unknown[1]
        within = str(getattr(error.__cause__, "full_key", ""))
        key = within if within.startswith(key) else key  # of section={key: value}
        return f"{key}: no such setting; {_advice(key, without_overrides())}"
    if isinstance(error, OverrideParseException):
        return f"{error.override}: Hydra cannot read it; put 'single quotes' around a value with special characters"
    if isinstance(error, MissingConfigException) and error.options:
        group, _, name = str(error.missing_cfg_file).rpartition("/")
        return f"{group}={name}: expected one of {', '.join(error.options)}"
    return f"settings: {str(error).strip().splitlines()[0]}"


def _advice(key: str, config: DictConfig) -> str:
    """Keys that look like this one: of its section; of a section that looks like its; that end in the same word."""
    if key.upper() in {variable.name for variable in VARIABLES}:
        return f"{key.upper()} is an environment variable: write {key.upper()}=... before the command"
    names = [*_names(OmegaConf.to_container(config, resolve=False))]
    section, _, word = key.rpartition(".")
    beside = {name.rpartition(".")[2]: name for name in names if name.rpartition(".")[0] == section}
    near = [beside[other] for other in difflib.get_close_matches(word, beside, n=2, cutoff=0.64)]
    near = near or difflib.get_close_matches(key, names, n=1, cutoff=0.85)
    near = near or sorted((name for name in names if name.rpartition(".")[2] == word), key=len)[:2]
    if near:
        return "did you mean " + " or ".join(near) + "?"
    return f"to add it all the same, write +{key}=..."


def _names(section: Any, prefix: str = "") -> Iterator[str]:
    """Dotted names of everything below a section."""
    for name, value in section.items():
        yield prefix + str(name)
        if isinstance(value, dict):
            yield from _names(value, f"{prefix}{name}.")
