"""Values as text: how an environment variable writes them, and how an override of Hydra's does."""

import os
import re
from typing import Any

from convrec.kinds import shown

HYDRA_NAME = re.compile(r"[\w./\\+$%*@?|()\[\]{}:=, \t-]+", re.ASCII)  # what its grammar has without quotes


def absolute_path(text: str) -> str:
    return os.path.abspath(os.path.expanduser(text))


def comma_separated(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]


def weights(text: str) -> Any:
    """The mapping of `relevance: 1, diversity: 0.3`, with braces or without; the text itself where it is none."""
    inside = text[1:-1] if text.startswith("{") and text.endswith("}") else text
    pairs = [[side.strip() for side in entry.rpartition(":")[::2]] for entry in inside.split(",") if entry.strip()]
    try:
        by_name = {name: float(weight) for name, weight in pairs}
    except ValueError:
        return text
    for name in by_name:
        if not HYDRA_NAME.fullmatch(name):
            raise ValueError(f"names in ASCII, without quotes, ; and #, for Hydra: rename the column of {name}")
    return by_name if len(by_name) == len(pairs) else text


def in_hydra(value: Any) -> str:
    """The value in Hydra's grammar, which gives `=`, `,` and brackets a meaning."""
    if isinstance(value, str):
        escaped = re.sub(r"\\+(?='|\Z)", lambda match: match[0] * 2, value)  # others mean themselves
        return "'" + escaped.replace("'", "\\'") + "'"
    if isinstance(value, list):
        return "[" + ", ".join(map(in_hydra, value)) + "]"
    if isinstance(value, dict):
        escaped_names = {name: re.sub(r"([\\()\[\]{}:=, \t])", r"\\\1", name) for name in value}
        return "{" + ", ".join(f"{escaped_names[name]}: {in_hydra(inner)}" for name, inner in value.items()) + "}"
    return shown(value)
