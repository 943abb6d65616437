"""Write and parse settings as Hydra overrides, `key=value`."""

import re
from collections.abc import Iterator
from typing import Any

from convrec.base import kinds
from convrec.base.fields import Settings, setting_rows
from convrec.settings.readers import absolute_path


def overrides(settings: Settings) -> list[str]:
    """Return an override for each setting that differs from its default; paths become absolute, as in variables."""
    lines = []
    for row in setting_rows(type(settings)).values():
        value = getattr(settings, row.field)
        if value == row.default:
            continue
        if row.setting.read is absolute_path and isinstance(value, str):
            value = absolute_path(value)
        lines += [f"{key}={to_hydra(value)}" for key in row.keys]
    return lines


def to_hydra(value: Any) -> str:
    """Return the value in Hydra's grammar, in which `=`, `,` and brackets have a meaning."""
    if isinstance(value, str):
        escaped = re.sub(r"\\+(?='|\Z)", lambda match: match[0] * 2, value)  # other backslashes need no escape
        return "'" + escaped.replace("'", "\\'") + "'"
    if isinstance(value, list):
        return "[" + ", ".join(map(to_hydra, value)) + "]"
    if isinstance(value, dict):
        escaped_names = {name: re.sub(r"([\\()\[\]{}:=, \t])", r"\\\1", name) for name in value}
        return "{" + ", ".join(f"{escaped_names[name]}: {to_hydra(inner)}" for name, inner in value.items()) + "}"
    return kinds.to_yaml_scalar(value)


def override_leaves(argument: str) -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) of everything that an override sets, also for `section={key: value}`.

    Raises:
        OverrideParseException: Hydra cannot parse it.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser

    override = OverridesParser.create().parse_override(argument)
    yield from _leaves(override.key_or_group, override.value())


def _leaves(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _leaves(f"{key}.{name}", inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _leaves(key, inner)
    else:
        yield key, value
