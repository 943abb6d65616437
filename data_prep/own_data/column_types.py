"""Types of a catalog's further columns in CSV, whose cells are all texts.

A column becomes numbers, or true and false, where every cell that is not empty can be nothing else. Ids, titles and
codes stay as they are written: `007`, `12E3`, and any column whose name says that it has such, `sku` or `imdbId`.
Prices are decimals also where all are whole today: the service must be able to take 9.50 tomorrow.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from data_prep.own_data import NAMES
from data_prep.own_data.ids import LARGEST_EXACT_FLOAT
from data_prep.own_data.layouts import plain_name

BOOLEANS = {"true": True, "false": False}
Cell: TypeAlias = str | None
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_INTEGER = re.compile(r"-?(0|[1-9][0-9]{0,17})")  # 007 would lose its zeros, and 64 bits do not hold all of 19 digits
# 12E3 can be a code: programs write numbers as 12e+3 or 1.2E4
_DECIMAL = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+([eE][-+]?[0-9]+)?|[eE][-+][0-9]+)")


class TypedColumn(NamedTuple):
    """A column with the type that its cells have in common.

    Attributes:
        values: the cells, as numbers or booleans where all of them are; None for empty ones then.
        majority: what at least half of the cells are, in words, where another one keeps the column texts; else "".
        exception: the index of the first such cell.
    """

    values: Sequence[Any]
    majority: str = ""
    exception: int = -1


def infer_type(name: str, cells: Sequence[Cell]) -> TypedColumn:
    """Read the cells of a column as numbers or booleans, if they can be nothing else.

    Args:
        name: of the column. One that says that the cells are ids, codes or titles keeps them.
        cells: as the file has them; None or "" for an empty one.
    """
    filled = {index: _parse(cell) for index, cell in enumerate(cells) if cell not in (None, "")}
    if not filled or has_names(name):
        return TypedColumn(cells)
    booleans = {index: value for index, value in filled.items() if isinstance(value, bool)}
    numbers = {index: value for index, value in filled.items() if value is not None and index not in booleans}
    if len(booleans) > len(numbers):
        return _type_column(cells, list(filled), booleans, "true or false")
    if has_decimals(name) or any(isinstance(number, float) for number in numbers.values()):
        floats = {index: None if _is_inexact_float(number) else float(number) for index, number in numbers.items()}
        return _type_column(cells, list(filled), floats, "numbers")
    return _type_column(cells, list(filled), numbers, "numbers")


def _type_column(cells: Sequence[Cell], filled: Sequence[int], values: Mapping[int, Any], words: str) -> TypedColumn:
    """A column with these values, if they are those of all its cells.

    Args:
        cells: as the file has them.
        filled: the indices of the cells that are not empty.
        values: index -> value of the cells of one type; None for one that the type cannot hold.
        words: the type's name in messages.
    """
    if 2 * len(values) < len(filled):
        return TypedColumn(cells)
    others = [index for index in filled if index not in values]
    lost = [index for index in values if values[index] is None]
    if others or lost:
        return TypedColumn(cells, words, (others + lost)[0])
    return TypedColumn([values.get(index) for index in range(len(cells))])


def has_names(column: str) -> bool:
    """Whether the name of a column says that it has ids, codes, titles or names."""
    return plain_name(column) in NAMES["ratings"]["item"] or _last_word(column) in NAMES["texts"]


def has_decimals(column: str) -> bool:
    """Whether the name of a column says that it has prices or other numbers that need not be whole."""
    return _last_word(column) in NAMES["decimals"]


def _last_word(column: str) -> str:
    """`id` of imdbId, `isbn` of ISBN13; "" where there is none."""
    words = _WORD.findall(column)
    return words[-1].lower() if words else ""


def _parse(cell: Cell) -> bool | int | float | None:
    """The boolean or the number that a cell is; None for a text."""
    text = str(cell).strip()
    if text.lower() in BOOLEANS:
        return BOOLEANS[text.lower()]
    if _INTEGER.fullmatch(text):
        return int(text)
    if _DECIMAL.fullmatch(text) and math.isfinite(float(text)):
        return float(text)
    return None


def _is_inexact_float(number: float) -> bool:
    """Whether a whole number loses digits as a float."""
    return isinstance(number, int) and abs(number) > LARGEST_EXACT_FLOAT
