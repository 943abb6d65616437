"""Kinds of values, and dataclasses of settings whose fields carry their kind and help: for checks and documentation."""

import difflib
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from convrec.errors import UserError


@dataclass(frozen=True)
class Kind:
    """Some of all values: `fits` tells which, `wanted` says it in an error and in the documentation."""

    wanted: str
    fits: Callable[[Any], bool]

    def or_null(self) -> "Kind":
        return Kind(f"{self.wanted}, or null", lambda value: value is None or self.fits(value))


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return (_is_integer(value) or isinstance(value, float)) and math.isfinite(value)


INTEGER = Kind("an integer", _is_integer)
POSITIVE_INTEGER = Kind("a positive integer", lambda value: _is_integer(value) and value > 0)
NON_NEGATIVE_INTEGER = Kind("an integer of at least 0", lambda value: _is_integer(value) and value >= 0)
NUMBER = Kind("a number", _is_number)
NON_NEGATIVE_NUMBER = Kind("a number of at least 0", lambda value: _is_number(value) and value >= 0)
POSITIVE_NUMBER = Kind("a positive number", lambda value: _is_number(value) and value > 0)
NON_POSITIVE_NUMBER = Kind("a number of at most 0", lambda value: _is_number(value) and value <= 0)
ABOVE_ONE = Kind("a number above 1", lambda value: _is_number(value) and value > 1)
FRACTION = Kind("a number above 0, at most 1", lambda value: _is_number(value) and 0 < value <= 1)
PERCENTAGE = Kind("a number above 0, at most 100", lambda value: _is_number(value) and 0 < value <= 100)
BOOLEAN = Kind("true or false", lambda value: isinstance(value, bool))
CHARACTER = Kind("one ASCII character", lambda value: isinstance(value, str) and len(value) == 1 and value.isascii())
TEXT = Kind("text", lambda value: isinstance(value, str) and value != "")
PATH = Kind("a path", TEXT.fits)


def one_of(choices: Collection[str]) -> Kind:
    return Kind("one of " + ", ".join(choices), lambda value: isinstance(value, str) and value in choices)


def setting(default: Any, kind: Kind, help: str) -> Any:
    """A field of a dataclass of settings."""
    return field(default=default, metadata={"kind": kind, "help": help})


def check(values: Mapping[str, Any], schema: type, prefix: str = "") -> None:
    """Raise UserError for a name that the dataclass `schema` lacks, or lacks here, and for a value of another kind.

    prefix: what stands before a name in messages, `convrec.` say.
    """
    known = {entry.name: entry for entry in fields(schema)}
    for name in values:
        if name not in known:
            raise UserError(f"{prefix}{name}: no such setting; {did_you_mean(name, known, prefix)}")
    for name, entry in known.items():
        if name not in values:
            raise UserError(f"{prefix}{name}: missing; its default is {shown(entry.default)}")
        kind = entry.metadata["kind"]
        if not kind.fits(values[name]):
            raise UserError(f"{prefix}{name}={shown(values[name])}: expected {kind.wanted}")


def did_you_mean(name: str, known: Iterable[str], prefix: str = "") -> str:
    """The known names that look like this one, as advice; all of them where none does."""
    known = list(known)
    near = difflib.get_close_matches(name, known, n=2)
    if near:
        return "did you mean " + " or ".join(prefix + other for other in near) + "?"
    return "there are " + ", ".join(prefix + other for other in known)


def shown(value: Any) -> str:
    """As a YAML file or a command line has it; white space as its escape."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str):
        return value if value.isprintable() else repr(value)[1:-1]
    return str(value)


def rows(schema: type) -> list[tuple[str, str, str, str]]:
    """(name, default, what it takes, help) of each field, for the documentation."""
    return [
        (
            entry.name,
            "" if entry.default is MISSING else shown(entry.default),
            entry.metadata["kind"].wanted,
            entry.metadata["help"],
        )
        for entry in fields(schema)
    ]
