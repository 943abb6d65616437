"""Options of commands: options.yaml has them by command, for its help and its checks."""

import argparse
from collections import ChainMap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from convrec import kinds
from convrec.errors import UserError
from convrec.shipped import read_table

OPTIONS: dict[str, dict[str, dict[str, Any]]] = read_table(__file__, "options.yaml")


def parser_of(command: str, about: str | None, **more: Mapping[str, Any]) -> argparse.ArgumentParser:
    """about: the module's docstring, whose first line is the description. more: see `add_options`."""
    parser = argparse.ArgumentParser(prog=f"convrec {command}", description=(about or "").split("\n")[0])
    add_options(parser, command, **more)
    return parser


def add_options(parser: argparse.ArgumentParser, command: str, **more: Mapping[str, Any]) -> None:
    """more: of an option, what only code knows."""
    for name, option in OPTIONS[command].items():
        said = {key: value for key, value in option.items() if key != "kind"}
        if kind := option.get("kind"):
            said["type"] = Path if kind == "Path" else get_args(getattr(kinds, kind))[0]
        parser.add_argument(name, **said, **more.get(name.strip("-"), {}))


def parse(parser: argparse.ArgumentParser, arguments: Sequence[str] | None, *commands: str) -> argparse.Namespace:
    """commands: whose options the parser has. Raises UserError for a number that is not of its kind."""
    given = parser.parse_args(arguments)
    for name, option in ChainMap(*(OPTIONS[command] for command in commands)).items():
        value = getattr(given, option.get("dest", name.strip("-").replace("-", "_")))
        if isinstance(value, int | float) and "kind" in option:
            kind = getattr(kinds, option["kind"])
            if not kinds.fits(kind, value):
                raise UserError(f"{name} {value}: give {kinds.wanted(kind)}")
    return given
