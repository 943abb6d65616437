"""Files of ratings in the layouts of many programs, and damaged ones."""

import gzip
import json
from pathlib import Path

import pandas as pd
import pytest

from convrec.base.errors import UserError
from convrec.data.damage import Damage
from data_prep.own_data.ratings import ROLES, read_ratings
from tests.user_errors import refuses

AMAZON = {"reviewerID": "196", "asin": "0000031887", "overall": 5.0, "reviewText": "Good", "unixReviewTime": 881250949}
GOODREADS = {"user_id": "196", "book_id": 7, "rating": 4, "date_added": "Fri Dec 05 01:49:09 -0800 1997"}
STEAM = (
    "app_id,helpful,date,is_recommended,hours,user_id\n10,0,1997-12-04,true,36.3,196\n20,0,1997-12-05,false,1.5,22\n"
)
REVIEWS = 'Id,ProductId,UserId,Score,Time,Text\n1,B1,196,5,881250949,"Good,\nvery good"\n2,B2,22,1,881250950,Bad\n'
TIME = 881250949  # 1997-12-04T15:55:49Z
DAY = 881193600
# file -> (content, --columns, the item that 196 liked, the time of it)
LAYOUTS = {
    "u.data": ("196\t242\t5\t881250949\n22\t377\t1\t878887116\n", (), "242", TIME),  # MovieLens 100K
    "ratings.dat": ("196::1193::5::881250949\n22::661::3::978302109\n", (), "1193", TIME),  # 1M
    "ratings.csv": ("userId,movieId,rating,timestamp\n196,296,5.0,881250949\n22,3,0.5,1147868817\n", (), "296", TIME),
    "ratings_Books.csv": ("196,0000031887,5.0,881250949\n22,0001,1.0,881250950\n", tuple(ROLES), "0000031887", TIME),
    "Books_5.json.gz": (json.dumps(AMAZON) + "\n", (), "0000031887", TIME),
    "Books.csv.gz": ("user_id,parent_asin,rating,timestamp\n196,B01,5.0,881250949123\n", (), "B01", TIME + 0.123),
    "Reviews.csv": (REVIEWS, (), "B1", TIME),  # with line breaks in cells
    "goodreads.jsonl": (json.dumps(GOODREADS) + "\n", (), "7", 881315349),
    "goodreads_interactions.csv": ("user_id,book_id,is_read,rating,is_reviewed\n196,948,1,5,0\n", (), "948", None),
    "steam-200k.csv": (
        "196,Dota 2,play,4.9,0\n22,Alien,play,.5,0\n",
        ("user", "item", "-", "rating", "-"),
        "Dota 2",
        None,
    ),
    "recommendations.csv": (STEAM, (), "10", 881193600),
    "ml-100k.inter": ("user_id:token\titem_id:token\trating:float\n196\t242\t5.0\n", (), "242", None),  # RecBole
    "user_artists.dat": ("userID\tartistID\tweight\n196\t51\t13883\n", ("rating=weight",), "51", None),  # HetRec
    "BX-Book-Ratings.csv": ('"User-ID";"ISBN";"Book-Rating"\n"196";"034545104X";"8"\n', (), "034545104X", None),
    "rating.csv": ("user_id,anime_id,rating\n196,20,8\n22,24,-1\n", (), "20", None),  # Anime
    "review.json": (
        '{"user_id": "196", "business_id": "b1", "stars": 4.0, "date": "1997-12-04 15:55:49"}\n',  # Yelp
        (),
        "b1",
        TIME,
    ),
    "transactions.csv": ("t_dat,customer_id,article_id,price\n1997-12-04,196,0663,5\n", ("rating=price",), "0663", DAY),
    "steam_reviews.json": ("{u'username': u'196', u'product_id': u'7', u'hours': 5.0}\n", ("rating=hours",), "7", None),
    "euro.csv": ("user;item;rating;time\n196;x;4,5;04.12.1997\n22;y;2,5;20.12.1997\n", (), "x", DAY),
    "excel.csv": ("sep=;\nuser;item;rating\n196;x;5\n", (), "x", None),
    "utf16.csv": ("\ufeffuser,item,rating\n196,Amélie,5\n".encode("utf-16-le"), (), "Amélie", None),
    "latin1.csv": ("user,item,rating\n196,Amélie,5\n".encode("latin-1"), (), "Amélie", None),
    "pandas.csv": (",user,item,rating\n0,196.0,7.0,5.0\n1,22,8.0,1.0\n", (), "7", None),
    "own.csv": ("who;what;how\n196;x;4\n", ("user=who", "item=what", "rating=how"), "x", None),
}


def write(path: Path, content: str | bytes) -> Path:
    content = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


@pytest.mark.parametrize("name", LAYOUTS)
def test_ratings_of_any_layout_are_read(name: str, tmp_path: Path) -> None:
    content, columns, item, time = LAYOUTS[name]
    least = 1 if name == "recommendations.csv" else 4  # recommended is 1
    table, num_read = read_ratings(write(tmp_path / name, content), columns, least, Damage())
    expected = {"user": "196", "item": item} | ({} if time is None else {"time": time})
    assert table.to_pylist() == [expected]
    assert num_read == (2 if "22" in str(content) else 1)


def test_parquet_has_numbers_and_moments_of_its_own(tmp_path: Path) -> None:
    times = pd.to_datetime(["1997-12-04 15:55:49", "1997-12-05 00:00:00"])
    frame = pd.DataFrame({"userId": [196, 22], "movieId": [242, 3], "rating": [4.5, 1.0], "timestamp": times})
    frame.to_parquet(tmp_path / "ratings.parquet")
    table, _ = read_ratings(tmp_path / "ratings.parquet", (), 4, Damage())
    assert table.to_pylist() == [{"user": "196", "item": "242", "time": TIME}]


