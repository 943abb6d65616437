"""Build commands from typed records: the fields of a dataclass are a command's options, parsed by cyclopts.

A record's docstring is the beginning of `--help`; the string below a field is the help of its option. Records are in
modules that import almost nothing, so that `--help` and errors in options appear at once.
"""

import dataclasses
import difflib
import inspect
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from typing import Annotated, Any, ClassVar, Literal, Protocol, TypeVar, get_args, get_origin

from cyclopts import App, CycloptsError, Parameter
from cyclopts.exceptions import (
    CoercionError,
    MissingArgumentError,
    UnknownOptionError,
    UnusedCliTokensError,
)

from convrec.base.errors import UserError

HELP = ("--help", "-h")
NOT_SAMPLING = {"model", "messages", "stream"}  # parts of a request that the program sets


class Record(Protocol):
    """The options of a command: a dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]
    COMMAND: ClassVar[str]


Options = TypeVar("Options", bound=Record)


# ---- kinds of values


@dataclasses.dataclass(frozen=True)
class Number:
    """A parser for numbers.

    Attributes:
        kind: int or float.
        takes: describes the valid numbers.
        is_valid: whether a number is valid.
    """

    kind: type[int] | type[float]
    takes: str
    is_valid: Callable[[float], bool] = math.isfinite

    def __call__(self, text: str) -> float:
        try:
            number = self.kind(text)
        except ValueError:
            raise ValueError(self.takes) from None
        if not self.is_valid(number):
            raise ValueError(self.takes)
        return number


@dataclasses.dataclass(frozen=True)
class _Converter:
    """Adapter that lets cyclopts call a function of one text."""

    read: Callable[[str], Any]

    def __call__(self, _: Any, tokens: Sequence[Any]) -> Any:
        return self.read(tokens[0].value)


def read_with(read: Callable[[str], Any]) -> Parameter:
    """Return the parameter of an option with one value.

    Args:
        read: parses the value. Its ValueError describes the valid values.
    """
    return Parameter(converter=_Converter(read), n_tokens=1, accepts_keys=False, consume_multiple=False)


Integer = Annotated[int, read_with(Number(int, "an integer"))]
PositiveInteger = Annotated[int, read_with(Number(int, "a positive integer", lambda number: number > 0))]
NonNegativeInteger = Annotated[int, read_with(Number(int, "an integer of at least 0", lambda number: number >= 0))]
ItemCount = Annotated[int, read_with(Number(int, "1 to 100", lambda number: 1 <= number <= 100))]
FiniteNumber = Annotated[float, read_with(Number(float, "a number"))]
PositiveNumber = Annotated[float, read_with(Number(float, "a positive number", lambda number: 0 < number < math.inf))]
NonNegativeNumber = Annotated[
    float, read_with(Number(float, "a number of at least 0", lambda number: 0 <= number < math.inf))
]
Fraction = Annotated[float, read_with(Number(float, "a number above 0, at most 1", lambda number: 0 < number <= 1))]
BelowOne = Annotated[float, read_with(Number(float, "a number of at least 0, below 1", lambda number: 0 <= number < 1))]


def read_json_object(text: str) -> dict[str, Any]:
    """Parse a JSON object.

    Raises:
        ValueError: the text is not JSON, or not an object; the message describes the valid values, as for `read_with`.
    """
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ValueError(f"a JSON object ({error})") from None
    if not isinstance(value, dict):
        raise ValueError("a JSON object")
    return value


def check_sampling(parameters: dict[str, Any]) -> dict[str, Any]:
    """Check the sampling parameters of requests to a model.

    Args:
        parameters: name -> value. Values are not checked: the model's server refuses wrong ones.

    Returns:
        The same object.

    Raises:
        ValueError: one of them is a part of requests that the program sets (NOT_SAMPLING).
    """
    if others := sorted(parameters.keys() & NOT_SAMPLING):
        raise ValueError(f"sampling parameters as JSON, without {', '.join(others)}")
    return parameters


def read_sampling(text: str) -> dict[str, Any]:
    """Parse sampling parameters from JSON.

    Raises:
        ValueError: see `read_json_object` and `check_sampling`.
    """
    return check_sampling(read_json_object(text))


JsonObject = Annotated[dict[str, Any], read_with(read_json_object)]
Sampling = Annotated[dict[str, Any], read_with(read_sampling)]
CommaSeparated = Annotated[Sequence[str], read_with(lambda text: text.split(",")), Parameter(metavar="A,B")]
Repeated = Parameter(consume_multiple=False)  # one value per occurrence of the option, in order
AnyNumber = Parameter(consume_multiple=True)  # any number of values, including none
Group = Parameter(name="*")  # a record whose options several commands share


# ---- a command


def command(record: type[Options]) -> Callable[[Callable[[Options], int]], Callable[[Sequence[str]], int]]:
    """Turn a function of a record into a command that takes arguments and returns the exit status.

    `--help` exits. An invalid option or a UserError of the function becomes one line on stderr and status 2.
    """

    def decorate(function: Callable[[Options], int]) -> Callable[[Sequence[str]], int]:
        @wraps(function)
        def run(arguments: Sequence[str]) -> int:
            try:
                return function(parse(record, arguments))
            except UserError as error:
                print(error.as_line(), file=sys.stderr)
                return 2

        return run

    return decorate


def parse(record: type[Options], arguments: Sequence[str]) -> Options:
    """Parse the options of a command.

    Raises:
        UserError: an option is missing, unknown or has an invalid value.
        SystemExit: after `--help`.
    """
    app = make_app(record)
    if set(HELP) & set(arguments):
        app.help_print([])
        raise SystemExit(0)
    try:
        words = [_Dash(word) if word == "-" else word for word in arguments]
        function, bound, _ = app.parse_args(words, exit_on_error=False, print_error=False)
    except CycloptsError as error:
        raise _convert_error(error, record, arguments) from None
    return function(*bound.args, **bound.kwargs)


class _Dash(str):
    """A lone `-`, which is a value, as in argparse; cyclopts would take it for an option."""

    def startswith(self, *_: Any) -> bool:
        return False


def make_app(record: type[Record]) -> App:
    """Return the command as a cyclopts app."""
    defaults = Parameter(
        negative="",
        allow_repeating=True,
        consume_multiple=(1, None),
        show_default=_describe_default,
        json_list=False,  # a value that begins with [ or { is plain text
        json_dict=False,
    )
    app = App(
        name=f"convrec {record.COMMAND}",
        help=help_text(record),
        help_format="plaintext",
        help_flags=(),  # `parse` handles them, even if other options are wrong
        version_flags=(),
        default_parameter=defaults,
    )
    app.default(record)
    return app


def _describe_default(value: Any) -> str | None:
    """Return a default as a user would type it, None if it is empty."""
    if value is None or value is False or value in ("", (), {}):
        return None
    return " ".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


def help_text(record: type[Record]) -> str:
    """Return the record's docstring with one line per paragraph; examples stay unchanged."""
    paragraphs = (inspect.getdoc(record) or "").split("\n\n")
    return "\n\n".join(text if text.startswith("convrec ") else " ".join(text.split()) for text in paragraphs)


