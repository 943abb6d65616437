"""Commands from typed records: the fields of a dataclass are a command's options, read and described by cyclopts.

A record's docstring is what `--help` begins with; the string below a field is the help of its option. Records stand in
modules that import next to nothing, so that `--help` and a mistyped option answer at once.
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
NOT_SAMPLING = {"model", "messages", "stream"}  # of a request to a model: ours to say


class Record(Protocol):
    """The options of a command: a dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]
    COMMAND: ClassVar[str]


Options = TypeVar("Options", bound=Record)


# ---- kinds of values


@dataclasses.dataclass(frozen=True)
class Number:
    """Reads a number. takes: what it accepts, in words."""

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
    """A function of one text, as cyclopts calls it."""

    read: Callable[[str], Any]

    def __call__(self, _: Any, tokens: Sequence[Any]) -> Any:
        return self.read(tokens[0].value)


def read_with(read: Callable[[str], Any]) -> Parameter:
    """An option with one value that this function reads. Its ValueError says what the option takes."""
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
    """Raise ValueError for what is no JSON object."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ValueError(f"a JSON object ({error})") from None
    if not isinstance(value, dict):
        raise ValueError("a JSON object")
    return value


def check_sampling(parameters: dict[str, Any]) -> dict[str, Any]:
    """Raise ValueError for what are no sampling parameters of a request to a model."""
    if others := sorted(parameters.keys() & NOT_SAMPLING):
        raise ValueError(f"sampling parameters as JSON; {', '.join(others)} is none")
    return parameters


def read_sampling(text: str) -> dict[str, Any]:
    """Raise ValueError as the two above do."""
    return check_sampling(read_json_object(text))


JsonObject = Annotated[dict[str, Any], read_with(read_json_object)]
Sampling = Annotated[dict[str, Any], read_with(read_sampling)]
CommaSeparated = Annotated[Sequence[str], read_with(lambda text: text.split(",")), Parameter(metavar="A,B")]
Repeated = Parameter(consume_multiple=False)  # one value each time that the option is given, in their order
AnyNumber = Parameter(consume_multiple=True)  # of values; none, too
Group = Parameter(name="*")  # of a record that several commands have among theirs: its options stand beside the others


# ---- a command


def command(record: type[Options]) -> Callable[[Callable[[Options], int]], Callable[[Sequence[str]], int]]:
    """Make a command of a function that takes the record: from arguments to exit status.

    `--help` ends the process. A wrong option, and every UserError of the function, is one line on stderr and status 2.
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
    """Read the options of a command.

    Raises:
        UserError: In one line, for what is missing, unknown or no such value.
        SystemExit: After `--help`.
    """
    app = make_app(record)
    if set(HELP) & set(arguments):
        app.help_print([])
        raise SystemExit(0)
    try:
        words = [_Dash(word) if word == "-" else word for word in arguments]
        function, bound, _ = app.parse_args(words, exit_on_error=False, print_error=False)
    except CycloptsError as error:
        raise UserError(_explain(error, record, arguments)) from None
    return function(*bound.args, **bound.kwargs)


class _Dash(str):
    """A lone `-`: a value, as for argparse. cyclopts takes what begins with one for an option."""

    def startswith(self, *_: Any) -> bool:
        return False


def make_app(record: type[Record]) -> App:
    """The command as cyclopts has it."""
    defaults = Parameter(
        negative="",
        allow_repeating=True,
        consume_multiple=(1, None),
        show_default=_describe_default,
        json_list=False,  # a value that begins with [ or { is a text
        json_dict=False,
    )
    app = App(
        name=f"convrec {record.COMMAND}",
        help=help_text(record),
        help_format="plaintext",
        help_flags=(),  # `parse` answers them: what else is on the command line need not be right
        version_flags=(),
        default_parameter=defaults,
    )
    app.default(record)
    return app


def _describe_default(value: Any) -> str | None:
    """As it would be typed; None for what is nothing."""
    if value is None or value is False or value in ("", (), {}):
        return None
    return " ".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


def help_text(record: type[Record]) -> str:
    """The record's docstring, a paragraph a line; its examples stay as they are."""
    paragraphs = (inspect.getdoc(record) or "").split("\n\n")
    return "\n\n".join(text if text.startswith("convrec ") else " ".join(text.split()) for text in paragraphs)


