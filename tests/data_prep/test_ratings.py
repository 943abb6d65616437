"""`convrec data ratings` from files to tables: all layouts of MovieLens give the same, and memory is bounded."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv

from convrec.data.validation import validate_rl_table
from convrec.titles.catalog import load_catalog
from data_prep.own_data.histories import WORDINGS
from data_prep.ratings import main
from reward.catalog_match import compute_score

TITLES = ("Toy Story (1995)", "GoldenEye (1995)", "Heat (1995)", "Matrix, The (1999)", "Léon (1994)", "M (1931)")
# (user, item, rating, time): 1 likes six films in order, 2 five, of which the last two come late
RATINGS = [(1, item, 4 + item % 2, 880_000_000 + item) for item in range(1, 7)]
RATINGS += [(2, item, 5, 880_000_000 + 100 * item) for item in range(5, 0, -1)] + [(2, 6, 1, 880_000_000)]
OPTIONS = ("--min-rating", "4", "--wanted", "2", "--max-history", "3")


def movielens(folder: Path, layout: str) -> tuple[Path, Path]:
    """Ratings and items as one of the three layouts writes them."""
    separator = {"100K": "\t", "1M": "::", "25M": ","}[layout]
    ratings, items = {
        "100K": ("u.data", "u.item"),
        "1M": ("ratings.dat", "movies.dat"),
        "25M": ("ratings.csv", "movies.csv"),
    }[layout]
    lines = [separator.join(map(str, rating)) for rating in RATINGS]
    entries = []
    for number, title in enumerate(TITLES, 1):
        entry = {
            "100K": f"{number}|{title}|01-Jan-1995||http://us.imdb.com/M|0|0|1" + "|0" * 16,
            "1M": f"{number}::{title}::Animation|Comedy",
            "25M": f'{number},"{title}",Animation|Comedy',
        }[layout]
        entries.append(entry)
    if layout == "25M":
        lines.insert(0, "userId,movieId,rating,timestamp")
        entries.insert(0, "movieId,title,genres")
    encoding = "utf-8" if layout == "25M" else "latin-1"  # as GroupLens' files are
    (folder / ratings).write_text("\n".join(lines) + "\n", encoding=encoding)
    (folder / items).write_text("\n".join(entries) + "\n", encoding=encoding)
    return folder / ratings, folder / items


def convert(files: tuple[Path, Path], out: Path, *options: str) -> dict[str, list[dict[str, Any]]]:
    arguments = ["--ratings", str(files[0]), "--items", str(files[1]), "--out", str(out), *OPTIONS, *options]
    assert main(arguments) == 0
    return {path.stem: pq.read_table(path).to_pylist() for path in sorted(out.glob("*.parquet"))}


def read_targets(rows: list[dict[str, Any]]) -> list[tuple[list[str], list[str]]]:
    return [(row["seen_titles"], [title for title, _ in row["groundtruth_with_release_year"]]) for row in rows]


@pytest.mark.parametrize("layout", ["100K", "1M", "25M"])
def test_movielens_becomes_conversations_with_scorable_targets(layout: str, tmp_path: Path) -> None:
    tables = convert(movielens(tmp_path, layout), tmp_path / "out", "--test-from", "1997-11-20T04:32:20Z")
    titles = [title[:-7].replace("Matrix, The", "The Matrix") for title in TITLES]
    assert list(tables) == ["catalog", "test", "train", "train_ratings"]
    # 880,000,340 is the border: user 2 rated 5 and 4 at 500 and 400, the others before; 6 was not liked
    assert read_targets(tables["train"]) == [(titles[1:4], titles[4:6]), (titles[:1], titles[1:3])]
    assert read_targets(tables["test"]) == [(titles[:3], titles[3:5])]
    (row,) = tables["test"]
    question = row["prompt"][0]["content"].partition("Here is the conversation: ")[2]
    named = "Toy Story (1995), GoldenEye (1995) and Heat (1995)"
    assert question in [f"USER: {wording.format(named)}\n" for wording in WORDINGS]
    assert row["sample_id"] == "2_t3"
    for name in ("train", "test"):
        validate_rl_table(tmp_path / "out" / f"{name}.parquet")
    catalog = load_catalog(tmp_path / "out" / "catalog.parquet")
    assert (catalog.titles, catalog.years) == (titles, [1995, 1995, 1995, 1999, 1994, 1931])
    assert catalog.genres is None if layout == "100K" else catalog.genres[0] == {"Animation", "Comedy"}
    truth = {"groundtruth": row["groundtruth_with_release_year"], "seen": row["seen_titles"]}
    listed = "The Matrix (1999)\nHeat (1995)\nLeon (1994)"
    scored = compute_score("x", listed, truth, catalog_path=str(tmp_path / "out" / "catalog.parquet"))
    assert scored["relevance"][:3] == [1, 0, 1]


def test_out_appears_with_all_files_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("data_prep.ratings.write_train_ratings", fail)
    with pytest.raises(KeyboardInterrupt):
        convert(movielens(tmp_path, "1M"), out := tmp_path / "out")
    assert not out.exists()


def test_user_split_keeps_users_whole_and_seed_varies_words_only(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    lines = [f"u{user},{item},{5 - item % 2}" for user in range(200) for item in rng.permutation(6) + 1]
    files = movielens(tmp_path, "25M")
    files[0].write_text("user,item,rating\n" + "\n".join(lines) + "\n")
    shares = ("--validation-share", "0.2", "--test-share", "0.3", "--rows-per-user", "2")
    first, again, other = (
        convert(files, tmp_path / name, *shares, "--seed", seed) for name, seed in (("a", "1"), ("b", "1"), ("c", "2"))
    )
    assert first == again
    assert read_targets(first["train"]) == read_targets(other["train"])
    assert first["train"] != other["train"]
    users = {name: {row["id"].split("_")[0] for row in first[name]} for name in ("train", "validation", "test")}
    assert len(set.union(*users.values())) == 200 == sum(map(len, users.values()))
    assert 40 <= len(users["test"]) <= 80
    assert len(first["train"]) == 2 * len(users["train"])  # six films: three named, two wanted, and once more
    assert len(first["test"]) == len(users["test"])


def test_cold_rows_have_their_own_table_and_ratings_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = movielens(tmp_path, "25M")
    start = 1_000_000_000
    ratings = [(user, item, 5, start + item) for user in (1, 2) for item in range(1, 5)]
    ratings += [(1, 5, 5, start + 100), (1, 6, 5, start + 101)]  # nobody rated 5, 6 in time
    ratings += [(2, 1, 5, start + 5), (2, 77, 5, start + 6)]
    ratings += [(3, 1, 5, start + 1), (3, 2, 5, start + 100), (4, 1, 5, start + 1), (5, 2, 3.5, start + 1)]
    lines = [",".join(map(str, rating)) for rating in ratings]
    files[0].write_text("userId,movieId,rating,timestamp\n" + "\n".join(lines) + "\n")
    out = tmp_path / "out"
    tables = convert(files, out, "--test-from", "2001-09-09T01:47:40Z", "--wanted", "1")
    assert "test" not in tables
    assert [row["id"] for row in tables["test_cold"]] == ["1_t4", "3_t1"]
    printed = capsys.readouterr().out
    assert f"16 ratings, 1 of them too low or damaged, 1 for items that {files[1]} lacks, 1 for an item" in printed
    assert "1 of 4 users have too few ratings for a row" in printed
    assert "test_cold" in json.loads((out / "summary.json").read_text())["files"]


def test_without_items_the_ratings_name_them(tmp_path: Path) -> None:
    path = tmp_path / "steam-200k.csv"
    games = ("Dota 2", "Alien: Isolation", "Portal 2", "Braid")
    path.write_text("".join(f"{user},{game},play,{hours}.5,0\n" for user in (1, 2) for hours, game in enumerate(games)))
    arguments = ["--ratings", str(path), "--columns", "user", "item", "-", "rating", "-", "--min-rating", "1"]
    assert main([*arguments, "--item", "game", "--wanted", "1", "--out", str(tmp_path / "out")]) == 0
    rows = pq.read_table(tmp_path / "out" / "train.parquet").to_pylist()
    assert read_targets(rows) == [(["Alien: Isolation", "Portal 2"], ["Braid"])] * 2
    assert "game recommender" in rows[0]["prompt"][0]["content"]


@pytest.mark.parametrize(
    ("options", "messages"),
    [
        (["--test-share", "0.2", "--split-by", "time"], ["--split-by time", "[ratings.no-time-column]"]),
        (["--test-from", "2020-01-01"], ["--test-from", "[ratings.dates-need-times]"]),
        (["--ratings", "none.csv"], ["none.csv", "[ratings.missing-file]"]),
        (["--items", "none.dat"], ["none.dat", "[ratings.missing-file]"]),
        (["--wanted", "0"], ["--wanted 0: give a positive integer"]),
        (["--columns", "item=place"], ["10 ratings", "[ratings.no-known-item]"]),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    options: list[str], messages: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = movielens(tmp_path, "25M")
    files[0].write_text(
        "user,item,place\n" + "".join(f"a{user},{item},b{item}\n" for user in (1, 2) for item in range(1, 6))
    )
    out = tmp_path / "out"
    assert main(["--ratings", str(files[0]), "--items", str(files[1]), "--out", str(out), *options]) == 2
    printed = capsys.readouterr().err
    assert all(message in printed for message in messages)
    assert not out.exists()


def test_an_item_without_an_id_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = movielens(tmp_path, "25M")
    files[1].write_text("number,title\n1,Heat (1995)\n")
    assert main(["--ratings", str(files[0]), "--items", str(files[1]), "--out", str(tmp_path / "out")]) == 2
    problem = "movies.csv: line 2: no item id (the keys are number, title)"
    assert problem in capsys.readouterr().err


@pytest.mark.long
def test_memory_per_rating_fits_25_million_ratings_in_4_gib(tmp_path: Path) -> None:
    """4 GiB / 25 million = 171 bytes per rating, in addition to Python and its libraries."""
    rng, sizes, peaks = np.random.default_rng(0), (300_000, 1_300_000), []
    _, items = movielens(tmp_path, "25M")
    items.write_text("movieId,title\n" + "".join(f"{item},Film of {item} nights\n" for item in range(1000)))
    for size in sizes:
        columns = {
            "userId": np.sort(rng.integers(0, 5000, size)),
            "movieId": rng.integers(0, 1000, size),
            "rating": rng.integers(1, 6, size),
            "timestamp": rng.integers(10**9, 1_500_000_000, size),
        }
        csv.write_csv(pa.table(columns), tmp_path / "ratings.csv")
        program = (
            "import resource, sys; from data_prep.ratings import main; status = main(sys.argv[1:]); "
            "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss); sys.exit(status)"
        )
        arguments = ["--ratings", str(tmp_path / "ratings.csv"), "--items", str(items), "--out", str(tmp_path / "out")]
        command = [sys.executable, "-c", program, *arguments, "--overwrite"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        peaks.append(1024 * int(done.stdout.split()[-1]))
    assert (peaks[1] - peaks[0]) / (sizes[1] - sizes[0]) < 171
