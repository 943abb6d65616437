"""The sample data: facts, format, determinism, and whether it can be learned from the text alone."""

import itertools
import re
import subprocess
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest

from benchmarks.studies.sample_ceiling import check_sample, read_taste
from convrec.data.schema import split_prompt
from convrec.data.validation import validate_rl_table, validate_sft_table
from convrec.lists.ranks import parse_items
from convrec.titles.catalog import load_catalog
from data_prep.sample import draw_taste, main, write_sample
from data_prep.sample_data.conversations import GENRE_WORDS, write_conversation
from data_prep.sample_data.films import ERAS, Film, FilmTable, Taste, load_films
from tests.user_errors import refuses

COUNTS = {"train": 400, "validation": 200, "test": 20}
FEW = {"train": 3, "validation": 1, "test": 1}


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    return write_sample(tmp_path_factory.mktemp("data") / "sample", counts=COUNTS)


def read_rows(folder, name):
    return pq.read_table(folder / f"{name}.parquet").to_pylist()


def test_films_are_many_distinct_and_hard_to_parse():
    films = load_films().films
    assert len(films) >= 620
    assert len({film.name for film in films}) == len(films)
    names = {film.name for film in films}
    hard = {"(500) Days of Summer (2009)", "1917 (2019)", "2001: A Space Odyssey (1968)", "The Thing (1982)"}
    hard |= {"Birdman or (The Unexpected Virtue of Ignorance) (2014)", "The Thing (2011)", "Amélie (2001)"}
    assert hard | {"WALL·E (2008)"} <= names
    assert {genre for film in films for genre in film.genres} == set(GENRE_WORDS)
    assert all(1890 < film.year < 2030 for film in films)
    assert all(any(film.year in years for years in ERAS.values()) for film in films)


def test_affinity_arithmetic():
    films = [Film("A", 1985, ("crime", "war")), Film("B", 1995, ("crime",)), Film("C", 1985, ("horror", "war"))]
    table = FilmTable(films)
    # genre weight 5, split over the requested genres; era weight 2.5
    assert table.affinity(Taste(("crime",))).tolist() == [5, 5, 0]
    assert table.affinity(Taste(("crime", "war"), "80s")).tolist() == [7.5, 2.5, 5]
    # names only: A gives 1/2 crime + 1/2 war, B gives crime; normalised: crime 3/4, war 1/4
    assert table.affinity(Taste((), "", (0, 1))).tolist() == [5, 3.75, 1.25]


def test_tables_are_valid_and_have_the_requested_rows(sample):
    for split, count in COUNTS.items():
        assert validate_rl_table(sample / f"{split}.parquet") == (count, [])
    assert validate_sft_table(sample / "sft_train.parquet") == (400, [])
    assert validate_sft_table(sample / "sft_validation.parquet") == (200, [])
    catalog = load_catalog(sample / "catalog.parquet")
    assert (len(catalog), catalog.problems) == (len(load_films().films), ())
    truths = [tuple(pair) for row in read_rows(sample, "train") for pair in row["groundtruth_with_release_year"]]
    mentions = {(film["title"], str(film["year"])): film["mentions"] for film in read_rows(sample, "catalog")}
    assert sum(mentions.values()) == len(truths)
    assert mentions[truths[0]] == truths.count(truths[0])


def test_lists_are_distinct_unseen_catalog_items(sample):
    catalog = {(film["title"], film["year"]) for film in read_rows(sample, "catalog")}
    for row in read_rows(sample, "sft_train"):
        items = parse_items(row["completion"][0]["content"])
        assert len(items) == len(set(items)) == 20
        assert set(map(tuple, items)) <= catalog
        assert not {item.title for item in items} & set(row["seen_titles"])
        truth = [(title, int(year)) for title, year in row["groundtruth_with_release_year"]]
        assert 1 <= len(set(truth)) == len(truth) <= 5
        assert set(truth) <= catalog
        assert not {title for title, _ in truth} & set(row["seen_titles"])


def test_conversations_have_one_to_five_turns_ending_with_user(sample):
    words, turns_seen = [], set()
    for row in read_rows(sample, "train"):
        conversation = split_prompt(row["prompt"][0]["content"])[1]
        speakers = re.findall(r"^(USER|SYSTEM): ", conversation, re.MULTILINE)
        assert conversation.endswith("\n")
        assert len(speakers) == len(conversation.splitlines())
        assert speakers[-1] == "USER"
        assert all(first != second for first, second in itertools.pairwise(speakers))
        turns_seen.add(len(speakers))
        words.append(len(conversation.split()))
        assert all(title in conversation for title in row["seen_titles"])
    assert turns_seen == {1, 2, 3, 4, 5}
    assert np.mean(words) < 60
    assert max(words) > 120


def test_the_reader_gets_back_every_stated_taste():
    table = load_films()
    for index in range(300):
        rng = np.random.default_rng(index)
        taste = draw_taste(table, rng)
        read = read_taste(table, write_conversation(table, taste, rng))
        assert set(read.genres) == set(taste.genres)
        assert (read.era, set(read.named)) == (taste.era, set(taste.named))


def test_same_seed_same_bytes_and_another_seed_other_rows(sample, tmp_path):
    again = write_sample(tmp_path / "again", counts=COUNTS)
    other = write_sample(tmp_path / "other", counts=FEW, seed=1)
    contents, contents_again = ({path.name: path.read_bytes() for path in out.iterdir()} for out in (sample, again))
    assert contents == contents_again
    assert len(contents) == 6
    few = write_sample(tmp_path / "few", counts=FEW)
    assert read_rows(few, "sft_train") == read_rows(sample, "sft_train")[:3] != read_rows(other, "sft_train")


def test_oracle_beats_teacher_beats_popularity(sample):
    result = check_sample(sample)
    for metric in (0, 1):
        assert result["oracle"][metric] > 1.8 * result["popularity"][metric]
        assert result["oracle"][metric] > 1.15 * result["teacher"][metric]
        assert result["teacher"][metric] > 1.5 * result["popularity"][metric]
    assert 0.5 < result["teacher"][1] / result["oracle"][1] < 0.75


def test_an_existing_folder_is_only_replaced_on_request(tmp_path):
    out = tmp_path / "sample"
    out.mkdir()
    (out / "train.parquet").write_text("before")
    with refuses("output.already-there", out, "--overwrite"):
        write_sample(out, counts=FEW)
    assert (out / "train.parquet").read_text() == "before"
    write_sample(out, counts=FEW, overwrite=True)
    assert len(read_rows(out, "train")) == 3
    assert [path.name for path in tmp_path.iterdir()] == ["sample"]


def test_num_items_reaches_prompt_and_list(tmp_path):
    out = write_sample(tmp_path / "five", counts=FEW, num_items=5)
    for row in read_rows(out, "sft_train"):
        assert "reply with 5 recommendations" in row["prompt"][0]["content"]
        assert len(row["completion"][0]["content"].split("\n")) == 5


def test_command_line(tmp_path, capsys):
    out = tmp_path / "cli"
    arguments = ["--out", str(out), "--train", "3", "--validation", "3", "--test", "1"]
    main(arguments)
    assert capsys.readouterr().err == ""  # bars are for a terminal
    command = [sys.executable, "-m", "recipes", "data", "sample", *arguments]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "[output.already-there]" in refused.stderr
    assert "Traceback" not in refused.stderr
