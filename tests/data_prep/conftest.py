"""Conversations about two kinds of films, which a retrieval teacher can distinguish by words and titles."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from convrec.data.schema import RL_SCHEMA, format_prompt
from data_prep.build import main

HORROR = [(f"Ghost {i}", str(1980 + i)) for i in range(6)]
COMEDY = [(f"Laughs {i}", str(1990 + i)) for i in range(6)]


def row(sample_id, conversation, seen, truth, num_items=20, dated=True):
    return {
        "prompt": [{"content": format_prompt(conversation, num_items, dated=dated), "role": "user"}],
        "seen_titles": seen,
        "groundtruth_with_release_year": [[title, str(year)] for title, year in truth],
        "sample_id": sample_id,
    }


def make_rows(prefix, count, seed, kinds=(HORROR, COMEDY), num_items=20, outside=(("Obscure", 1999),)):
    """Make conversations of two rows each: a taste and a fitting film, then another and films outside of the catalog.

    Kinds whose years are "" have no years.
    """
    rng, dated = np.random.default_rng(seed), kinds[0][0][1] != ""
    rows = []

    def name(film):
        return f"{film[0]} ({film[1]})" if dated else film[0]

    for index in range(count):
        films, word = kinds[index % 2], ("scary haunted", "funny jokes")[index % 2]
        first, second, third = (films[i] for i in rng.choice(len(films), 3, replace=False))
        start = f"USER: I want something {word}, I liked {name(first)}\n"
        more = start + f"SYSTEM: Try {name(second)}\nUSER: Seen that, something else {word}?\n"
        rows.append(row(f"{prefix}_{index}_t1", start, [first[0]], [second], num_items, dated))
        rows.append(row(f"{prefix}_{index}_t3", more, [first[0], second[0]], [third, *outside], num_items, dated))
    return rows


# ---- Remap-Reflect-Adjust: conversations of two kinds, and helpers that run it on them

GHOSTS = [(f"Ghost {word}", 1980 + n) for n, word in enumerate(("House", "Ship", "Story", "Town", "Hotel", "Train"))]
LAUGHS = [(f"Laughing {word}", 1990 + n) for n, word in enumerate(("Dog", "Boy", "Aunt", "Cook", "King", "Cow"))]
# Without years; one title contains something like a year.
BOOKS = [(f"Ghost {word}", "") for word in ("House", "Ship", "Story", "Town", "Hotel", "Summer (1999)")]
JOKES = [(title, "") for title, _ in LAUGHS]
NUM_ITEMS = 4


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return write_source(tmp_path_factory.mktemp("source"), GHOSTS, LAUGHS)


@pytest.fixture(scope="module")
def undated(tmp_path_factory):
    return write_source(tmp_path_factory.mktemp("undated"), BOOKS, JOKES)


def write_source(folder, *kinds):
    for split, count, seed in (("train", 60, 1), ("validation", 8, 2)):
        rows = make_rows(split, count, seed, kinds=kinds, num_items=NUM_ITEMS, outside=())
        pq.write_table(pa.Table.from_pylist(rows, RL_SCHEMA), folder / f"{split}.parquet")
    films = [film for kind in kinds for film in kind]
    catalog = {
        "title": [title for title, _ in films],
        "year": pa.array([year or None for _, year in films], pa.int32()),
        "genres": ["horror"] * len(GHOSTS) + ["comedy"] * len(LAUGHS),
        "pages": pa.array(range(100, 100 + len(films)), pa.int32()),
        "mentions": pa.array(range(len(films)), pa.int32()),
    }
    pq.write_table(pa.table(catalog), folder / "catalog.parquet")
    return folder


def arguments(source, out, *more, stage="all"):
    files = [f"--{name}={source / name}.parquet" for name in ("train", "validation", "catalog")]
    return [stage, "--out", str(out), *files, f"--num-items={NUM_ITEMS}", "--candidates=10", "--share=0.5", *more]


def read(path):
    return pq.read_table(path).to_pylist()


def refusal(capsys, argv):
    """Return what the command prints to stderr when it exits with status 2."""
    assert main(argv) == 2
    return capsys.readouterr().err


@pytest.fixture
def model(chat_server, monkeypatch):
    """model(behave): start a server that answers with `behave`, as the model of every role."""

    def serve(behave):
        server = chat_server(behave)
        monkeypatch.setenv("LLM_BASE_URL", server.url)
        monkeypatch.setenv("LLM_MODEL", "scripted")
        return server

    return serve


def read_summary(out, stage):
    return json.loads((out / f"{stage}.json").read_text())["summary"]
