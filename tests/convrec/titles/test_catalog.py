"""Catalogs from parquet and pickles: years, ids, aliases and genres, and files that are refused."""

import pickle
import time
import tracemalloc
from collections import OrderedDict

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from convrec.base.errors import UserError
from convrec.titles.catalog import Catalog, load_catalog, parse_year, print_problems
from convrec.titles.item import NO_YEAR
from tests.user_errors import refuses


def write(path, content):
    path.write_bytes(pickle.dumps(content))
    return path


def test_parquet_keeps_order_and_mentions(tmp_path):
    table = pa.table({"title": ["Heat", "Up"], "year": [1995, 2009], "mentions": [7, 0]})
    pq.write_table(table, tmp_path / "c.parquet")
    catalog = load_catalog(tmp_path / "c.parquet")
    assert (list(catalog.titles), list(catalog.years), list(catalog.mentions)) == (["Heat", "Up"], [1995, 2009], [7, 0])
    assert len(catalog) == 2
    assert not catalog.problems


def test_two_spellings_of_one_title_and_year_are_reported(tmp_path):
    films = [("Amelie", 2001), ("Fall", 2022), ("The Fall", 2006), ("Amélie", 2001), ("amelie", 2001)]
    (sentence,) = Catalog.from_items(films).spellings()
    assert sentence.startswith("row 3: 'Amélie' (2001) ")
    assert "row 0, 'Amelie'" in sentence
    assert not Catalog.from_items([(title, None) for title, _ in films]).spellings()
    table = pa.table({"title": ["Fall", "The Fall"], "year": [2022, 2022], "item_id": ["tt1", "tt2"]})
    pq.write_table(table, tmp_path / "c.parquet")
    catalog = load_catalog(tmp_path / "c.parquet")
    assert (list(catalog.item_ids), catalog.spellings()) == (["tt1", "tt2"], [])


def test_id_with_two_titles_is_reported_and_clean_titles_stay(tmp_path):
    columns = {
        "title": ["Emma", "Persuasion", "EMMA", "Emma", "Emma"],
        "year": pa.array([None] * 5, pa.int32()),
        "item_id": ["1", "1", "1", "4", None],
        "display": [None, None, None, "4", " "],
    }
    pq.write_table(pa.table(columns), tmp_path / "c.parquet")
    catalog = load_catalog(tmp_path / "c.parquet")
    (sentence,) = catalog.spellings()
    assert sentence.startswith("row 1: 'Persuasion' has the item_id of row 0, 'Emma'")
    assert [catalog.titles[row] for row in (0, 3, 4)] == ["Emma", "Emma [4]", "Emma"]
    assert [catalog.clean_title(row) for row in range(5)] == columns["title"]
    assert Catalog.from_items([("Hello [Adele]", 2015)]).clean_title(0) == "Hello [Adele]"  # part of the title


def test_spellings_of_items_without_ids_are_reported_among_ids():
    films = [("Amelie", 2001), ("Amélie", 2001), ("Amelie!", 2001), ("Heat", 1995), ("HEAT", 1995)]
    catalog = Catalog.from_items(films, item_ids=[None, None, "tt1", "tt2", "tt2"])
    (sentence,) = catalog.spellings()  # tt1 is another item, and HEAT is the same normalised title
    assert sentence.startswith("row 1: 'Amélie' (2001) is another spelling of row 0, 'Amelie'")


def test_rows_with_an_invalid_year_are_no_one_item():
    catalog = Catalog.from_items([("Heat", "soon"), ("Heat", "soon"), ("Heat", 1995), ("Heat", 1995)])
    assert catalog.first_rows(["heat"] * 4) == [0, 1, 2, 2]


def test_an_item_without_a_title_is_reported_despite_a_display():
    catalog = Catalog.from_columns({"title": [None, "Hello"], "year": [2015, 2015], "display": ["Adele", "Adele"]})
    assert catalog.titles == ["", "Hello [Adele]"]
    (problem,) = catalog.problems
    assert problem.startswith("row 0: the title is empty")


def test_columns_that_are_no_part_of_a_catalog_are_not_read(tmp_path):
    not_utf8 = pa.Array.from_buffers(pa.binary(), 1, pa.array([b"\xff"]).buffers()).view(pa.string())
    columns = {"title": pa.array(["Heat"]), "year": pa.array([1995]), "plot": not_utf8}
    pq.write_table(pa.table(columns), tmp_path / "c.parquet")
    assert load_catalog(tmp_path / "c.parquet").titles == ["Heat"]
    pq.write_table(pa.table(columns | {"genres": not_utf8}), tmp_path / "c.parquet")
    with refuses("catalog.invalid-encoding", tmp_path / "c.parquet"):
        load_catalog(tmp_path / "c.parquet")


