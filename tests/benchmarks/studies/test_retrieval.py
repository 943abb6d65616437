"""The reduced task: no leak between the splits, and the right rows."""

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.studies.retrieval import cuts, hold_out, write_reduced
from convrec.data.schema import RL_SCHEMA, parse_conversation_id, split_prompt
from convrec.data.validation import validate_rl_table, validate_sft_table
from convrec.lists.ranks import parse_items
from convrec.titles.catalog import load_catalog
from tests.data_prep.conftest import make_rows, row

ROOT = Path(__file__).resolve().parents[3]
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
        split: {parse_conversation_id(r["sample_id"]) for r in read(out, split)}
        for split in ("train", "validation", "test", "sft_train", "sft_titles")
    }
    assert of["sft_train"] == of["train"]
    assert of["sft_titles"] <= of["train"]
    splits = (of["train"], of["validation"], of["test"])
    assert len(set().union(*splits)) == sum(map(len, splits))
    assert len(read(out, "test")) == 20


def test_truths_are_in_catalog_and_teacher_lists_are_unseen(written):
    out, _ = written
    catalog = {(film["title"], film["year"]) for film in read(out, "catalog")}
    for asked in read(out, "train") + read(out, "test"):
        truths = {(title, int(year)) for title, year in asked["groundtruth_with_release_year"]}
        assert truths
        assert truths <= catalog
    for demonstration in read(out, "sft_train") + read(out, "sft_titles") + read(out, "sft_validation"):
        items = parse_items(demonstration["completion"][0]["content"])
        assert len(set(items)) == len(items) == 4
        assert set(items) <= catalog
        assert not {item.title for item in items} & set(demonstration["seen_titles"])


def test_the_command_writes_the_same_rows(source, written, tmp_path):
    out, _ = written
    options = [f"--{name.replace('_', '-')}={value}" for name, value in SIZES.items()]
    given = ["--source", str(source), "--out", str(tmp_path / "again"), *options]
    subprocess.run([sys.executable, "-m", "benchmarks.studies.retrieval", *given], cwd=ROOT, check=True)
    for file in out.iterdir():
        assert file.read_bytes() == (tmp_path / "again" / file.name).read_bytes()


def test_cuts_end_on_a_user_turn_and_list_titles_seen_so_far():
    early = row("c_t1", "USER: I liked Heat (1995)\n", ["Heat"], [])
    start = "USER: I liked Heat (1995)\nand more\n"
    text = start + "SYSTEM: Up (2009)?\nSYSTEM: or so\nUSER: seen\n"
    late = row("c_t5", text, ["Heat", "Up"], [("Alien", "1979")])
    found = cuts([early, late], 5)
    assert [split_prompt(cut["prompt"][0]["content"])[1] for cut in found] == [start, text]
    assert [(cut["sample_id"], cut["seen_titles"]) for cut in found] == [("c_t0", ["Heat"]), ("c_t1", ["Heat", "Up"])]
    assert all(cut["groundtruth_with_release_year"] == [] for cut in found)


def test_hold_out_takes_whole_conversations():
    rows = make_rows("train", 10, 1)
    kept, held = hold_out(rows, 5, seed=1)
    assert (len(held), len(kept)) == (6, 14)
    assert not {parse_conversation_id(r["sample_id"]) for r in kept} & {
        parse_conversation_id(r["sample_id"]) for r in held
    }
    unnamed = [r | {"sample_id": f"user{n}"} for n, r in enumerate([*rows, rows[0]])]  # the last has the first's prompt
    kept, held = hold_out(unnamed, 8, seed=0)
    assert not {r["prompt"][0]["content"] for r in kept} & {r["prompt"][0]["content"] for r in held}
