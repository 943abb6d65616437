"""A shop's columns: shown with items, used by filters, changed with items; and popular items."""

import datetime
import json
from collections.abc import Callable
from dataclasses import asdict
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from convrec import Recommender
from convrec.inference.served_catalog.mentions import SCHEMA, find_mentions_file
from data_prep.own import convert_own
from tests.user_errors import refuses

BOOKS = [  # item_id, title, year, category, price, in_stock, pages, tags, genres, published, mentions
    ("a", "Emma", 1915, "Classic", 7.5, True, 474, ["love", "wit"], "Romance|Comedy", datetime.date(1915, 12, 23), 3),
    ("b", "Gone Girl", 2012, "Mystery", 12.0, True, 432, ["dark"], "Thriller", datetime.date(2012, 6, 5), 9),
    ("c", "Whose Body?", 1923, "Mystery", 25.0, True, 212, [], None, datetime.date(1923, 1, 1), 1),
    ("d", "The Nine Tailors", 1934, "Mystery", float("nan"), False, 331, ["bells", "dark"], "Comedy", None, 9),
    ("e", "Dune", 1965, "Space", None, None, None, None, "", datetime.date(1965, 8, 1), None),
]
NAMES = ("category", "price", "in_stock", "pages", "tags", "genres", "published", "mentions")
ALL = {"a", "b", "c", "d", "e"}


def write_books(folder: Path, **columns: Any) -> Path:
    ids, titles, years, *further = map(list, zip(*BOOKS, strict=True))
    table = {"item_id": ids, "title": titles, "year": years, **dict(zip(NAMES, further, strict=True)), **columns}
    pq.write_table(pa.table({name: values for name, values in table.items() if values}), folder / "books.parquet")
    return folder / "books.parquet"


@pytest.fixture
def serve(tmp_path: Path, unread_model: Path) -> Callable[..., Recommender]:
    def serve(file: Path | None = None, **settings: Any) -> Recommender:
        settings = {"max_items": 5, "with_engine": False} | settings
        return Recommender.load(unread_model, file or write_books(tmp_path), **settings)

    return serve


def left(recommender: Recommender, **filters: Any) -> set[str]:
    """Return the items that a list can contain: those of the request's trie that are not excluded."""
    request = recommender._requests.build("hi", 5, **filters)
    if not request.num_items:
        return set()
    numbers = request.allowed.remaining
    assert len(numbers) == request.num_items
    return {request.allowed.snapshot.items[number].item_id for number in numbers}


def test_only_items_that_meet_all_conditions_are_left(serve: Callable[..., Recommender]) -> None:
    recommender = serve()
    expected: list[tuple[dict[str, Any], set[str]]] = [
        ({"category": ["Mystery"]}, {"b", "c", "d"}),
        ({"category": "Mystery"}, {"b", "c", "d"}),
        ({"category": ["Space", "Classic", "Cooking"]}, {"a", "e"}),
        ({"category": ["Mystery"], "price": {"max": 20}, "in_stock": True}, {"b"}),
        ({"price": {"min": 7.5, "max": 12}}, {"a", "b"}),
        ({"price": [25, 12]}, {"b", "c"}),
        ({"price": {"max": 1e9}}, {"a", "b", "c"}),  # NaN and null are not prices
        ({"in_stock": False}, {"d"}),
        ({"pages": {"min": 330.5}}, {"a", "b", "d"}),
        ({"pages": 212}, {"c"}),
        ({"tags": ["dark", "wit"]}, {"a", "b", "d"}),
        ({"tags": "love"}, {"a"}),
        ({"genres": ["Comedy"]}, {"a", "d"}),
        ({"published": {"min": "1920", "max": "1970-01-01"}}, {"c", "e"}),
        ({"year": {"min": 1930, "max": 2000}}, {"d", "e"}),
        ({"category": ["mystery"]}, set()),
        ({"category": []}, set()),
    ]
    assert [(where, left(recommender, where=where)) for where, _ in expected] == expected
    assert left(recommender, where={"year": {"min": 1}}) == ALL


def test_ignore_case_also_ignores_whitespace_differences(serve: Callable[..., Recommender], tmp_path: Path) -> None:
    recommender = serve(write_books(tmp_path, shelf=["Space  Opera", " space opera", "Spacé", None, "SPACE OPERA\n"]))
    for where in ({"shelf": ["space opera"]}, {"shelf": "Space Opera "}, {"shelf": {"max": "space p"}}):
        assert left(recommender, where=where, ignore_case=True) == {"a", "b", "e"}
    assert left(recommender, where={"shelf": ["space opera"]}) == set()
    assert left(recommender, where={"tags": ["DARK"]}, ignore_case=True) == left(recommender, where={"tags": "dark"})
    assert left(recommender, where={"in_stock": False}, ignore_case=True) == {"d"}


