"""Read records from Excel spreadsheets with pandas and openpyxl (the extra `xlsx`)."""

from collections.abc import Iterator
from datetime import date, time
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

from convrec.base.errors import UserError
from convrec.data.csv_records import read_header
from convrec.data.damage import BadRecord, Damage

SPREADSHEETS = (".xlsx", ".xlsm")
UNREAD_SPREADSHEETS = (".xls", ".xlsb", ".ods")
_PACKAGE = "openpyxl"
_EXACT_BELOW = 10**15  # a spreadsheet stores only fifteen digits of a number


def read_spreadsheet(path: Path, damage: Damage) -> Iterator[tuple[int, dict[str, str]]]:
    """Read the rows of the only non-empty sheet. Its first row names the columns.

    Args:
        path: the file.
        damage: collects an invalid header.

    Yields:
        The row's number, as the spreadsheet shows it, and its non-blank cells as text, by column name.

    Raises:
        UserError: openpyxl is not installed, the file is not a spreadsheet, or several sheets have rows.
    """
    if not find_spec(_PACKAGE):
        raise UserError(
            "spreadsheet.missing-package",
            f"{path}: reading spreadsheets needs {_PACKAGE}. Install it: pip install 'convrec[xlsx]'; or save the "
            "sheet as CSV UTF-8",
        )
    header: list[str] = []
    for number, values in enumerate(_read_rows(path), 1):
        cells = [_write_cell(value) for value in values]
        if not any(cells):
            continue
        if not header:
            try:
                header = read_header(cells)
            except BadRecord as problem:
                damage.add(path, number, problem, lost=0)
                return
            continue
        yield number, {name: cell for name, cell in zip(header, cells, strict=True) if name and cell}


def _read_rows(path: Path) -> list[list[Any]]:
    """Return the cells of the only non-empty sheet, without empty columns."""
    import pandas as pd

    try:
        sheets = pd.read_excel(
            path, sheet_name=None, header=None, dtype=object, keep_default_na=False, na_values=[""], engine=_PACKAGE
        )
    except (BadZipFile, KeyError, ValueError, OSError) as error:
        raise UserError(
            "spreadsheet.unreadable-file",
            f"{path}: not readable as a spreadsheet ({error}). Save it again, or as CSV UTF-8",
        ) from None
    non_empty = {name: sheet for name, sheet in sheets.items() if sheet.notna().any(axis=None)}
    if len(non_empty) > 1:
        raise UserError(
            "spreadsheet.several-sheets",
            f"{path}: several sheets have rows: {', '.join(non_empty)}. Keep one, or save each as CSV UTF-8",
        )
    rows: list[list[Any]] = []
    for sheet in non_empty.values():
        columns = sheet.dropna(axis="columns", how="all")
        rows += columns.astype(object).where(columns.notna(), None).to_numpy().tolist()
    return rows


def _write_cell(value: Any) -> str:
    """Return a cell's text as CSV would have it, "" for a blank cell."""
    if value is None:
        return ""
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, int | float) and not isinstance(value, bool):
        if abs(value) >= _EXACT_BELOW:
            return f"{value:.14E}"
        return str(int(value)) if value == int(value) else str(value)
    return str(value).strip()