@dataclasses.dataclass(frozen=True)
class OptionHelp:
    """An option as `--help` describes it.

    Attributes:
        names: as they are typed.
        help: the description.
        is_required: whether it must be given.
        default: "" if it is empty.
        choices: the valid values, if they are a fixed set.
    """

    names: tuple[str, ...]
    help: str
    is_required: bool
    default: str
    choices: tuple[str, ...]


def describe_options(record: type[Record]) -> Iterator[OptionHelp]:
    """Yield the options of a record in the order of its help."""
    for argument in make_app(record).assemble_argument_collection(parse_docstring=True):
        if not argument.show:
            continue
        default = argument.field_info.default
        yield OptionHelp(
            names=argument.names if argument.field_info.is_keyword_only else (_format_name(argument),),
            help=argument.parameter.help or "",
            is_required=argument.required,
            default="" if default is argument.field_info.empty else _describe_default(default) or "",
            choices=tuple(argument.get_choices() or ()),
        )


def completion_script(records: Mapping[str, type[Record] | None], shell: Literal["bash", "zsh", "fish"]) -> str:
    """Return the shell script that completes these commands and the options of their records.

    Args:
        records: the command as it is typed after `convrec`, with spaces in the names of groups -> its record; None for
            a command without options.
        shell: the shell that reads the script.
    """
    root = App(name="convrec", version_flags=())
    for name, record in records.items():
        *groups, last = name.split()
        parent = root
        for group in groups:
            if group not in parent:
                parent.command(App(name=group, version_flags=()))
            parent = parent[group]
        app = make_app(record) if record else App(version_flags=())
        parent.command(app, name=last)
    return root.generate_completion(prog_name="convrec", shell=shell)