def test_invalid_entries_are_reported_and_keep_their_row():
    catalog = Catalog.from_items([("The Wall", 201), ("Heat", None), ("", 1999), ("Up", "2009"), ("Jaws", "n/a")])
    assert catalog.years == [None, None, None, 2009, None]
    assert len(catalog.problems) == 4
    assert "row 0" in catalog.problems[0]
    assert "'The Wall'" in catalog.problems[0]
    assert "201" in catalog.problems[0]


def test_years_from_1870_to_2100_are_valid():
    assert Catalog.from_items([("A", 1869), ("B", 1870), ("C", 2100), ("D", 2101)]).years == [None, 1870, 2100, None]


def test_a_few_problems_are_printed_and_the_others_counted(capsys):
    print_problems("c.parquet", ["one", "two"])
    assert capsys.readouterr() == ("", "c.parquet: one\nc.parquet: two\n")
    print_problems("c.parquet", ["one"] * 5)
    assert len(capsys.readouterr().err.splitlines()) == 5
    print_problems("c.parquet", [str(number) for number in range(7)])
    printed = capsys.readouterr().err.splitlines()
    assert printed[:5] == [f"c.parquet: {number}" for number in range(5)]
    assert len(printed) == 6
    assert " 2 " in printed[5]


def test_ids_that_are_fractions_stay():
    assert Catalog.from_items([("Heat", 1995), ("Up", 2009)], item_ids=[1.5, 2.0]).item_ids == [1.5, 2]


def test_lines_are_titles_with_their_years():
    assert Catalog.from_items([("The Wall", 201), ("Heat", 1995)]).lines == ["The Wall", "Heat (1995)"]
    assert Catalog.from_items([("Blue Lamp", None)]).lines == ["Blue Lamp"]


@pytest.mark.parametrize("content", [[("Heat", 1995), ("Up", "2009")], (["Heat", "1995"], ["Up", 2009])])
def test_pickled_lists_and_tuples_load_with_int_or_str_years(tmp_path, content):
    catalog = load_catalog(write(tmp_path / "c.pkl", content))
    assert (list(catalog.titles), list(catalog.years)) == (["Heat", "Up"], [1995, 2009])


def test_a_set_loads_in_the_same_order_in_every_process(tmp_path):
    catalog = load_catalog(write(tmp_path / "c.pkl", {("Up", 2009), ("Heat", 1995), ("Alien", 1979)}))
    assert list(catalog.titles) == ["Alien", "Heat", "Up"]
    catalog = load_catalog(write(tmp_path / "c.pkl", {("Heat", None), ("Heat", 1995), ("Heat", "1995"), (1984, 1956)}))
    assert list(catalog.years) == [1995, 1995, None, None]  # a year can be a text or missing, a title a number
    assert list(catalog.titles) == ["Heat", "Heat", "Heat", ""]


@pytest.mark.parametrize("years", [[None, None], ["", ""], [None, ""]])
def test_without_any_year_it_is_a_catalog_without_years(years):
    catalog = Catalog.from_items(zip(["Blue Lamp", "Oak Desk (2020)"], years, strict=True))
    assert (catalog.dated, catalog.years, catalog.problems) == (False, [NO_YEAR, NO_YEAR], ())
    assert [catalog.normalise_year(value) for value in ("1999", "", None)] == [NO_YEAR] * 3
    assert [Catalog.from_items([("Up", 2009)]).normalise_year(value) for value in ("1999", "", None)] == [
        1999,
        None,
        None,
    ]


class RunsCode:
    def __reduce__(self):
        return (print, ("the pickle ran code",))


@pytest.mark.parametrize(("content", "name"), [(OrderedDict(a=1), "collections.OrderedDict"), ([RunsCode()], "print")])
def test_pickle_naming_a_class_or_function_is_refused(tmp_path, content, name, capsys):
    with refuses("catalog.unsafe-pickle", tmp_path / "c.pkl", name):
        load_catalog(write(tmp_path / "c.pkl", content))
    assert capsys.readouterr().out == ""


