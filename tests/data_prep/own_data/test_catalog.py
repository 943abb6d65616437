"""Items with ids: kept by the conversion, distinguished in lists, and named in conversations."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from convrec.base.errors import UserError
from convrec.lists.metrics import evaluate_row
from convrec.lists.ranks import parse_items
from convrec.titles.catalog import load_catalog
from convrec.titles.matching import Matcher
from data_prep.own import convert_own, format_summary, main

SONGS = [
    {"item_id": "s1", "title": "Hello", "display": "Adele"},
    {"item_id": "s2", "title": "Hello", "display": "Lionel Richie"},
    {"item_id": "s3", "title": "Intro"},
    {"item_id": "s4", "title": "Intro"},
    {"item_id": "s5", "title": "Yellow", "display": "Coldplay"},
]
REMAKES = [{"item_id": 7, "title": "Heat", "year": 1995}, {"item_id": 8, "title": "Heat", "year": 1986}]


def converted(folder: Path, catalog: list[dict[str, Any]], **row: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the rows of the catalog and the one row of train, as written."""
    for name, records in (("rows", [{"conversation": "USER: hi", **row}]), ("items", catalog)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    convert_own([folder / "rows.jsonl"], folder / "items.jsonl", folder / "out", item="song", num_items=3)
    rows = (pq.read_table(folder / "out" / f"{name}.parquet").to_pylist() for name in ("catalog", "train"))
    return next(rows), next(rows)[0]


def refused(folder: Path, catalog: list[dict[str, Any]], **row: Any) -> str:
    with pytest.raises(UserError) as error:
        converted(folder, catalog, **row)
    return str(error.value)


def test_items_of_one_title_are_distinguished_by_display_or_id(tmp_path: Path) -> None:
    items, row = converted(tmp_path, SONGS, ground_truth=["s2", {"item_id": "s4"}], seen=["s5", "Hello [Adele]"])
    assert [item["item_id"] for item in items] == ["s1", "s2", "s3", "s4", "s5"]
    catalog = load_catalog(tmp_path / "out" / "catalog.parquet")
    shown = ["Hello [Adele]", "Hello [Lionel Richie]", "Intro [s3]", "Intro [s4]", "Yellow [Coldplay]"]
    assert list(catalog.titles) == shown
    assert row["groundtruth_with_release_year"] == [["Hello [Lionel Richie]", ""], ["Intro [s4]", ""]]
    assert row["seen_titles"] == ["Yellow [Coldplay]", "Hello [Adele]"]
    listed = parse_items("Hello [Adele]\nIntro [s4]\nIntro [s3]\nHello [Lionel Richie]", dated=False)
    truth = row["groundtruth_with_release_year"]
    scored = evaluate_row(listed, truth, row["seen_titles"], Matcher(catalog), "paper", [4])
    assert scored["catalog_index"] == [0, 3, 2, 1]
    assert scored["recall@4"] == 1


def test_whole_numbers_are_ids_and_titles_stay_titles(tmp_path: Path) -> None:
    _, row = converted(tmp_path, REMAKES, ground_truth=[8, "Heat (1995)"], seen=[7])
    assert row["groundtruth_with_release_year"] == [["Heat", "1986"], ["Heat", "1995"]]
    assert row["seen_titles"] == ["Heat"]


@pytest.mark.parametrize(
    ("catalog", "truth", "problem"),
    [
        (SONGS, "s9", "line 1: ground_truth holds 's9', which looks like an item_id but is not in the catalog"),
        (SONGS, {"item_id": "x"}, "ground_truth holds the item_id 'x', which is not in the catalog"),
        (REMAKES, 9, "ground_truth holds the item_id 9, which is not in the catalog"),
        (REMAKES, "9", "ground_truth holds '9', which looks like an item_id but is not in the catalog"),
        ([{"title": "Heat"}], 9, "ground_truth holds 9, which is not an item"),
        ([{"item_id": "300", "title": "Up"}, {"item_id": "301", "title": "300"}], "300", "an item_id and a title"),
    ],
)
def test_a_ground_truth_with_an_unknown_id_is_refused(tmp_path: Path, catalog: list, truth: Any, problem: str) -> None:
    assert problem in refused(tmp_path, catalog, ground_truth=[truth])


@pytest.mark.parametrize(
    ("item", "problem"),
    [
        (
            {"item_id": "s1", "title": "Hello", "display": "Adele"},
            "line 6: 'Hello' is already on line 1; remove one",
        ),
        ({"item_id": 1.5, "title": "Hey"}, "line 6: item_id is 1.5; write a string or an integer"),
        ({"item_id": "s6", "title": "Hey", "display": "a\nb"}, "line 6: display is 'a\\nb'; write a string"),
    ],
)
def test_an_item_with_a_bad_id_or_display_is_refused(tmp_path: Path, item: dict, problem: str) -> None:
    assert problem in refused(tmp_path, [*SONGS, item], ground_truth=["s1"])


@pytest.mark.parametrize("truth", ["Hello", ["Hello"], {"title": "Hello"}])
def test_a_title_of_several_items_is_refused_with_their_names(tmp_path: Path, truth: Any) -> None:
    problem = refused(tmp_path, SONGS, ground_truth=[truth])
    assert "line 1: ground_truth holds" in problem
    assert "which matches 2 items of the catalog (Hello [Adele], Hello [Lionel Richie]); write the item_id" in problem
    assert "2 items of the catalog (Intro [s3], Intro [s4])" in refused(tmp_path, SONGS, demonstration=["Intro"])
    _, row = converted(tmp_path, SONGS, ground_truth=["Yellow", "s1"], seen=["Hello"])  # one Yellow; all of Hello
    assert row["groundtruth_with_release_year"] == [["Yellow [Coldplay]", ""], ["Hello [Adele]", ""]]
    assert row["seen_titles"] == ["Hello [Adele]", "Hello [Lionel Richie]"]


def test_a_title_of_two_items_of_one_year_is_refused(tmp_path: Path) -> None:
    editions = [{"item_id": n, "title": "Heat", "year": 1995} for n in (1, 2)]
    problem = refused(
        tmp_path, [*editions, {"item_id": 3, "title": "Heat", "year": 1986}], ground_truth=["Heat (1995)"]
    )
    assert "'Heat (1995)', which matches 2 items of the catalog (Heat [1] (1995), Heat [2] (1995))" in problem


def test_an_alias_is_ground_truth_of_its_item(tmp_path: Path) -> None:
    catalog = [{"title": "Spirited Away", "year": 2001, "aliases": ["Sen to Chihiro"]}, {"title": "Heat", "year": 1995}]
    converted(tmp_path, catalog, ground_truth=["Sen to Chihiro (2001)"])
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["files"]["train"]["outside_catalog"]["mentions"] == 0


def test_columns_of_a_shops_catalog_are_mapped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "shop.csv").write_text("sku,name,price\nB-1,Dune,9.5\nB-2,Emma,4\n")
    (tmp_path / "rows.jsonl").write_text(json.dumps({"conversation": "USER: hi", "ground_truth": ["B-2"]}))
    argv = ["--conversations", str(tmp_path / "rows.jsonl"), "--catalog", str(tmp_path / "shop.csv")]
    argv += ["--out", str(tmp_path / "out"), "--columns"]
    assert main([*argv, "item_id=sku,title=name"]) == 0
    assert pq.read_table(tmp_path / "out" / "catalog.parquet").to_pylist() == [
        {"title": "Dune", "year": None, "item_id": "B-1", "price": 9.5},
        {"title": "Emma", "year": None, "item_id": "B-2", "price": 4.0},
    ]
    for columns, code, values in (
        ("item_id=id,title=name", "items.unknown-column", ("shop.csv", "item_id=id", "sku, name, price")),
        ("price=name", "items.conflicting-column", ("shop.csv", "--columns price=name")),
    ):
        assert main([*argv, columns, "--overwrite"]) == 2
        printed = capsys.readouterr().err
        assert f"[{code}]" in printed
        assert all(value in printed for value in values)
    for columns in ("sku", "title=", "title=name,title=sku"):
        assert main([*argv, columns]) == 2
        assert f"--columns {columns}: give item_id=sku,title=name, each of our names once" in capsys.readouterr().err