def test_a_shops_csv_is_filtered_by_its_booleans_and_prices(serve: Callable[..., Recommender], tmp_path: Path) -> None:
    shop = "item_id,title,in_stock,price,code\n1,Emma,true,7,007\n2,Dune,FALSE,12,012\n3,Up,,,13\n4,It,,,\n5,M,,,\n"
    (tmp_path / "shop.csv").write_text(shop)
    (tmp_path / "rows.jsonl").write_text(json.dumps({"conversation": "USER: hi", "ground_truth": ["Emma"]}))
    convert_own([tmp_path / "rows.jsonl"], tmp_path / "shop.csv", tmp_path / "out")
    names = ["in_stock", "price", "code"]
    recommender = serve(tmp_path / "out" / "catalog.parquet", show=names)
    assert left(recommender, where={"in_stock": True}) == {"1"}
    assert left(recommender, where={"price": {"min": 7.5}}) == {"2"}
    assert left(recommender, where={"code": "007"}) == {"1"}
    recommender.change_items([{"item_id": "3", "in_stock": True, "price": 9.5}])
    assert left(recommender, where={"in_stock": True, "price": {"max": 10}}) == {"1", "3"}
    shown = {item.item_id: list(recommender.select_shown_columns(item).values()) for item in recommender.catalog}
    assert [shown[item_id] for item_id in "1234"] == [
        [True, 7.0, "007"], [False, 12.0, "012"], [True, 9.5, "13"], [None] * 3
    ]  # fmt: skip


def test_texts_that_are_all_true_and_false_are_booleans(serve: Callable[..., Recommender], tmp_path: Path) -> None:
    columns = {"on_sale": ["True", "false", "TRUE", "", None], "answer": ["true", "maybe", "false", None, None]}
    recommender = serve(write_books(tmp_path, **columns), show=["on_sale", "answer"])
    assert left(recommender, where={"on_sale": True}) == {"a", "c"}
    assert left(recommender, where={"on_sale": False}) == {"b"}
    assert left(recommender, where={"answer": "true"}) == {"a"}  # "maybe" makes it a column of texts
    shown = {item.item_id: item.columns for item in recommender.popular("hi", 5)}
    assert shown["d"] == {"on_sale": None, "answer": None}


def test_conditions_combine_with_the_other_filters(serve: Callable[..., Recommender]) -> None:
    recommender, mystery = serve(), {"category": ["Mystery"]}
    assert left(recommender, where=mystery, allow=["b", "c", "e"], seen=["Emma"]) == {"b", "c"}
    assert left(recommender, where=mystery, allow=["b", "c"], exclude=["b"], seen=["e"]) == {"c"}
    found = recommender.popular("hi", 5, where=mystery, allow=["b", "c", "e"], exclude=["b"])
    assert found.reason == "3 items allowed, 2 match `where`, 1 seen or excluded: 1 left for a list of 5"
    nothing = recommender.popular("hi", 5, where={"category": ["mystery"]})
    assert (nothing.items, nothing.reason) == (
        (),
        "5 items in the catalog, 0 match `where`, 0 seen or excluded: 0 left for a list of 5",
    )


@pytest.mark.parametrize(
    ("where", "code", "values"),
    [
        ({"prcie": {"max": 3}}, "columns.unknown", ["'prcie'", "did you mean price?"]),
        ({"vector": [1]}, "columns.unknown", ["'vector'"]),
        ({}, "filter.invalid", []),
        (["Mystery"], "filter.invalid", []),
        ({"price": "cheap"}, "columns.wrong-type", ["price: 'cheap'", "numbers"]),
        ({"price": True}, "columns.wrong-type", ["price: True"]),
        ({"price": None}, "columns.wrong-type", ["price: None"]),
        ({"price": [[1]]}, "columns.wrong-type", ["price: [1]"]),
        ({"price": {"max": float("nan")}}, "columns.wrong-type", ["price: nan"]),
        ({"price": {"max": 10**400}}, "columns.wrong-type", ["price: 1000"]),
        ({"price": {"maximum": 3}}, "filter.invalid-range", ["price: "]),
        ({"price": {}}, "filter.invalid-range", ["price: "]),
        ({"pages": [1.5]}, "columns.wrong-type", ["pages: 1.5", "whole numbers"]),
        ({"in_stock": 1}, "columns.wrong-type", ["in_stock: 1", "booleans"]),
        ({"in_stock": {"min": True}}, "filter.invalid-range", ["in_stock: "]),
        ({"tags": {"min": "a"}}, "filter.invalid-range", ["tags: "]),
        ({"tags": [1]}, "columns.wrong-type", ["tags: 1", "texts"]),
        ({"category": "\ud800"}, "columns.wrong-type", ["category: '\\ud800'", "texts"]),
    ],
)
def test_an_invalid_condition_is_one_sentence(
    serve: Callable[..., Recommender], tmp_path: Path, where: Any, code: str, values: list[str]
) -> None:
    recommender = serve(write_books(tmp_path, vector=[[0.5]] * 5))
    with refuses(code, *values) as refused:
        recommender.popular("hi", where=where, k=1)
    assert str(refused.value).startswith("where: ")
    assert len(str(refused.value).splitlines()) == 1