def test_dates_of_a_file_are_read_in_the_one_order_that_fits_all(tmp_path: Path) -> None:
    days = ("05.02.2021", "20.02.2021", "01.03.2021")
    path = write(tmp_path / "a.csv", "user,item,time\n" + "".join(f"u,{day},{day}\n" for day in days))
    table, _ = read_ratings(path, (), None, Damage())
    assert pd.to_datetime(table["time"].to_pandas(), unit="s").dt.strftime("%d.%m.%Y").tolist() == [*days]
    american = write(tmp_path / "b.csv", "user,item,time\nu,a,02/05/2021\nu,b,2021-02-06\nu,c,02/20/2021 18:00\n")
    table, _ = read_ratings(american, (), None, Damage())
    times = pd.to_datetime(table["time"].to_pandas(), unit="s").dt.strftime("%d.%m.%Y %H:%M")
    assert times.tolist() == ["05.02.2021 00:00", "06.02.2021 00:00", "20.02.2021 18:00"]


@pytest.mark.parametrize(
    ("days", "problem"),
    [
        (("05.02.2021", "2021-02-20"), "line 2: time is '05.02.2021': 5 February or 2 May?"),
        (("05/02/2021", "20/02/2021", "02/20/2021"), "'20/02/2021' in row 3 (day first), but '02/20/2021' in row"),
    ],
)
def test_ambiguous_or_contradictory_dates_are_refused(days: tuple[str, ...], problem: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "user,item,time\n" + "".join(f"u,a,{day}\n" for day in days))
    for damage in (Damage(), Damage(0.9)):  # it spoils the whole file
        with pytest.raises(UserError) as raised:
            read_ratings(path, (), None, damage)
        assert problem in str(raised.value)


def test_without_a_minimum_rating_every_row_counts(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "user,item,rating\n1,a,\n1,b,none\n2,a,1\n")
    table, num_read = read_ratings(path, (), None, Damage())
    assert table.to_pylist() == [{"user": "1", "item": "a"}, {"user": "1", "item": "b"}, {"user": "2", "item": "a"}]
    assert num_read == 3


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("user,item,rating,time\n1,a,5,1\n2,,5,1\n", "line 3: item is ''; fill it in"),
        ("user,item,rating,time\n,a,5,1\n", "line 2: user is ''; fill it in"),
        ("user,item,rating,time\n1,a,good,1\n", "line 2: rating is 'good'; write a number"),
        ("user,item,rating,time\n1,a,5,soon\n", "line 2: time is 'soon'; write 2022-10-31"),
        ("user,item,rating\n1,9.78E+12,5\n", "line 2: item is '9.78E+12': a spreadsheet"),
        ('user,item,rating\n1,a,"4,500"\n', "line 2: rating is '4,500'; write a number"),
        ("user,item,rating,time\n1,a,5,2021\n", "line 2: time is 2021; numbers are seconds"),
    ],
)
def test_a_damaged_row_is_reported_with_file_row_and_fix(content: str, problem: str, tmp_path: Path) -> None:
    path = write(tmp_path / "ratings.csv", content)
    with pytest.raises(UserError) as raised:
        read_ratings(path, (), 4, Damage())
    assert f"{path}: {problem}" in str(raised.value)


def test_rows_count_from_one_without_a_header(tmp_path: Path) -> None:
    path = write(tmp_path / "ratings.csv", "1,a,5,1\n2,b,x,1\n")
    with pytest.raises(UserError) as raised:
        read_ratings(path, tuple(ROLES), 4, Damage())
    assert f"{path}: line 2: rating is 'x'" in str(raised.value)


@pytest.mark.parametrize(
    ("content", "columns", "code", "value"),
    [
        ("user,item,rating\n1,a,5\n2\n", (), "ratings.unreadable-file", "Row #3: Expected 3 columns, got 1"),
        ("user,thing,rating\n1,a,5\n", (), "ratings.missing-column", "for item among user, thing, rating"),
        ("user,item\n1,a\n", (), "ratings.no-rating-column", "--min-rating 4"),
        ("user,item,rating\n1,a,5\n", ("rating=stars",), "ratings.missing-column", "column stars for rating"),
        ("user,item,rating\n1,a,5\n", ("ratign=rating",), "ratings.missing-column", "column rating for rati"),
        ("user,item,rating\n1,a,5\n", ("item=user",), "ratings.missing-column", "column user for user"),
        ("user,item,rating\n", (), "ratings.none-left", "its 0 ratings"),
        ("user,item,rating\n1,a,3.5\n", (), "ratings.none-left", "its 1 ratings"),
        ("", (), "ratings.unreadable-file", "Empty CSV file"),
    ],
)
def test_an_unusable_file_is_refused(
    content: str, columns: tuple[str, ...], code: str, value: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "ratings.csv", content)
    with refuses(code, path, value):
        read_ratings(path, columns, 4, Damage())


def test_damaged_rows_are_left_out_where_they_may_be(tmp_path: Path) -> None:
    path = write(tmp_path / "ratings.csv", "user,item,rating\n1,a,5\n2,,5\n3,c,x\n4,d,5\n")
    damage = Damage(0.5)
    table, num_read = read_ratings(path, (), 4, damage)
    assert (table["user"].to_pylist(), num_read) == (["1", "4"], 4)
    assert {row: str(entry.problem) for (_, row), entry in damage.rows().items()} == {
        3: "item is ''; fill it in",
        4: "rating is 'x'; write a number",
    }


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "ratings.csv.gz", "user,item\n" + "1,a\n" * 10_000)
    path.write_bytes(path.read_bytes()[:-20])
    with refuses("ratings.unreadable-file", path):
        read_ratings(path, (), None, Damage())
