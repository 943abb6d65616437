"""What the text of an environment variable means, where it is more than a number, a truth value or a name."""

import os
import re
from typing import Any

HYDRA_NAME = re.compile(r"[\w./\\+$%*@?|()\[\]{}:=, \t-]+", re.ASCII)  # what its grammar has without quotes


def absolute_path(text: str) -> str:
    return os.path.abspath(os.path.expanduser(text))


def comma_separated(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]


def weights(text: str) -> Any:
    """Return the mapping of `relevance: 1, diversity: 0.3`, with braces or without; the text itself where it is none.

    Raises:
        ValueError: Hydra cannot read a name.
    """
    inside = text[1:-1] if text.startswith("{") and text.endswith("}") else text
    by_name: dict[str, float] = {}
    for entry in inside.split(","):
        if not entry.strip():
            continue
        name, _, number = entry.rpartition(":")
        name = name.strip()
        try:
            weight = float(number.strip())
        except ValueError:
            return text
        if name in by_name:
            return text
        by_name[name] = weight
    for name in by_name:
        if not HYDRA_NAME.fullmatch(name):
            raise ValueError(f"names in ASCII, without quotes, ; and #, for Hydra: rename the column of {name}")
    return by_name
