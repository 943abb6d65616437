"""Ids as text: a column of ids that a program took for numbers says the same as one of texts."""

import re
from typing import Any

import pandas as pd

LARGEST_EXACT_FLOAT = 2**53
SPOILED_ID = "is %r, of which a spreadsheet has lost digits; export the column as text"
_FLOAT = re.compile(r"(\d+)\.0+")  # 17.0: pandas writes whole numbers so where one of the column is missing
_BY_SPREADSHEET = re.compile(r"\d(?:[.,]\d+)?[eE]\+\d+")  # 1.21E+18


def plain_id(value: Any) -> str | None:
    """Write an id as text: 17, 17.0 and "17.0" are "17". None for one that is missing, or has lost digits."""
    if value is None or value != value:
        return None
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) <= LARGEST_EXACT_FLOAT else None
    text = str(value).strip()
    if match := _FLOAT.fullmatch(text):
        return match[1]
    return None if not text or _BY_SPREADSHEET.fullmatch(text) else text


def plain_ids(cells: pd.Series) -> pd.Series:
    """`plain_id` of each cell, fast where the cells are plain already."""
    if pd.api.types.is_float_dtype(cells):
        return cells.map(plain_id)
    texts = cells.fillna("").astype("str").str.strip()
    is_other = texts.str.endswith("0") & texts.str.contains(".0", regex=False) | texts.str.contains("[eE][+]")
    if is_other.any():
        texts = texts.where(~is_other, texts[is_other].map(plain_id))
    return texts.mask(texts == "")
