"""Markdown that pages are put together from."""

import inspect
import re
from collections.abc import Iterable, Sequence

_CODE = re.compile(r"(`[^`]*`)")
BREAK = "<br>"  # a new line within a cell


def cell(text: str) -> str:
    """Return the text as a cell of a table: on one line, with `|` and, outside code, `<` escaped, except for BREAK."""
    parts = _CODE.split(" ".join(text.split()).replace("|", "\\|"))
    return "".join(part if part.startswith("`") else _escape(part) for part in parts)


def _escape(text: str) -> str:
    return BREAK.join(line.replace("<", "&lt;") for line in text.split(BREAK))


def code(text: str) -> str:
    """Return a short text as inline code; "" stays empty."""
    return f"`{text}`" if text else ""


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table. Cells are escaped here."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(map(cell, line))} |" for line in lines)


def block(text: str) -> str:
    """Return a docstring as a block of plain text."""
    return f"```text\n{inspect.cleandoc(text).strip()}\n```"
