"""A shop's columns: shown with items, filters through the trie, brought by items that are put; and popular items."""

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
from convrec.base.errors import UserError
from convrec.inference.served_catalog.mentions import SCHEMA, mentions_file
from data_prep.own import convert_own

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
    """The items that a list of this request can have: those of its trie which are not excluded."""
    request = recommender._prepare("hi", 5, **filters)
    if not request.num_items:
        return set()
    numbers = request.allowed.remaining()
    assert len(numbers) == request.num_items
    return {request.allowed.snapshot.items[number].item_id for number in numbers}


def test_conditions_leave_the_items_that_fit_all_of_them(serve: Callable[..., Recommender]) -> None:
    recommender = serve()
    expected: list[tuple[dict[str, Any], set[str]]] = [
        ({"category": ["Mystery"]}, {"b", "c", "d"}),
        ({"category": "Mystery"}, {"b", "c", "d"}),
        ({"category": ["Space", "Classic", "Cooking"]}, {"a", "e"}),
        ({"category": ["Mystery"], "price": {"max": 20}, "in_stock": True}, {"b"}),
        ({"price": {"min": 7.5, "max": 12}}, {"a", "b"}),
        ({"price": [25, 12]}, {"b", "c"}),
        ({"price": {"max": 1e9}}, {"a", "b", "c"}),  # NaN and null are no prices
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
    shown = {item.item_id: list(recommender.shown_columns(item).values()) for item in recommender.catalog}
    assert [shown[item_id] for item_id in "1234"] == [
        [True, 7.0, "007"], [False, 12.0, "012"], [True, 9.5, "13"], [None] * 3
    ]  # fmt: skip


def test_texts_that_are_all_true_and_false_are_booleans(serve: Callable[..., Recommender], tmp_path: Path) -> None:
    columns = {"on_sale": ["True", "false", "TRUE", "", None], "answer": ["true", "maybe", "false", None, None]}
    recommender = serve(write_books(tmp_path, **columns), show=["on_sale", "answer"])
    assert left(recommender, where={"on_sale": True}) == {"a", "c"}
    assert left(recommender, where={"on_sale": False}) == {"b"}
    assert left(recommender, where={"answer": "true"}) == {"a"}  # another word is there: texts
    shown = {item.item_id: item.columns for item in recommender.popular("hi", 5)}
    assert shown["d"] == {"on_sale": None, "answer": None}


def test_conditions_combine_with_the_other_filters(serve: Callable[..., Recommender]) -> None:
    recommender, mystery = serve(), {"category": ["Mystery"]}
    assert left(recommender, where=mystery, allow=["b", "c", "e"], seen=["Emma"]) == {"b", "c"}
    assert left(recommender, where=mystery, allow=["b", "c"], exclude=["b"], seen=["e"]) == {"c"}
    found = recommender.popular("hi", 5, where=mystery, allow=["b", "c", "e"], exclude=["b"])
    assert found.reason == (
        "of the 3 items allowed, of which 2 fit `where`, 1 are seen or excluded, which leaves 1 for a list of 5"
    )
    nothing = recommender.popular("hi", 5, where={"category": ["mystery"]})
    assert (nothing.items, nothing.reason) == (
        (),
        "of the catalog's 5 items, of which 0 fit `where`, 0 are seen or excluded, which leaves 0 for a list of 5",
    )


@pytest.mark.parametrize(
    ("where", "problem"),
    [
        ({"prcie": {"max": 3}}, "no column 'prcie' of texts, numbers or booleans; did you mean price?"),
        ({"vector": [1]}, "no column 'vector'"),
        ({}, 'where: write {"column": [values]}'),
        (["Mystery"], 'where: write {"column": [values]}'),
        ({"price": "cheap"}, "where: price: 'cheap' is of another type; the column has numbers"),
        ({"price": True}, "where: price: True is of another type"),
        ({"price": None}, "where: price: None is of another type"),
        ({"price": [[1]]}, "where: price: [1] is of another type"),
        ({"price": {"max": float("nan")}}, "where: price: nan is of another type"),
        ({"price": {"max": 10**400}}, "where: price: 1000"),
        ({"price": {"maximum": 3}}, 'where: price: write {"min": ..., "max": ...}'),
        ({"price": {}}, 'where: price: write {"min": ..., "max": ...}'),
        ({"pages": [1.5]}, "where: pages: 1.5 is of another type; the column has whole numbers"),
        ({"in_stock": 1}, "where: in_stock: 1 is of another type; the column has true and false"),
        ({"in_stock": {"min": True}}, 'where: in_stock: write {"min": ..., "max": ...} for numbers or texts'),
        ({"tags": {"min": "a"}}, 'where: tags: write {"min": ..., "max": ...} for numbers or texts'),
        ({"tags": [1]}, "where: tags: 1 is of another type; the column has texts"),
        ({"category": "\ud800"}, "where: category: '\\ud800' is of another type; the column has texts"),
    ],
)
def test_what_is_no_condition_is_one_sentence(
    serve: Callable[..., Recommender], tmp_path: Path, where: Any, problem: str
) -> None:
    recommender = serve(write_books(tmp_path, vector=[[0.5]] * 5))
    with pytest.raises(UserError) as error:
        recommender.popular("hi", where=where, k=1)
    assert problem in str(error.value)
    assert str(error.value).startswith("where: ")
    assert len(str(error.value).splitlines()) == 1


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
    with pytest.raises(UserError, match=r"show: the catalog has no column 'prize' of .*did you mean price"):
        serve(show=["prize"])


def test_items_that_are_put_bring_their_columns_and_keep_them(
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
    assert recommender.catalog.snapshot is before  # as it was in the file
    for value, problem in (
        ({"price": "5"}, "items[0]: price: '5' is of another type; the column has numbers"),
        ({"price": float("inf")}, "items[0]: price: inf is of another type"),
        ({"in_stock": 1}, "items[0]: in_stock: 1 is of another type"),
        ({"pages": 2.5}, "items[0]: pages: 2.5 is of another type"),
        ({"tags": "love"}, "items[0]: tags: 'love' is of another type; the column has lists of texts"),
        ({"colour": "red"}, "items[0]: the catalog has no column 'colour'"),
        ({"category": "\ud800"}, "items[0]: category: '\\ud800' is of another type"),
    ):
        with pytest.raises(UserError) as error:
            recommender.add_items([{**new, **value}])
        assert problem in str(error.value)


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
    pq.write_table(pa.Table.from_pylist(rows, SCHEMA), mentions_file(file))
    assert [item.item_id for item in serve(file).popular("hi", 5)] == ["e", "a", "b", "c", "d"]
    mentions_file(file).write_text("no parquet")
    with pytest.raises(UserError, match=r"books\.mentions\.parquet: not readable .*make it again with --train"):
        serve(file)
    mentions_file(file).unlink()
    with pytest.raises(UserError, match="fallback: nothing says what is popular; give --train"):
        serve(write_books(tmp_path, mentions=None)).popular("hi")
    with pytest.raises(UserError, match="conversation: it is empty"):
        recommender.popular("")