def nest(element: bytes, build: bytes, depth: int = 60) -> bytes:
    """Return opcodes that pair an element with itself, that pair with itself, and so on, and leave it on the stack."""
    memo = b"".join(b"(h%ch%c%c\x94" % (n, n, build) for n in range(depth))
    return b"\x80\x04(" + element + b"\x94" + memo + b"1" + b"h%c" % depth


TUPLES = nest(b")", b"t")
LISTS = nest(b"]", b"l")
SHARED = "x" * 10**6  # the pickle has this string once, however many entries use it


@pytest.mark.parametrize(
    "content",
    [
        TUPLES + b"\x85.",  # in a tuple
        TUPLES + b"\x94]h=a.",  # in a list
        TUPLES + b"\x94\x8f(h=\x90.",  # in a set, which hashes it
        TUPLES + b"\x94(h=\x91.",  # in a frozenset
        TUPLES + b"\x94}h=Ns.",  # a key
        LISTS + b"\x94]h=a.",
        b"\x80\x04]\x94h\x00a.",  # a list in itself
        b"\x80\x04]](]\x94h\x00ah\x00ee.",
        b"\x80\x04\x96" + (8 << 30).to_bytes(8, "little") + b".",  # a bytearray of 8 GiB that is not there
        b"\x80\x04(("
        + b"K\x01" * 10**5
        + b"t\x941\x8f("
        + b"h\x00K\x01\x86" * 10**5
        + b"\x90.",  # hashed again and again
        pickle.dumps({(SHARED, n) for n in range(20000)}),
        pickle.dumps([(SHARED, None)] * 20000),
        pickle.dumps([("Heat", SHARED)] * 20000),
        pickle.dumps([("Heat", 10**5000)]),  # more digits than Python prints
        pickle.dumps([["Heat", 1, 10**5000]]),
    ],
)
def test_a_small_pickle_cannot_take_long(tmp_path, content):
    (tmp_path / "c.pkl").write_bytes(content)
    tracemalloc.start()
    start = time.process_time()
    with pytest.raises(UserError, match=r"c\.pkl"):
        load_catalog(tmp_path / "c.pkl")
    seconds = time.process_time() - start
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert seconds < 5  # 20 times the usual duration
    assert peak < 64 << 20


def test_titles_of_a_thousand_characters_are_loaded(tmp_path):
    assert load_catalog(write(tmp_path / "c.pkl", [("x" * 1000, 1995)])).titles == ["x" * 1000]
    with refuses("catalog.invalid-entry", "entry 0", "1,000"):
        load_catalog(write(tmp_path / "c.pkl", [("x" * 1001, 1995)]))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickles_of_every_protocol_load(tmp_path, protocol):
    for content in ([("Heat", 1995), ("Up", "2009"), ("M", 1931.0)], (("Heat", 1995), ["Up", -1], ("Her", None))):
        (tmp_path / "c.pkl").write_bytes(pickle.dumps(content, protocol))
        assert load_catalog(tmp_path / "c.pkl").titles == [title for title, _ in content]


UNREADABLE = "catalog.unreadable-pickle"


@pytest.mark.parametrize(
    ("name", "content", "code", "value"),
    [
        ("c.csv", b"", "catalog.unknown-format", "'.csv'"),
        ("c.pkl", b"not a pickle", UNREADABLE, ""),
        ("c.parquet", b"not parquet", "catalog.unreadable-parquet", ""),
        ("c.pkl", b"}a.", UNREADABLE, ""),  # damaged bytes: append to a dict, unhashable in a set
        ("c.pkl", b"\x80\x04\x8f(}\x90.", UNREADABLE, ""),
        ("c.pkl", b"\x80\x04]r\xff\xff\xff\x7f", UNREADABLE, ""),  # memo entry 2**31: 16 GiB in C, one entry here
        ("c.pkl", b"\x80\x04(" + b"(" * 20000 + b"t" * 20000 + b"l.", UNREADABLE, "nested too deeply"),
        ("c.pkl", b"\x80\x04\x8f(" + b"(" * 20000 + b"t" * 20000 + b"\x90.", UNREADABLE, "nested too deeply"),
        ("c.pkl", b"\x80\x04())\x85t.", UNREADABLE, "nested too deeply"),  # the second value: ((), ((),))
        ("c.pkl", pickle.dumps({"Heat": 1995}), UNREADABLE, "a dict"),
        ("c.pkl", pickle.dumps([("Heat", 1995, 1)]), "catalog.invalid-entry", "entry 0"),
        ("c.pkl", pickle.dumps("Heat"), "catalog.unexpected-pickle", "str"),
        ("c.pkl", pickle.dumps([("Heat", "n/a")]), "catalog.no-usable-entry", ""),
        ("c.pkl", pickle.dumps([(" ", None)]), "catalog.no-usable-entry", ""),
    ],
)
def test_unusable_files_are_refused_by_name(tmp_path, name, content, code, value):
    (tmp_path / name).write_bytes(content)
    with refuses(code, tmp_path / name, value):
        load_catalog(tmp_path / name)


