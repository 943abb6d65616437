"""Infer the types of a CSV catalog's extra columns, whose cells are all strings.

A column becomes numbers or booleans if every cell that is not empty can be nothing else. Ids, titles and codes stay as
they are written: `007`, `12E3`, and any column whose name says that it holds such values, like `sku` or `imdbId`.
Prices become decimals even if all of them are whole today: the service must be able to accept 9.50 tomorrow.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from data_prep.own_data import NAMES
from data_prep.own_data.ids import LARGEST_EXACT_FLOAT
from data_prep.own_data.layouts import normalise_name

BOOLEANS = {"true": True, "false": False}
Cell: TypeAlias = str | None
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_INTEGER = re.compile(r"-?(0|[1-9][0-9]{0,17})")  # 007 would lose its zeros, and 64 bits do not hold all of 19 digits
# 12E3 can be a code: programs write numbers as 12e+3 or 1.2E4
_DECIMAL = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+([eE][-+]?[0-9]+)?|[eE][-+][0-9]+)")


class TypedColumn(NamedTuple):
    """A column with the type that its cells have in common.

    Attributes:
        values: the cells, converted to numbers or booleans if all of them can be; empty cells are then None.
        majority: the type of at least half of the cells, in words, if another cell keeps the column text; else "".
        exception: index of the first such cell; -1 for none.
    """

    values: Sequence[Any]
    majority: str = ""
    exception: int = -1


def infer_type(name: str, cells: Sequence[Cell]) -> TypedColumn:
    """Convert the cells of a column to numbers or booleans if they can be nothing else.

    Args:
        name: the column's name. Ids, codes and titles are recognised by it and stay text.
        cells: the cells as the file has them; None or "" if empty.

    Returns:
        The converted column, or the same cells with the reason why they stay text.
    """
    filled = {index: _parse(cell) for index, cell in enumerate(cells) if cell not in (None, "")}
    if not filled or holds_names(name):
        return TypedColumn(cells)
    booleans = {index: value for index, value in filled.items() if isinstance(value, bool)}
    numbers = {index: value for index, value in filled.items() if value is not None and index not in booleans}
    if len(booleans) > len(numbers):
        return _type_column(cells, list(filled), booleans, "true or false")
    if holds_decimals(name) or any(isinstance(number, float) for number in numbers.values()):
        floats = {index: None if _is_inexact_float(number) else float(number) for index, number in numbers.items()}
        return _type_column(cells, list(filled), floats, "numbers")
    return _type_column(cells, list(filled), numbers, "numbers")


def _type_column(cells: Sequence[Cell], filled: Sequence[int], values: Mapping[int, Any], words: str) -> TypedColumn:
    """Return the column with these values if they cover all its cells.

    Args:
        cells: the cells as the file has them.
        filled: indices of the cells that are not empty.
        values: index -> value for the cells of one type; None if the type cannot hold the value exactly.
        words: the type's name in messages.
    """
    if 2 * len(values) < len(filled):
        return TypedColumn(cells)
    others = [index for index in filled if index not in values]
    lost = [index for index in values if values[index] is None]
    if others or lost:
        return TypedColumn(cells, words, (others + lost)[0])
    return TypedColumn([values.get(index) for index in range(len(cells))])


def holds_names(column: str) -> bool:
    """Whether a column's name says that it holds ids, codes, titles or names."""
    return normalise_name(column) in NAMES["ratings"]["item"] or _last_word(column) in NAMES["texts"]


def holds_decimals(column: str) -> bool:
    """Whether a column's name says that it holds prices or other numbers with decimals."""
    return _last_word(column) in NAMES["decimals"]


def _last_word(column: str) -> str:
    """Return the last word of a name: `id` for imdbId, `isbn` for ISBN13; "" if there is none."""
    words = _WORD.findall(column)
    return words[-1].lower() if words else ""


def _parse(cell: Cell) -> bool | int | float | None:
    """Return the boolean or number in a cell; None for other text."""
    text = str(cell).strip()
    if text.lower() in BOOLEANS:
        return BOOLEANS[text.lower()]
    if _INTEGER.fullmatch(text):
        return int(text)
    if _DECIMAL.fullmatch(text) and math.isfinite(float(text)):
        return float(text)
    return None


def _is_inexact_float(number: float) -> bool:
    """Whether an integer would lose digits as a float."""
    return isinstance(number, int) and abs(number) > LARGEST_EXACT_FLOAT
