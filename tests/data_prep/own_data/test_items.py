"""Items in the layouts of public data sets of ratings: ids, titles, years, genres."""

import gzip
from pathlib import Path
from typing import Any

import pytest

from convrec.base.errors import UserError
from convrec.data.damage import Damage
from data_prep.own_data.catalog import ParsedCatalog, read_catalog
from data_prep.own_data.items import iter_items
from tests.user_errors import refuses

ATOMIC = "item_id:token\tmovie_title:token_seq\trelease_year:token\tclass:token_seq\n"
# file -> (content, the first item)
LAYOUTS: dict[str, tuple[str, dict[str, Any]]] = {
    "movies.dat": (
        "1::Heat (1995)::Action|Crime\n",
        {"item_id": "1", "title": "Heat", "year": 1995, "genres": "Action|Crime"},
    ),
    "u.item": ("1|Heat (1995)|01-Jan-1995||http|0|1\n", {"item_id": "1", "title": "Heat", "year": 1995}),
    "ml-100k.item": (
        ATOMIC + '1\t"Heat"\t1995\tAction Crime\n',
        {"item_id": "1", "title": '"Heat"', "year": 1995, "genres": "Action|Crime"},
    ),
    "artists.dat": ("id\tname\turl\n1\tAdele\thttp\n", {"item_id": "1", "title": "Adele", "year": None}),
    "BX-Books.csv": (
        '"ISBN";"Book-Title";"Year-Of-Publication"\n"034545104X";"Emma; a novel";"1996"\n',
        {"item_id": "034545104X", "title": "Emma; a novel", "year": 1996},
    ),
    "anime.csv": ("anime_id,name,genre\n1,K&deg;,Drama\n", {"item_id": "1", "title": "K°", "genres": "Drama"}),
    "articles.csv": ("article_id,prod_name\n0663,Shirt\n", {"item_id": "0663", "title": "Shirt"}),
    "business.json": (
        '{"business_id": "b1", "name": "Cafe", "categories": "Coffee, Food"}\n',
        {"item_id": "b1", "title": "Cafe", "genres": "Coffee, Food"},
    ),
    "meta.json.gz": ("{'asin': 'B1', 'title': 'Dune', 'price': 1.0}\n", {"item_id": "B1", "title": "Dune"}),
    "floats.csv": ("movieId,title\n7.0,Up\n", {"item_id": "7", "title": "Up"}),
}


def read(path: Path, *columns: str, damage: Damage | None = None) -> ParsedCatalog:
    damage = Damage() if damage is None else damage
    items = read_catalog(path, damage, entries=iter_items(path, columns, damage))
    damage.check([path], len(items.table))
    return items


@pytest.mark.parametrize("name", LAYOUTS)
def test_items_of_any_layout_are_read(name: str, tmp_path: Path) -> None:
    content, item = LAYOUTS[name]
    path = tmp_path / name
    path.write_bytes(gzip.compress(content.encode()) if path.suffix == ".gz" else content.encode())
    (row,) = read(path).table.to_pylist()
    assert {key: row.get(key) for key in item} == item


def test_columns_without_a_usual_name_are_named(tmp_path: Path) -> None:
    path = tmp_path / "films.csv"
    path.write_text("nr,film,made,by\n1,Heat,1995,Mann\n2,Ran,1985,\n")
    table = read(path, "item_id=nr", "title=film", "year=made", "director=by").table
    assert table.to_pylist()[0] == {"title": "Heat", "year": 1995, "item_id": "1", "director": "Mann"}
    with refuses("items.missing-column", "title=no", path, "nr, film, made, by"):
        read(path, "item_id=nr", "title=no")
    with refuses("items.malformed-column", "--item-columns title", path):
        read(path, "title")
    with pytest.raises(UserError, match=r"line 2: no item id \(the keys are nr, film, made, by\)"):
        read(path)


def test_a_broken_row_is_reported_and_the_others_are_read(tmp_path: Path) -> None:
    atomic = tmp_path / "a.item"
    atomic.write_text(ATOMIC + "1\tHeat\t1995\tCrime\n2\tRan\n3\tUp\t2009\tDrama\n")
    damage = Damage(0.5)
    assert read(atomic, damage=damage).table["title"].to_pylist() == ["Heat", "Up"]
    assert [(row, str(entry.problem)) for (_, row), entry in damage.rows().items()] == [
        (3, "2 cells for 4 columns; separate them by tabs")
    ]
    python = tmp_path / "a.json"
    python.write_text("{'asin': 'B1', 'title': 'Dune'}\n{'asin': 'B2', 'title': open('x')}\n")
    with pytest.raises(UserError, match="record 1: not a Python dict"):
        read(python)
    truncated = tmp_path / "a.csv"
    truncated.write_text("isbn,title\n9.78E+12,Dune\n")
    with pytest.raises(UserError, match=r"line 2: isbn is '9.78E\+12': a spreadsheet"):
        read(truncated)
