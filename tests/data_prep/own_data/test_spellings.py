"""Titles and years of catalogs are normalised as lists have them, and each change is reported."""

from datetime import date, datetime
from pathlib import Path

import pytest

from convrec.data.damage import Damage
from data_prep.own_data.catalog import ParsedCatalog, read_catalog
from data_prep.own_data.spellings import read_year


def read(folder: Path, name: str, content: str) -> ParsedCatalog:
    (folder / name).write_text(content)
    damage = Damage()
    items = read_catalog(folder / name, damage)
    damage.check()
    return items


@pytest.mark.parametrize(
    ("value", "year"),
    [
        (1995, 1995),
        ("1995", 1995),
        (1995.0, 1995),
        ("1995-12-15", 1995),
        ("1995-12", 1995),
        ("1995-12-15T00:00:00Z", 1995),
        ("12/15/1995", 1995),
        ("05.02.1995", 1995),
        ("15 Dec 1995", 1995),
        ("December 15, 1995", 1995),
        (date(1995, 12, 15), 1995),
        (datetime(1995, 12, 15), 1995),
        ("2013–2023", 2013),
        ("2013-", 2013),
        ("2013 - present", 2013),
        ("201", 201),
        ("1995.5", None),
        ("soon", None),
        ("", None),
        (None, None),
        ([1995], None),
    ],
)
def test_the_year_of_what_catalogs_write(value: object, year: int | None) -> None:
    assert read_year(value) == year


@pytest.mark.parametrize(
    ("name", "content", "note"),
    [
        (
            "tmdb.csv",
            "id,title,release_date\n1,Heat,1995-12-15\n2,Alien,1979-05-25\n",
            "the column release_date is read",
        ),
        ("imdb.tsv", "tconst\tprimaryTitle\tstartYear\nt1\tHeat\t1995\nt2\tAlien\t1979\n", "the column startYear is"),
        ("capitals.csv", "Title,Release Year\nHeat,1995\nAlien,1979\n", "the column Release Year is read as year"),
        ("dated.csv", "title,year\nHeat,1995–1996\nAlien,25.05.1979\n", ""),
    ],
)
def test_no_catalog_loses_its_years(name: str, content: str, note: str, tmp_path: Path) -> None:
    items = read(tmp_path, name, content)
    assert items.table.select(["title", "year"]).to_pylist() == [
        {"title": "Heat", "year": 1995},
        {"title": "Alien", "year": 1979},
    ]
    assert note in "\n".join(items.notes)


def test_canonical_column_name_beats_a_common_alias(tmp_path: Path) -> None:
    items = read(tmp_path, "a.csv", "title,name,year,release_date\nHeat,x,1995,2001-01-01\n")
    assert items.table.to_pylist() == [{"title": "Heat", "year": 1995, "name": "x", "release_date": "2001-01-01"}]
    assert not items.notes


def test_further_columns_keep_their_names(tmp_path: Path) -> None:
    items = read(tmp_path, "a.csv", "title,genre,class\nHeat,Crime,A\n")
    assert items.table.to_pylist() == [{"title": "Heat", "year": None, "genre": "Crime", "class": "A"}]


@pytest.mark.parametrize("header", ["Title,Item ID,Aliases,Genre", " TITLE , item_ID, aliases ,GENRE"])
def test_our_columns_are_known_in_capitals_and_with_blanks(tmp_path: Path, header: str) -> None:
    items = read(tmp_path, "a.csv", f"{header}\nHeat,h1,Hitze,Crime\n")
    expected = {"title": "Heat", "year": None, "item_id": "h1", "aliases": "Hitze", "genre": "Crime"}
    assert items.table.to_pylist() == [expected]


def test_a_guessed_encoding_is_reported(tmp_path: Path) -> None:
    (path := tmp_path / "a.csv").write_bytes("title,year\nAmélie,2001\n".encode("cp1252"))
    items = read_catalog(path, Damage())
    assert items.table["title"].to_pylist() == ["Amélie"]
    assert "read as Windows-1252: Amélie" in items.notes[0]


def test_what_stands_for_no_value_is_none(tmp_path: Path) -> None:
    items = read(tmp_path, "a.tsv", "title\tyear\tgenres\nHeat\t\\N\t\\N\nAlien\t\\N\tHorror\n")
    assert items.table["year"].to_pylist() == [None, None]
    assert items.table["genres"].to_pylist() == [None, "Horror"]
    assert not items.has_years


def test_entities_are_read(tmp_path: Path) -> None:
    items = read(tmp_path, "a.csv", "title,year,aliases\nTom &amp; Jerry,2021,T&#39;J\nAT&T; a story,1995,\n")
    assert items.table["title"].to_pylist() == ["Tom & Jerry", "AT&T; a story"]
    assert items.table["aliases"].to_pylist()[0] == "T'J"
    assert "HTML entities decoded in 2 texts (Tom &amp; Jerry is Tom & Jerry)" in items.notes[0]


def test_articles_are_put_in_front_and_second_titles_are_aliases(tmp_path: Path) -> None:
    titles = [
        "Matrix, The (1999)",
        "Postman, The (Postino, Il) (1994)",
        "Seven (a.k.a. Se7en) (1995)",
        "Avventura, L' (1960)",
        "Brazil (Director's Cut) (1985)",
        "Dune (Part Two) (1984)",
        "Me, Myself, I (1999)",
    ]
    items = read(tmp_path, "movies.csv", "title\n" + "".join(f'"{title}"\n' for title in titles))
    assert items.table["title"].to_pylist() == [
        "The Matrix",
        "The Postman",
        "Seven",
        "L'Avventura",
        "Brazil (Director's Cut)",
        "Dune (Part Two)",
        "Me, Myself, I",
    ]
    assert items.table["aliases"].to_pylist() == [None, ["Il Postino"], ["Se7en"], None, None, None, None]
    assert any("articles moved to the front of 3 titles" in note for note in items.notes)
    assert any("2 alternative titles in parentheses became aliases" in note for note in items.notes)


def test_a_catalog_without_trailing_articles_keeps_its_commas(tmp_path: Path) -> None:
    items = read(tmp_path, "shop.csv", 'title\n"Vitamin, A"\n"T-Shirt (Postino, Il)"\n')
    assert items.table["title"].to_pylist() == ["Vitamin, A", "T-Shirt (Postino, Il)"]


def test_items_of_one_title_and_year_stay_two_items(tmp_path: Path) -> None:
    content = "item_id,title,year\n1175,Hugo Pool,1997\n1617,Hugo Pool,1997\n3,Heat,1995\n"
    items = read(tmp_path, "items.csv", content)
    assert list(items.build_catalog().titles) == ["Hugo Pool [1175]", "Hugo Pool [1617]", "Heat"]
    assert "2 items share title and year with another (Hugo Pool has the ids 1175 and 1617)" in items.notes[0]
