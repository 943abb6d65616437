"""Kinds of values: pydantic's types, each described in the words by which errors and the documentation call it."""

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


def only(is_so: Callable[[Any], bool]) -> AfterValidator:
    """For a type: of its values those that this is so of."""

    def check(value: Any) -> Any:
        if not is_so(value):
            raise ValueError
        return value

    return AfterValidator(check)


def one_of(choices: Collection[str]) -> Any:
    """The kind of these texts; an entry that a table of choices gets later is one of them."""
    return Annotated[str, only(lambda text: text in choices), Field(description="one of " + ", ".join(choices))]


def wanted(kind: Any) -> str:
    """What the kind takes, in words."""
    return _adapter(kind).json_schema()["description"]


def fits(kind: Any, value: Any) -> bool:
    """Whether a value is of the kind as it stands: a text is no number, and a number no text."""
    try:
        _adapter(kind).validate_python(value, strict=True)
    except ValidationError:
        return False
    return True


def read(kind: Any, text: str) -> Any:
    """The value of the kind that a text writes. Raises ValueError with what the kind takes."""
    for reading in (str, _as_boolean, int, float):
        with contextlib.suppress(ValueError):  # pydantic's ValidationError is one
            return _adapter(kind).validate_python(reading(text), strict=True)
    raise ValueError(wanted(kind))


def _as_boolean(text: str) -> bool:
    if text not in ("0", "1", "false", "true"):
        raise ValueError(text)
    return text in ("1", "true")


def check(name: str, value: Any, kind: Any) -> None:
    if not fits(kind, value):
        raise UserError(f"{name}={shown(value)}: expected {wanted(kind)}")


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
    return str(value).replace("e-0", "e-")  # 5e-5 is 5e-05 to Python
