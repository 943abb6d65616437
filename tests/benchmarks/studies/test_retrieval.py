"""The reduced task: no leak between the splits, and the right rows."""

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from convrec.data.schema import RL_SCHEMA, prompt_text, split_prompt
from convrec.data.validation import validate_rl_table, validate_sft_table
from convrec.lists.catalog import load_catalog
from convrec.lists.ranks import parse_items
from data_prep.retrieval_teacher import RetrievalTeacher
from data_prep.tables import conversation_of
from tests.data_prep.conftest import COMEDY, HORROR, make_rows, row

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from benchmarks.studies.retrieval import (
    cuts,
    drawn_lists,
    hold_out,
    main,
    reduce_rows,
    title_prompts,
    write_reduced,
)

SIZES = {"titles": 13, "num_items": 4, "test_rows": 20, "lists_per_cut": 4, "noise": 0.1, "title_rows": 50}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("source")
    for split, rows in (("train", make_rows("train", 60, 1)), ("validation", make_rows("val", 10, 2))):
        pq.write_table(pa.Table.from_pylist(rows, RL_SCHEMA), folder / f"{split}.parquet")
    return folder


@pytest.fixture(scope="module")
def written(source, tmp_path_factory):
    out = tmp_path_factory.mktemp("out") / "small"
    return out, write_reduced(source, out, **SIZES)


def read(out, name):
    return pq.read_table(out / f"{name}.parquet").to_pylist()


def test_tables_are_valid_and_ask_for_num_items(written):
    out, _ = written
    for split in ("train", "validation", "test"):
        assert not validate_rl_table(out / f"{split}.parquet").warnings
    for split in ("sft_train", "sft_titles", "sft_validation"):
        validate_sft_table(out / f"{split}.parquet")
        for demonstration in read(out, split):
            assert "reply with 4 recommendations" in demonstration["prompt"][0]["content"]
    assert not load_catalog(out / "catalog.parquet").problems
    mentions = [film["mentions"] for film in read(out, "catalog")]
    assert len(mentions) == 13
    assert mentions == sorted(mentions, reverse=True)


def test_no_conversation_is_in_two_splits(written):
    out, _ = written
    of = {
        split: {conversation_of(r["sample_id"]) for r in read(out, split)}
        for split in ("train", "validation", "test", "sft_train", "sft_titles")
    }
    assert of["sft_train"] == of["train"]
    assert of["sft_titles"] <= of["train"]
    splits = (of["train"], of["validation"], of["test"])
    assert len(set().union(*splits)) == sum(map(len, splits))
    assert len(read(out, "test")) == 20


def test_teacher_lists_are_distinct_unseen_catalog_titles(written):
    out, _ = written
    catalog = {(film["title"], film["year"]) for film in read(out, "catalog")}
    for demonstration in read(out, "sft_train") + read(out, "sft_titles") + read(out, "sft_validation"):
        items = parse_items(demonstration["completion"][0]["content"])
        assert len(set(items)) == len(items) == 4
        assert set(items) <= catalog
        assert not {item.title for item in items} & set(demonstration["seen_titles"])


def test_same_seed_same_rows(source, written, tmp_path):
    out, _ = written
    write_reduced(source, tmp_path / "again", **SIZES)
    for file in out.iterdir():
        assert file.read_bytes() == (tmp_path / "again" / file.name).read_bytes()


def test_reduced_rows_keep_catalog_truths_only():
    rows = [
        row("a_t1", "USER: hi\n", [], [("Heat", "1995"), ("Up", "2009")]),
        row("b_t1", "USER: x\n", [], [("X", "1")]),
    ]
    (kept,) = reduce_rows(rows, [("Up", "2009")], 5)
    assert kept["groundtruth_with_release_year"] == [["Up", "2009"]]
    assert kept["prompt"][0]["content"] == prompt_text("USER: hi\n", 5)
    assert kept["sample_id"] == "a_t1"


def test_cuts_end_with_a_users_turn_and_name_what_was_seen_so_far():
    early = row("c_t1", "USER: I liked Heat (1995)\n", ["Heat"], [])
    start = "USER: I liked Heat (1995)\nand more\n"
    text = start + "SYSTEM: Up (2009)?\nSYSTEM: or so\nUSER: seen\n"
    late = row("c_t5", text, ["Heat", "Up"], [("Alien", "1979")])
    found = cuts([early, late], 5)
    assert [split_prompt(cut["prompt"][0]["content"])[1] for cut in found] == [start, text]
    assert [(cut["sample_id"], cut["seen_titles"]) for cut in found] == [("c_t0", ["Heat"]), ("c_t1", ["Heat", "Up"])]
    assert all(cut["groundtruth_with_release_year"] == [] for cut in found)


def test_title_prompts_name_titles_of_one_conversation():
    rows = [
        row("a_t1", "USER: Heat (1995) and Up (2009)\n", ["Heat", "Up"], []),
        row("b_t1", "USER: nothing\n", [], []),
        row("c_t1", "USER: (500) Days of Summer (2009)? Unknown\n", ["(500) Days of Summer", "Unknown"], []),
    ]
    found = title_prompts(rows, 5, 40, seed=1)
    texts = {split_prompt(r["prompt"][0]["content"])[1] for r in found}
    a, b = "Heat (1995)", "Up (2009)"
    ways = [a, b, f"{a}, {b}", f"{b}, {a}", "(500) Days of Summer (2009)"]
    assert texts == {f"USER: I like {way}\n" for way in ways}
    assert len({r["sample_id"] for r in found}) == 40
    assert all(set(r["seen_titles"]) <= {"Heat", "Up", "(500) Days of Summer"} for r in found)
    assert title_prompts(rows[1:2], 5, 40, seed=1) == []


def test_hold_out_takes_whole_conversations():
    rows = make_rows("train", 10, 1)
    kept, held = hold_out(rows, 5, seed=1)
    assert (len(held), len(kept)) == (6, 14)
    assert not {conversation_of(r["sample_id"]) for r in kept} & {conversation_of(r["sample_id"]) for r in held}
    unnamed = [r | {"sample_id": f"user{n}"} for n, r in enumerate([*rows, rows[0]])]  # the last has the first's prompt
    kept, held = hold_out(unnamed, 8, seed=0)
    assert not {r["prompt"][0]["content"] for r in kept} & {r["prompt"][0]["content"] for r in held}


def test_lists_are_drawn_around_the_best_one():
    rows, catalog = make_rows("train", 30, 3), HORROR + COMEDY
    teacher = RetrievalTeacher(rows, catalog)
    scores, (best,) = teacher.scores(rows[:1])[0], teacher.lists(rows[:1], 4, "x")
    for noise in (0.0, 1e-6):
        assert drawn_lists(teacher, rows[:1], 4, 1, noise, seed=1) == [best]
    firsts = [items[0] for items in drawn_lists(teacher, rows[:1], 4, 2000, 0.5, seed=1)]
    expected = np.exp(scores / 0.5) / np.exp(scores / 0.5).sum()
    np.testing.assert_allclose([firsts.count(pair) / 2000 for pair in catalog], expected, atol=0.04)


def test_the_command_on_real_data(shared_dir, tmp_path, capsys):
    sizes = ["--titles=50", "--num-items=5", "--test-rows=20", "--title-rows=50"]
    main(["--source", str(shared_dir / "data" / "redial"), "--out", str(tmp_path / "small"), *sizes])
    assert "teacher  recall@5 0." in capsys.readouterr().out
    assert len(read(tmp_path / "small", "catalog")) == 50