def test_a_missing_file_or_column_is_refused(tmp_path):
    with refuses("catalog.missing-file", tmp_path / "none.parquet"):
        load_catalog(tmp_path / "none.parquet")
    pq.write_table(pa.table({"title": ["Heat"]}), tmp_path / "c.parquet")
    with refuses("catalog.missing-column", tmp_path / "c.parquet", "year"):
        load_catalog(tmp_path / "c.parquet")


def test_ids_that_pandas_converted_to_floats_are_integers(tmp_path):
    frame = pd.DataFrame({"title": ["Heat", "Up", "Jaws"], "year": [1995, 2009, 1975], "item_id": [12, None, 13]})
    assert frame["item_id"].dtype == float
    frame.to_parquet(tmp_path / "c.parquet")
    assert repr(load_catalog(tmp_path / "c.parquet").item_ids) == "[12, None, 13]"  # the server shows them as text
    assert Catalog.from_columns(frame).item_ids == [12, None, 13]


@pytest.mark.parametrize(
    "genres", [["Crime", "Drama"], ("Crime", "Drama"), np.array(["Crime", "Drama"]), "Crime|Drama"]
)
def test_genres_are_read_from_a_text_or_any_kind_of_list(genres):
    assert Catalog.from_items([("Heat", 1995)], genres=[genres]).genres == [{"Crime", "Drama"}]


@pytest.mark.parametrize("genres", [None, float("nan"), 28, [], [None, ""]])
def test_missing_genres_are_an_empty_set(genres):
    assert Catalog.from_items([("Heat", 1995)], genres=[genres]).genres == [set()]


@pytest.mark.parametrize("genres", [[{"id": 28, "name": "Action"}], [28, 12]])
def test_genres_that_are_not_names_are_refused(tmp_path, genres):
    columns = {"title": ["Heat", "Up"], "year": [1995, 2009], "genres": [[], genres]}
    pq.write_table(pa.table(columns), tmp_path / "c.parquet")
    with refuses("catalog.invalid-labels", f"{tmp_path / 'c.parquet'}: row 1: genres: ", "28"):
        load_catalog(tmp_path / "c.parquet")


def test_mentions_that_are_not_numbers_are_refused(tmp_path):
    pq.write_table(pa.table({"title": ["Heat"], "year": [1995], "mentions": ["7"]}), tmp_path / "c.parquet")
    with refuses("catalog.invalid-mentions", f"{tmp_path / 'c.parquet'}: row 0: mentions='7'"):
        load_catalog(tmp_path / "c.parquet")


def test_a_damaged_page_is_refused_with_the_file(tmp_path):
    file = tmp_path / "c.parquet"
    pq.write_table(pa.table({"title": [f"Film {n}" for n in range(1000)], "year": [1995] * 1000}), file)
    content = bytearray(file.read_bytes())
    content[4:40] = b"\xff" * 36  # a page's header; the footer is intact
    file.write_bytes(content)
    with refuses("catalog.damaged-file", file):
        load_catalog(file)


@pytest.mark.parametrize(
    ("value", "year"),
    [(1995, 1995), ("1995", 1995), (" 1995 ", 1995), ("1995.0", 1995), (1995.0, 1995), ("n/a", None), (None, None),
     ("1995.5", None), ("nan", None), ("inf", None), (10**400, None)],
)  # fmt: skip
def test_years_are_read_from_any_type(value, year):
    assert parse_year(value) == year


def test_the_released_catalogs_load(shared_dir):
    catalog = load_catalog(shared_dir / "data" / "reddit_v2_catalog.parquet")
    assert len(catalog) == 7404
    assert [problem for problem in catalog.problems if "'The Wall'" in problem] == list(catalog.problems)
    assert len(catalog.spellings()) == 22
    assert len(load_catalog(shared_dir / "data/redial/processed_datasets/gt_catalog.pkl")) > 6000