# ---- errors


def _convert_error(error: CycloptsError, record: type[Record], arguments: Sequence[str]) -> UserError:
    """Return an error of cyclopts as one line with a fix."""
    see_help = f"see convrec {record.COMMAND} --help"
    match error:
        case UnknownOptionError():
            return _make_unknown_error(error.token.keyword or error.token.value, record)
        case UnusedCliTokensError():
            words = " ".join(error.unused_tokens or ())
            return UserError("option.unexpected-argument", f"{words}: no option takes this; {see_help}")
        case MissingArgumentError() if error.argument and _is_present(error.argument, arguments):
            values = _describe_values(error.argument)
            return UserError("option.missing-value", f"{_format_name(error.argument)}: give {values}")
        case MissingArgumentError():
            # A mistyped option makes another one missing.
            for word in arguments:
                name = word.partition("=")[0]
                if name.startswith("--") and name not in _list_names(record):
                    return _make_unknown_error(name, record)
            names = ", ".join(_list_missing(record, arguments) or [_format_name(error.argument)])
            return UserError("option.missing-option", f"{names}: missing; {see_help}")
        case CoercionError() if error.argument and error.token:
            value = error.token.value
            values = str(error.msg or _describe_values(error.argument))
            return UserError("option.invalid-value", f"{_format_name(error.argument)} {value}: give {values}")
    return UserError("option.invalid-arguments", f"{' '.join(str(error).split())}; {see_help}")


def _list_names(record: type[Record]) -> list[str]:
    """Return the names of a command's options, as they are typed."""
    return [name for argument in make_app(record).assemble_argument_collection() for name in argument.names]


def _make_unknown_error(name: str, record: type[Record]) -> UserError:
    similar = difflib.get_close_matches(name, _list_names(record), n=2)
    fix = f"did you mean {' or '.join(similar)}?" if similar else f"see convrec {record.COMMAND} --help"
    return UserError("option.unknown-option", f"{name}: no such option; {fix}")


def _format_name(argument: Any) -> str:
    """Return an argument as users type it: `--k`, or RUN for a positional one."""
    return argument.name if argument.field_info.is_keyword_only else argument.name.strip("-").upper()


def _is_present(argument: Any, arguments: Sequence[str]) -> bool:
    return any(word.partition("=")[0] in argument.names for word in arguments)


def _list_missing(record: type[Record], arguments: Sequence[str]) -> list[str]:
    """Return the required options that are missing."""
    options = [option for option in make_app(record).assemble_argument_collection() if option.required]
    return [
        option.name for option in options if option.field_info.is_keyword_only and not _is_present(option, arguments)
    ]


def _describe_values(argument: Any) -> str:
    """Describe the valid values of an option."""
    parts = list(_iter_parts(argument.field_info.annotation))
    choices = [str(choice) for part in parts if get_origin(part) is Literal for choice in get_args(part)]
    readers = {getattr(getattr(part, "converter", None), "read", None) for part in parts}
    numbers = [reader.takes for reader in readers if isinstance(reader, Number)]
    if choices and not numbers:
        return f"one of {', '.join(choices)}"
    return ", or ".join([*choices, *numbers]) or "a value"


def _iter_parts(annotation: Any) -> Iterator[Any]:
    """Yield a type, and recursively the types and metadata that it consists of."""
    yield annotation
    if get_origin(annotation) is not Literal:
        for part in (*get_args(annotation), *getattr(annotation, "__metadata__", ())):
            yield from _iter_parts(part)
