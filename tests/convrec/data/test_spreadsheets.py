"""Spreadsheets: real ones if openpyxl is installed, and the error if it is not."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from convrec.data.damage import Damage
from convrec.data.records import read_records
from tests.packages import hide_package
from tests.user_errors import refuses

HEADER = ["", "Conversation", "year", "id", "time", "empty"]
NEEDS_OPENPYXL = pytest.mark.skipif(not find_spec("openpyxl"), reason="the extra xlsx (openpyxl) is not installed")


def write(path: Path, sheets: Mapping[str, Sequence[Sequence[Any]]]) -> Path:
    with pd.ExcelWriter(path) as writer:
        for name, rows in sheets.items():
            pd.DataFrame(rows).to_excel(writer, sheet_name=name, header=False, index=False)
    return path


@NEEDS_OPENPYXL
def test_a_sheet_is_read_like_csv(tmp_path: Path) -> None:
    rows = [
        HEADER,
        [0, "USER: 1984, or\nNA?", 1995, 7, datetime(2024, 3, 1, 12, 30), None],
        [None] * 6,
        [2, "NA", 1995.0, 1.5, "x", " "],
    ]
    path = write(tmp_path / "a.xlsx", {"chats": rows, "notes": []})
    first = {"Conversation": "USER: 1984, or\nNA?", "year": "1995", "id": "7", "time": "2024-03-01T12:30:00"}
    second = {"Conversation": "NA", "year": "1995", "id": "1.5", "time": "x"}
    assert list(read_records(path, Damage())) == [(2, first), (4, second)]


@NEEDS_OPENPYXL
def test_ids_longer_than_a_spreadsheets_precision_are_rounded(tmp_path: Path) -> None:
    path = write(tmp_path / "a.xlsx", {"a": [["id"], [1234567890123456789], [123456789012345]]})
    records = [record for _, record in read_records(path, Damage())]
    assert records == [{"id": "1.23456789012346E+18"}, {"id": "123456789012345"}]


@NEEDS_OPENPYXL
@pytest.mark.parametrize(
    ("sheets", "code", "value"),
    [
        ({"a": [["x"], [1]], "b": [["x"], [2]]}, "spreadsheet.several-sheets", "a, b"),
        ({"a": [["x", "x"], [1, 2]]}, "data.damaged-rows", "row 1: the header ['x', 'x']"),
    ],
)
def test_ambiguous_sheets_and_headers_are_refused(tmp_path: Path, sheets: Any, code: str, value: str) -> None:
    path = write(tmp_path / "a.xlsx", sheets)
    damage = Damage()

    def read() -> None:
        list(read_records(path, damage))
        damage.check()

    with refuses(code, path, value):
        read()


@NEEDS_OPENPYXL
def test_a_file_that_is_not_a_spreadsheet_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.xlsx"
    path.write_bytes(b"PK\x03\x04")
    with refuses("spreadsheet.unreadable-file", path):
        list(read_records(path, Damage()))


def test_without_openpyxl_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hide_package(monkeypatch, "openpyxl")
    path = tmp_path / "a.xlsx"
    path.write_bytes(b"")
    with refuses("spreadsheet.missing-package", path, "convrec[xlsx]"):
        list(read_records(path, Damage()))
