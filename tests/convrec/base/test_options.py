"""Options from records: parsing, and one-line errors for invalid command lines."""

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
from tests.user_errors import refuses


@Group
@dataclass(frozen=True, kw_only=True)
class SharedOptions:
    """Options of several commands."""

    workers: Integer = 1
    """processes"""


@dataclass(frozen=True, kw_only=True)
class PaintOptions:
    """Paint rooms,
    in any color.

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
    color: Literal["red", "blue"] | None = None
    """color of the walls"""
    brushes: Annotated[Sequence[str] | None, AnyNumber] = None
    """brushes to use; no value: all"""
    sizes: Sequence[PositiveInteger] = (1, 2)
    """sizes of the brushes"""
    model: Annotated[Sequence[str], Repeated] = ()
    """a model; may be repeated"""
    show: CommaSeparated = ()
    """columns"""
    sampling: Sampling | None = None
    """parameters as JSON"""
    skip_damaged: SkipDamaged = None
    """skip damaged rows"""
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
        ("--color blue", "color", "blue"),
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


INVALID = "option.invalid-value"
MISSING_VALUE = "option.missing-value"
UNKNOWN = "option.unknown-option"


@pytest.mark.parametrize(
    ("line", "code", "values"),
    [
        ("--coats 0", INVALID, ["--coats 0: ", "a positive integer"]),
        ("--coats 1.5", INVALID, ["--coats 1.5: ", "a positive integer"]),
        ("--coats=many", INVALID, ["--coats many: ", "a positive integer"]),
        ("--hours nan", INVALID, ["--hours nan: ", "a positive number"]),
        ("--hours inf", INVALID, ["--hours inf: ", "a positive number"]),
        ("--count 101", INVALID, ["--count 101: ", "1 to 100"]),
        ("--sizes 3 x", INVALID, ["--sizes x: ", "a positive integer"]),
        ("--sizes", MISSING_VALUE, ["--sizes: ", "a positive integer"]),
        ("--color green", INVALID, ["--color green: ", "one of red, blue"]),
        ("--skip-damaged 1", INVALID, ["--skip-damaged 1: ", "from 0 to below 1"]),
        ("--sampling [1]", INVALID, ["--sampling [1]: ", "a JSON object"]),
        ('--sampling {"model":1}', INVALID, ['--sampling {"model":1}: ', "without model"]),
        ("--coat 3", UNKNOWN, ["--coat: ", "did you mean --coats or --count?"]),
        ("--xyzzy 3", UNKNOWN, ["--xyzzy: ", "see convrec paint --help"]),
        ("--coats", MISSING_VALUE, ["--coats: ", "a positive integer"]),
        ("--coats --fast", MISSING_VALUE, ["--coats: ", "a positive integer"]),
    ],
)
def test_an_invalid_command_line_is_refused_in_one_line(line: str, code: str, values: list[str]) -> None:
    with refuses(code, *values) as error:
        parse(PaintOptions, ["--out", "house", *line.split()])
    assert "\n" not in str(error.value)


def test_a_missing_option_is_named() -> None:
    with refuses("option.missing-option", "--out: ", "convrec paint --help"):
        parse(PaintOptions, ["kitchen"])
    with refuses(UNKNOWN, "--brush: ", "--brushes or --show?"):
        parse(PaintOptions, ["--brush", "3"])


def test_a_command_gets_its_record_and_its_errors_are_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    @command(PaintOptions)
    def paint(options: PaintOptions) -> int:
        if options.fast:
            raise UserError("paint.wet", "the paint is wet")
        return options.coats

    assert paint(["--out", "house", "--coats", "7"]) == 7
    assert paint(["--out", "house", "--fast"]) == 2
    assert paint(["--coats", "0"]) == 2
    wet, missing = capsys.readouterr().err.splitlines()
    assert wet == "error: the paint is wet [paint.wet]"
    assert missing.startswith("error: --out: ")
    assert missing.endswith(" [option.missing-option]")


def test_help_ends_the_command_even_if_other_options_are_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as system_exit:
        parse(PaintOptions, ["--coats", "0", "--help"])
    assert system_exit.value.code == 0
    text = capsys.readouterr().out
    assert text.index("--out") < text.index("--coats")  # required options come first
    assert "convrec paint --out house" in text


def test_options_are_described_for_the_manual() -> None:
    options = {option.names[0]: option for option in describe_options(PaintOptions)}
    assert list(options)[:2] == ["ROOMS", "--out"]
    assert options["--out"].is_required
    assert (options["--damp"].default, options["--hours"].default) == ("0.0", "")
    assert (options["--sizes"].default, options["--fast"].default) == ("1 2", "")
    assert (options["--color"].choices, options["--workers"].help) == (("red", "blue"), "processes")
    assert help_text(PaintOptions).startswith("Paint rooms, in any color.\n\nconvrec paint --out house \\\n")


def test_a_shell_completes_commands_options_and_choices() -> None:
    script = completion_script({"paint": PaintOptions, "train sft": None}, "bash")
    assert all(word in script for word in ("paint", "train", "sft", "--skip-damaged", "red"))