def test_the_catalog_notes_what_the_prompt_asks_for(tmp_path: Path) -> None:
    converted(tmp_path, SONGS, ground_truth=["s1"])
    noted = pq.read_schema(tmp_path / "out" / "catalog.parquet").metadata
    assert (noted[b"convrec.item"], noted[b"convrec.num_items"]) == (b"song", b"3")


def written(folder: Path, catalog: str, wanted: str) -> tuple[list[tuple[str, int | None]], dict[str, Any]]:
    """Return titles and years as written, and the summary, for a catalog in CSV."""
    (folder / "rows.jsonl").write_text(json.dumps({"conversation": "USER: hi", "ground_truth": [wanted]}))
    (folder / "items.csv").write_text(catalog)
    summary = convert_own([folder / "rows.jsonl"], folder / "items.csv", folder / "out", overwrite=True)
    rows = pq.read_table(folder / "out" / "catalog.parquet").to_pylist()
    return [(row["title"], row["year"]) for row in rows], summary


def test_years_at_the_end_of_titles_are_split_off(tmp_path: Path) -> None:
    movies = 'movieId,title,genres\n1,Heat (1995),Crime\n2,M (1931),Crime\n3,"Matrix, The (1999)",Action\n'
    titles, summary = written(tmp_path, movies, "The Matrix (1999)")
    assert titles == [("Heat", 1995), ("M", 1931), ("The Matrix", 1999)]
    assert summary["files"]["train"]["outside_catalog"]["mentions"] == 0
    note = "items.csv: no column year; the years at the end of 3 titles are used"
    assert note in format_summary(summary, "out")
    with pytest.raises(UserError, match=r"items\.csv: line 5: no year, but 3 items have one; fill it in"):
        written(tmp_path, movies + "4,Babylon 5,SF\n", "M (1931)")
    more = "".join(f"{n},Film {n} (2000),SF\n" for n in range(5, 45))  # one of 44: MovieLens has such titles too
    titles, summary = written(tmp_path, movies + "4,Babylon 5,SF\n" + more, "M (1931)")
    assert (len(titles), "Babylon 5" in dict(titles)) == (43, False)
    assert [text.partition(",")[0] for text in summary["catalog"]["never_matched"]] == ["line 5: no year"]
    titles, summary = written(tmp_path, "title\n1999 (1982)\nHello\nIntro\n", "Hello")  # few: part of a title
    assert (summary["catalog"]["dated"], titles[0]) == (False, ("1999 (1982)", None))


def test_an_item_with_an_impossible_year_is_left_out(tmp_path: Path) -> None:
    films = "".join(f"Film {n},2000\n" for n in range(20))
    titles, summary = written(tmp_path, f"title,year\n{films}The Wall,201\n", "Film 3 (2000)")
    (sentence,) = summary["catalog"]["never_matched"]
    assert sentence == "line 22: 'The Wall' has the year '201'; write a year from 1870 to 2100; left out"
    assert f"never matched: {sentence}" in format_summary(summary, "out")
    assert len(titles) == 20


def test_rows_that_are_one_item_are_reported(tmp_path: Path) -> None:
    _, summary = written(tmp_path, "title,year\nAmelie,2001\nAmélie,2001\n", "Amelie (2001)")
    (sentence,) = summary["catalog"]["merged"]
    assert sentence.startswith("row 1: 'Amélie' (2001)")
    assert sentence in format_summary(summary, "out")
