"""Options of the commands that make data, and the smallest models: options.yaml has them by command."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import yaml

from convrec import kinds
from convrec.errors import UserError

OPTIONS: dict[str, dict[str, dict[str, Any]]] = yaml.safe_load(
    Path(__file__).with_name("options.yaml").read_text("utf-8")
)


def parser_of(command: str, about: str | None, **more: dict[str, Any]) -> argparse.ArgumentParser:
    """about: the module's docstring, whose first line is the description. more: of an option, what only code knows."""
    parser = argparse.ArgumentParser(prog=f"convrec {command}", description=(about or "").split("\n")[0])
    for name, option in OPTIONS[command].items():
        said = {key: value for key, value in option.items() if key != "kind"}
        if kind := option.get("kind"):
            said["type"] = Path if kind == "Path" else get_args(getattr(kinds, kind))[0]
        parser.add_argument(name, **said, **more.get(name.strip("-"), {}))
    return parser


def parse(command: str, parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """Raises UserError for a number that is not of its kind."""
    given = parser.parse_args(arguments)
    for name, option in OPTIONS[command].items():
        value = getattr(given, option.get("dest", name.strip("-").replace("-", "_")))
        if isinstance(value, int | float) and "kind" in option:
            kind = getattr(kinds, option["kind"])
            if not kinds.fits(kind, value):
                raise UserError(f"{name} {value}: give {kinds.wanted(kind)}")
    return given
