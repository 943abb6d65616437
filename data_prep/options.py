"""Options of the commands that make data: options.yaml has them by command."""

import argparse
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
        kind = {"type": get_args(getattr(kinds, option["kind"]))[0]} if "kind" in option else {}
        own = {key: value for key, value in option.items() if key != "kind"}
        parser.add_argument(name, **own, **kind, **more.get(name.strip("-"), {}))
    return parser


def check_kinds(command: str, given: argparse.Namespace) -> None:
    """Raises UserError for a number that is not of its kind."""
    for name, option in OPTIONS[command].items():
        kind = getattr(kinds, option.get("kind", ""), None)
        value = getattr(given, option.get("dest", name.strip("-").replace("-", "_")))
        if kind and value is not None and not kinds.fits(kind, value):
            raise UserError(f"{name} {value}: give {kinds.wanted(kind)}")