def test_items_show_the_chosen_columns_as_json_values(serve: Callable[..., Recommender], tmp_path: Path) -> None:
    stock = pa.array(["yes", "no", "yes", None, "no"]).dictionary_encode()
    cents = pa.array([None, Decimal("5.25"), Decimal(2), Decimal(3), Decimal(4)], pa.decimal128(9, 2))
    names = ["price", "in_stock", "tags", "genres", "published", "stock", "cents"]
    recommender = serve(write_books(tmp_path, stock=stock, cents=cents), show=names)
    shown = {item.item_id: item.columns for item in recommender.popular("hi", 5)}
    assert shown["b"] == {
        "price": 12.0, "in_stock": True, "tags": ["dark"], "genres": ["Thriller"], "published": "2012-06-05",
        "stock": "no", "cents": 5.25,
    }  # fmt: skip
    assert shown["d"] | {"genres": []} == dict.fromkeys(names) | {
        "in_stock": False, "tags": ["bells", "dark"], "genres": [], "cents": 3.0
    }  # fmt: skip
    assert list(shown["a"]) == names
    json.dumps([asdict(item) for item in recommender.popular("hi", 5)], allow_nan=False)
    with refuses("columns.unknown", "show: ", "'prize'", "did you mean price"):
        serve(show=["prize"])


def test_added_items_have_columns_and_keep_them_after_a_restart(
    serve: Callable[..., Recommender], tmp_path: Path
) -> None:
    state, new = tmp_path / "state", {"item_id": "n", "title": "Persuasion", "year": 1917}
    recommender = serve(state=state, show=["price", "genres"])
    recommender.add_items([{**new, "price": 5, "genres": "Romance", "in_stock": True, "tags": ["love"]}])
    recommender.add_items([{"item_id": "a", "title": "Emma", "year": 1915, "price": 30.5}])  # no longer in stock
    for served in (recommender, serve(state=state, show=["price", "genres"])):  # after a restart, too
        assert left(served, where={"in_stock": True}) == {"b", "c", "n"}
        assert left(served, where={"price": {"max": 6}, "tags": ["love"]}) == {"n"}
        assert left(served, where={"year": {"max": 1917}}) == {"a", "n"}
        (item,) = served.popular("hi", 1, allow=["n"])
        assert item.columns == {"price": 5.0, "genres": ["Romance"]}
    before = recommender.catalog.snapshot
    recommender.add_items(
        [{**dict(zip(("item_id", "title", "year", *NAMES), BOOKS[1], strict=True)), "published": "2012-06-05"}]
    )
    assert recommender.catalog.snapshot is before  # the item is unchanged
    for value, code, problem in (
        ({"price": "5"}, "columns.wrong-type", "items[0]: price: '5'"),
        ({"price": float("inf")}, "columns.wrong-type", "items[0]: price: inf"),
        ({"in_stock": 1}, "columns.wrong-type", "items[0]: in_stock: 1"),
        ({"pages": 2.5}, "columns.wrong-type", "items[0]: pages: 2.5"),
        ({"tags": "love"}, "columns.wrong-type", "items[0]: tags: 'love'"),
        ({"colour": "red"}, "columns.unknown", "items[0]: the catalog has no column 'colour'"),
        ({"category": "\ud800"}, "columns.wrong-type", "items[0]: category: '\\ud800'"),
    ):
        with refuses(code, problem):
            recommender.add_items([{**new, **value}])


def test_popular_items_come_from_counted_rows_or_a_column(serve: Callable[..., Recommender], tmp_path: Path) -> None:
    recommender = serve()
    found = recommender.popular("hi", 4, seen=["b"])
    assert [(item.rank, item.item_id, item.score) for item in found] == [
        (1, "d", None), (2, "a", None), (3, "c", None), (4, "e", None)
    ]  # fmt: skip
    assert (found.fallback, found.reason, found.model_version) == (True, None, recommender.model_version)
    file = write_books(tmp_path)
    counted = [("Dune (1965)", None, 7), ("Dune (1965)", "Emma (1915)", 2), ("Emma (1915)", None, 2), ("X", None, 99)]
    rows = [dict(zip(SCHEMA.names, row, strict=True)) for row in counted]
    pq.write_table(pa.Table.from_pylist(rows, SCHEMA), find_mentions_file(file))
    assert [item.item_id for item in serve(file).popular("hi", 5)] == ["e", "a", "b", "c", "d"]
    find_mentions_file(file).write_text("no parquet")
    with refuses("mentions.damaged-file", "books.mentions.parquet", "--train"):
        serve(file)
    find_mentions_file(file).unlink()
    with refuses("recommender.no-popularity", "--train"):
        serve(write_books(tmp_path, mentions=None)).popular("hi")
    with refuses("conversation.empty"):
        recommender.popular("")
