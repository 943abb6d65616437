"""Kinds of values: pydantic types, each with the description that errors and the documentation use."""

import contextlib
import difflib
from collections.abc import Callable, Collection, Iterable
from functools import cache
from typing import Annotated, Any

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError

from convrec.base.errors import UserError

Integer = Annotated[int, Field(description="an integer")]
PositiveInteger = Annotated[int, Field(gt=0, description="a positive integer")]
NonNegativeInteger = Annotated[int, Field(ge=0, description="an integer of at least 0")]
_Finite = Annotated[float, Field(allow_inf_nan=False)]
Number = Annotated[_Finite, Field(description="a number")]
PositiveNumber = Annotated[_Finite, Field(gt=0, description="a positive number")]
NonNegativeNumber = Annotated[_Finite, Field(ge=0, description="a number of at least 0")]
NonPositiveNumber = Annotated[_Finite, Field(le=0, description="a number of at most 0")]
AboveOne = Annotated[_Finite, Field(gt=1, description="a number above 1")]
Fraction = Annotated[float, Field(gt=0, le=1, description="a number above 0, at most 1")]
BelowOne = Annotated[float, Field(ge=0, lt=1, description="a number of at least 0, below 1")]
ItemCount = Annotated[int, Field(ge=1, le=100, description="1 to 100")]
Percentage = Annotated[float, Field(gt=0, le=100, description="a number above 0, at most 100")]
Boolean = Annotated[bool, Field(description="true or false")]
Character = Annotated[str, Field(pattern=r"\A[\x00-\x7f]\z", description="one ASCII character")]
Text = Annotated[str, Field(min_length=1, description="text")]
Path = Annotated[str, Field(min_length=1, description="a path")]

_adapter = cache(TypeAdapter)


def satisfying(predicate: Callable[[Any], bool]) -> AfterValidator:
    """Restrict a type to the values that satisfy a predicate.

    Args:
        predicate: called with a value that is already of the type. It returns False to reject the value, and must not
            raise anything but ValueError.

    Returns:
        Metadata for `Annotated[type, ...]`. It has no description; the type needs its own.
    """

    def check(value: Any) -> Any:
        if not predicate(value):
            raise ValueError
        return value

    return AfterValidator(check)


def one_of(choices: Collection[str]) -> Any:
    """Return the kind of these texts; choices that are added to the collection later are valid too."""
    return Annotated[str, satisfying(lambda text: text in choices), Field(description="one of " + ", ".join(choices))]


def describe_type(kind: Any) -> str:
    """Return the description of a kind's values."""
    return _adapter(kind).json_schema()["description"]


def is_valid(kind: Any, value: Any) -> bool:
    """Return whether a value is of the kind, without conversion.

    Args:
        kind: a type, as those above. A number does not match a text kind, nor a text a number kind.
        value: anything.
    """
    try:
        _adapter(kind).validate_python(value, strict=True)
    except ValidationError:
        return False
    return True


def read(kind: Any, text: str) -> Any:
    """Parse a text as a value of the kind.

    Raises:
        ValueError: the text is not such a value; the message describes the kind.
    """
    for convert in (str, _parse_boolean, int, float):
        with contextlib.suppress(ValueError):  # pydantic's ValidationError is one
            return _adapter(kind).validate_python(convert(text), strict=True)
    raise ValueError(describe_type(kind))


def _parse_boolean(text: str) -> bool:
    if text not in ("0", "1", "false", "true"):
        raise ValueError(text)
    return text in ("1", "true")


def check(name: str, value: Any, kind: Any) -> None:
    """Check that a setting's value is of a kind.

    Args:
        name: of the setting, for the error message.
        value: the setting's value.
        kind: one of this module.

    Raises:
        UserError: the value is of another kind.
    """
    if not is_valid(kind, value):
        raise UserError("settings.wrong-kind", f"{name}={to_yaml_scalar(value)}: expected {describe_type(kind)}")


def did_you_mean(name: str, known: Iterable[str], prefix: str = "") -> str:
    """Suggest the known names that are similar to an unknown one, or list all of them if none is.

    Args:
        name: the unknown name.
        known: the valid names.
        prefix: of every name in the suggestion.
    """
    names = list(known)
    similar = difflib.get_close_matches(name, names, n=2)
    if similar:
        return "did you mean " + " or ".join(prefix + other for other in similar) + "?"
    return "there are " + ", ".join(prefix + other for other in names)


def to_yaml_scalar(value: Any) -> str:
    """Return a value as a YAML file or a command line writes it, with white space escaped."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str):
        return value if value.isprintable() else repr(value)[1:-1]
    return str(value).replace("e-0", "e-")  # 5e-5 is 5e-05 to Python
