"""Columns of a CSV catalog: which become numbers or booleans, and which must stay as they are written."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.own import convert_own, format_summary
from data_prep.own_data.column_types import holds_names, infer_type


@pytest.mark.parametrize(
    ("cells", "values"),
    [
        (["true", "false", ""], [True, False, None]),
        (["TRUE", " False ", None], [True, False, None]),
        (["7", "-3", ""], [7, -3, None]),
        (["7", "1.5", ""], [7.0, 1.5, None]),
        (["1e-05", "2.5E3", "1e+20"], [1e-05, 2500.0, 1e20]),
        (["999999999999999999"], [999999999999999999]),
    ],
)
def test_cells_that_can_be_nothing_else_get_their_type(cells: list[str], values: list[Any]) -> None:
    column = infer_type("anything", cells)
    assert column.values == values
    assert [type(value) for value in column.values] == [type(value) for value in values]
    assert not column.majority


@pytest.mark.parametrize(
    "cells",
    [
        ["007", "12"],  # 7 would be another code
        ["12E3", "45E1"],  # 12000.0 would be another code
        ["12345678901234567890"],  # a float would have other digits
        ["1e999"],
        ["1٣"],  # a digit of another alphabet
        ["+5", "5."],
        ["1,5", "2,5"],
        ["yes", "no"],
        ["nan", "inf"],
        ["2024-03-01", "2024-03-02"],
        ["300", "Heat", "Alien"],
    ],
)
def test_cells_that_would_not_be_the_same_stay_texts(cells: list[str]) -> None:
    assert infer_type("anything", cells).values == cells


@pytest.mark.parametrize(
    "name", ["sku", "product_id", "imdbId", "ISBN13", "isbn_10", "movieId", "Zip Code", "clean_title"]
)
def test_ids_codes_and_titles_stay_text_even_if_all_digits(name: str) -> None:
    assert holds_names(name)
    assert infer_type(name, ["300", "1984"]) == (["300", "1984"], "", -1)


def test_prices_are_decimals_also_where_all_are_whole() -> None:
    assert infer_type("unit_price", ["7", "", "12"]).values == [7.0, None, 12.0]
    assert infer_type("unit_price", ["7", "9007199254740993"]).exception == 1  # 2**53 + 1, which no float is


@pytest.mark.parametrize("name", ["price", "in_stock", "paid", "valid", "bid", "year_of_print", "mentions", "評価"])
def test_other_names_are_no_ids(name: str) -> None:
    assert not holds_names(name)


@pytest.mark.parametrize(
    ("cells", "majority", "exception"),
    [
        (["true", "maybe", "false"], "true or false", 1),
        (["", "1", "2", "n/a", "unknown"], "numbers", 3),
        (["true", "1", "2"], "numbers", 0),
        (["007", "12", "13"], "numbers", 0),
        (["0.5", "9007199254740993"], "numbers", 1),  # 2**53 + 1, which no float is
        (["1984", "Emma", "Dune"], "", -1),  # a column of texts, of which some look like numbers
    ],
)
def test_the_cell_that_keeps_a_column_texts_is_found(cells: list[str], majority: str, exception: int) -> None:
    assert infer_type("anything", cells) == (cells, majority, exception)


@given(st.lists(st.none() | st.text() | st.integers().map(str) | st.floats().map(str) | st.just("true"), max_size=5))
def test_a_column_is_read_whole_or_not_at_all(cells: list[str | None]) -> None:
    values = infer_type("anything", cells).values
    if values is not cells:
        for cell, value in zip(cells, values, strict=True):
            assert (value is None) == (cell in (None, ""))
            if isinstance(value, int) and not isinstance(value, bool):
                assert str(value) == str(cell).strip().replace("-0", "0")
            elif isinstance(value, float):
                assert value == float(str(cell))
        assert len({type(value) for value in values} - {type(None)}) == 1


SHOP = """item_id,title,in_stock,price,pages,code,sku,answer
1,Emma,true,7.50,474,007,11,true
2,Dune,FALSE,12,,012,12,maybe
3,Up,,,90,13,13,false
"""


def convert(folder: Path, catalog: str) -> dict[str, Any]:
    (folder / "shop.csv").write_text(catalog)
    (folder / "rows.jsonl").write_text(json.dumps({"conversation": "USER: hi", "ground_truth": ["Emma"]}))
    return convert_own([folder / "rows.jsonl"], folder / "shop.csv", folder / "out", overwrite=True)


def test_csv_types_reach_catalog_and_mixed_columns_are_reported(tmp_path: Path) -> None:
    summary = convert(tmp_path, SHOP)
    assert pq.read_table(tmp_path / "out" / "catalog.parquet").drop_columns(["title", "year"]).to_pydict() == {
        "item_id": ["1", "2", "3"],
        "in_stock": [True, False, None],
        "price": [7.5, 12.0, None],
        "pages": [474, None, 90],
        "code": ["007", "012", "13"],
        "sku": ["11", "12", "13"],
        "answer": ["true", "maybe", "false"],
    }
    notes = [line for line in format_summary(summary, "out").splitlines() if "stays text:" in line]
    assert notes == [
        f"{tmp_path / 'shop.csv'}: column answer stays text: most of its cells are true or false, but line 3 has "
        "'maybe'; use one type in every row, or leave that cell empty"
    ]
