"""Ids as text, so that a column of ids that some program stored as numbers compares equal to one of strings."""

import re
from typing import Any

import pandas as pd

from convrec.data.damage import BadRecord

LARGEST_EXACT_FLOAT = 2**53
_FLOAT = re.compile(r"(\d+)\.0+")  # 17.0: how pandas writes integers if the column has a missing value
_BY_SPREADSHEET = re.compile(r"\d(?:[.,]\d+)?[eE]\+\d+")  # 1.21E+18


def normalise_id(value: Any) -> str | None:
    """Write an id as text.

    Args:
        value: a cell: 17, 17.0 and "17.0" become "17".

    Returns:
        The id; None if it is missing, blank, or has lost digits in a program that stored it as a number.
    """
    if value is None or value != value:
        return None
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) <= LARGEST_EXACT_FLOAT else None
    text = str(value).strip()
    if match := _FLOAT.fullmatch(text):
        return match[1]
    return None if not text or _BY_SPREADSHEET.fullmatch(text) else text


def make_truncated_id_error(value: Any, column: str = "") -> BadRecord:
    """Make the error for an id that `normalise_id` refuses, although the cell is not blank.

    Args:
        value: the id.
        column: its column, with which the message begins; "" if the caller names it.
    """
    problem = BadRecord(
        "ids.dropped-digits", "is %r: a spreadsheet dropped its last digits; export the column as text", value
    )
    problem.column = column
    return problem


def normalise_ids(cells: pd.Series) -> pd.Series:
    """Apply `normalise_id` to each cell; fast for columns that need no change."""
    if pd.api.types.is_float_dtype(cells):
        return cells.map(normalise_id)
    texts = cells.fillna("").astype("str").str.strip()
    is_other = texts.str.endswith("0") & texts.str.contains(".0", regex=False) | texts.str.contains("[eE][+]")
    if is_other.any():
        texts = texts.where(~is_other, texts[is_other].map(normalise_id))
    return texts.mask(texts == "")
