"""Options from records: what is read, and what a wrong command line is told, in one line."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

import pytest

from convrec.base.errors import UserError
from convrec.base.options import (
    AnyNumber,
    CommaSeparated,
    Group,
    Integer,
    ItemCount,
    PositiveInteger,
    PositiveNumber,
    Repeated,
    Sampling,
    command,
    completion_script,
    describe_options,
    help_text,
    parse,
)
from convrec.data.options import SHARE, SkipDamaged


@Group
@dataclass(frozen=True, kw_only=True)
class SharedOptions:
    """Options of several commands."""

    workers: Integer = 1
    """processes"""


@dataclass(frozen=True, kw_only=True)
class PaintOptions:
    """Paint rooms,
    in any colour.

    convrec paint --out house \\
        kitchen
    """

    COMMAND: ClassVar[str] = "paint"

    rooms: Sequence[str] = field(default=(), kw_only=False)
    """rooms to paint"""
    out: str
    """folder to write"""
    coats: PositiveInteger = 2
    """layers of paint"""
    hours: PositiveNumber | None = None
    """time for it"""
    count: ItemCount = 20
    """items"""
    colour: Literal["red", "blue"] | None = None
    """colour of the walls"""
    brushes: Annotated[Sequence[str] | None, AnyNumber] = None
    """brushes to use; no value: all"""
    sizes: Sequence[PositiveInteger] = (1, 2)
    """sizes of the brushes"""
    model: Annotated[Sequence[str], Repeated] = ()
    """a model; may be given again"""
    show: CommaSeparated = ()
    """columns"""
    sampling: Sampling | None = None
    """parameters as JSON"""
    skip_damaged: SkipDamaged = None
    """leave damaged rows out"""
    damp: float = 0.0
    """how damp the walls are"""
    fast: bool = False
    """paint fast"""
    shared: SharedOptions = field(default_factory=SharedOptions)


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("", "coats", 2),
        ("--coats 3", "coats", 3),
        ("--coats=3 --coats 4", "coats", 4),  # the last one counts
        ("--colour blue", "colour", "blue"),
        ("--brushes", "brushes", []),
        ("--brushes a b --fast", "brushes", ["a", "b"]),
        ("--sizes 3 4", "sizes", [3, 4]),
        ("", "sizes", (1, 2)),
        ("--model a --model b", "model", ["a", "b"]),
        ("--show a,b", "show", ["a", "b"]),
        ('--sampling {"top_p":null}', "sampling", {"top_p": None}),
        ("", "skip_damaged", None),
        ("--skip-damaged", "skip_damaged", SHARE),
        ("--skip-damaged --fast", "skip_damaged", SHARE),
        ("--skip-damaged 0", "skip_damaged", 0),
        ("--skip-damaged=0.5", "skip_damaged", 0.5),
        ("--fast", "fast", True),
        ("--workers -1", "shared", SharedOptions(workers=-1)),
        ("", "shared", SharedOptions()),
        ("kitchen --coats 3", "rooms", ["kitchen"]),
        ("kitchen a.b=3 ~c +d=[1,2]", "rooms", ["kitchen", "a.b=3", "~c", "+d=[1,2]"]),
        ("--brushes a - b", "brushes", ["a", "-", "b"]),
        ("-", "rooms", ["-"]),
        ("[kitchen ...]", "rooms", ["[kitchen", "...]"]),
        ('--brushes ["a"] {"b":1}', "brushes", ['["a"]', '{"b":1}']),
    ],
)
def test_a_command_line_fills_the_record(line: str, name: str, value: object) -> None:
    assert getattr(parse(PaintOptions, [*line.split(), "--out", "house"]), name) == value


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--coats 0", "--coats 0: give a positive integer"),
        ("--coats 1.5", "--coats 1.5: give a positive integer"),
        ("--coats=many", "--coats many: give a positive integer"),
        ("--hours nan", "--hours nan: give a positive number"),
        ("--hours inf", "--hours inf: give a positive number"),
        ("--count 101", "--count 101: give 1 to 100"),
        ("--sizes 3 x", "--sizes x: give a positive integer"),
        ("--sizes", "--sizes: give a positive integer"),
        ("--colour green", "--colour green: give one of red, blue"),
        ("--skip-damaged 1", "--skip-damaged 1: give a share from 0 to below 1, 0.05 say"),
        ("--sampling [1]", "--sampling [1]: give a JSON object"),
        ('--sampling {"model":1}', '--sampling {"model":1}: give sampling parameters as JSON; model is none'),
        ("--coat 3", "--coat: no such option; did you mean --coats or --count?"),
        ("--xyzzy 3", "--xyzzy: no such option; see convrec paint --help"),
        ("--coats", "--coats: give a positive integer"),
        ("--coats --fast", "--coats: give a positive integer"),
    ],
)
def test_a_wrong_command_line_is_one_line_that_says_what_to_do(line: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        parse(PaintOptions, ["--out", "house", *line.split()])
    assert str(error.value) == message


def test_what_is_missing_is_named() -> None:
    with pytest.raises(UserError, match=r"^--out: missing; see convrec paint --help$"):
        parse(PaintOptions, ["kitchen"])
    with pytest.raises(UserError, match=r"^--brush: no such option; did you mean --brushes or --show\?$"):
        parse(PaintOptions, ["--brush", "3"])


def test_a_command_gets_its_record_and_its_errors_are_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    @command(PaintOptions)
    def paint(options: PaintOptions) -> int:
        if options.fast:
            raise UserError("the paint is wet")
        return options.coats

    assert paint(["--out", "house", "--coats", "7"]) == 7
    assert paint(["--out", "house", "--fast"]) == 2
    assert paint(["--coats", "0"]) == 2
    assert capsys.readouterr().err == "error: the paint is wet\nerror: --out: missing; see convrec paint --help\n"


def test_help_ends_the_command_however_wrong_the_rest_is(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(PaintOptions, ["--coats", "0", "--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert shown.index("--out") < shown.index("--coats")  # what is needed comes first
    assert "convrec paint --out house" in shown


def test_options_are_described_for_the_manual() -> None:
    options = {option.names[0]: option for option in describe_options(PaintOptions)}
    assert list(options)[:2] == ["ROOMS", "--out"]
    assert options["--out"].is_required
    assert (options["--damp"].default, options["--hours"].default) == ("0.0", "")
    assert (options["--sizes"].default, options["--fast"].default) == ("1 2", "")
    assert (options["--colour"].choices, options["--workers"].help) == (("red", "blue"), "processes")
    assert help_text(PaintOptions).startswith("Paint rooms, in any colour.\n\nconvrec paint --out house \\\n")


def test_a_shell_completes_commands_options_and_choices() -> None:
    script = completion_script({"paint": PaintOptions, "train sft": None}, "bash")
    assert all(word in script for word in ("paint", "train", "sft", "--skip-damaged", "red"))