@dataclasses.dataclass(frozen=True)
class OptionHelp:
    """An option as `--help` describes it. default: "" where it is nothing."""

    names: tuple[str, ...]
    help: str
    is_required: bool
    default: str
    choices: tuple[str, ...]


def describe_options(record: type[Record]) -> Iterator[OptionHelp]:
    """The options of a record, in the order of its help."""
    for argument in make_app(record).assemble_argument_collection(parse_docstring=True):
        if not argument.show:
            continue
        default = argument.field_info.default
        yield OptionHelp(
            names=argument.names if argument.field_info.is_keyword_only else (_name(argument),),
            help=argument.parameter.help or "",
            is_required=argument.required,
            default="" if default is argument.field_info.empty else _describe_default(default) or "",
            choices=tuple(argument.get_choices() or ()),
        )


def completion_script(records: Mapping[str, type[Record] | None], shell: Literal["bash", "zsh", "fish"]) -> str:
    """What a shell reads to complete these commands, with their options where there is a record."""
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


def _explain(error: CycloptsError, record: type[Record], arguments: Sequence[str]) -> str:
    """Say in one line what is wrong and what to do."""
    see_help = f"see convrec {record.COMMAND} --help"
    match error:
        case UnknownOptionError():
            return _describe_unknown(error.token.keyword or error.token.value, record)
        case UnusedCliTokensError():
            return f"{' '.join(error.unused_tokens or ())}: no option takes this; {see_help}"
        case MissingArgumentError() if error.argument and _is_given(error.argument, arguments):
            return f"{_name(error.argument)}: give {_describe_values(error.argument)}"
        case MissingArgumentError():
            # A mistyped option is why another one is missing.
            for word in arguments:
                name = word.partition("=")[0]
                if name.startswith("--") and name not in _known_names(record):
                    return _describe_unknown(name, record)
            return f"{', '.join(_missing(record, arguments) or [_name(error.argument)])}: missing; {see_help}"
        case CoercionError() if error.argument and error.token:
            value = error.token.value
            takes = _describe_values(error.argument)
            return f"{_name(error.argument)} {value}: give {error.msg or takes}"
    return f"{' '.join(str(error).split())}; {see_help}"


def _known_names(record: type[Record]) -> list[str]:
    """The names of a command's options, as they are typed."""
    return [name for argument in make_app(record).assemble_argument_collection() for name in argument.names]


def _describe_unknown(name: str, record: type[Record]) -> str:
    near = difflib.get_close_matches(name, _known_names(record), n=2)
    fix = f"did you mean {' or '.join(near)}?" if near else f"see convrec {record.COMMAND} --help"
    return f"{name}: no such option; {fix}"


def _name(argument: Any) -> str:
    """As the user writes it: `--k`, or RUN of an argument without a name."""
    return argument.name if argument.field_info.is_keyword_only else argument.name.strip("-").upper()


def _is_given(argument: Any, arguments: Sequence[str]) -> bool:
    return any(word.partition("=")[0] in argument.names for word in arguments)


def _missing(record: type[Record], arguments: Sequence[str]) -> list[str]:
    """The options that are needed and not given."""
    needed = [one for one in make_app(record).assemble_argument_collection() if one.required]
    return [one.name for one in needed if one.field_info.is_keyword_only and not _is_given(one, arguments)]


def _describe_values(argument: Any) -> str:
    """What an option takes, in words."""
    parts = list(_parts(argument.field_info.annotation))
    choices = [str(choice) for part in parts if get_origin(part) is Literal for choice in get_args(part)]
    readers = {getattr(getattr(part, "converter", None), "read", None) for part in parts}
    numbers = [reader.takes for reader in readers if isinstance(reader, Number)]
    if choices and not numbers:
        return f"one of {', '.join(choices)}"
    return ", or ".join([*choices, *numbers]) or "a value"


def _parts(annotation: Any) -> Iterator[Any]:
    """A type, and all that it is made of."""
    yield annotation
    if get_origin(annotation) is not Literal:
        for part in (*get_args(annotation), *getattr(annotation, "__metadata__", ())):
            yield from _parts(part)
