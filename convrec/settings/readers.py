"""Parse environment variables that are more than a number, a truth value or a name."""

import os
import re
from typing import Any

HYDRA_NAME = re.compile(r"[\w./\\+$%*@?|()\[\]{}:=, \t-]+", re.ASCII)  # names that Hydra's grammar allows unquoted


def absolute_path(text: str) -> str:
    """Return an absolute path; `~` is the home folder."""
    return os.path.abspath(os.path.expanduser(text))


def comma_separated(text: str) -> list[str]:
    """Split a text at its commas."""
    return [part.strip() for part in text.split(",")]


def parse_weights(text: str) -> Any:
    """Parse `relevance: 1, diversity: 0.1`, with or without braces; return the text itself if it has another form.

    Raises:
        ValueError: Hydra cannot parse a name.
    """
    inside = text[1:-1] if text.startswith("{") and text.endswith("}") else text
    weights: dict[str, float] = {}
    for entry in inside.split(","):
        if not entry.strip():
            continue
        name, _, number = entry.rpartition(":")
        name = name.strip()
        try:
            weight = float(number.strip())
        except ValueError:
            return text
        if name in weights:
            return text
        weights[name] = weight
    for name in weights:
        if not HYDRA_NAME.fullmatch(name):
            raise ValueError(f"names in ASCII, without quotes, ; and #, for Hydra: rename the column of {name}")
    return weights
