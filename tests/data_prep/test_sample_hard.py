"""Hard requests: the statement about a genre or film decides; the kind is a column; the plain sample is unchanged."""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from convrec.data.schema import conversation_text
from convrec.data.validation import validate_rl_table, validate_sft_table
from convrec.lists.ranks import parse_items
from data_prep.sample import main, make_rows, write_sample
from data_prep.sample_data.conversations import GENRE_WORDS, LINES
from data_prep.sample_data.films import Film, FilmTable, Taste, load_films
from data_prep.sample_data.hard import KIND, KINDS, draw_request
from recipes import evaluate

COUNTS = {"train": 600, "validation": 150, "test": 20}


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sample(tmp_path_factory.mktemp("data") / "hard", counts=COUNTS, requests="hard")


def read_rows(folder: Path, name: str) -> list[dict[str, Any]]:
    return pq.read_table(folder / f"{name}.parquet").to_pylist()


def test_affinity_of_unwanted_genres_and_years() -> None:
    films = [Film("A", 1985, ("crime", "war")), Film("B", 1995, ("crime",)), Film("C", 2005, ("horror", "war"))]
    table = FilmTable(films)
    # crime 5, unwanted war -5
    assert table.affinity(Taste(("crime",), unwanted=("war",))).tolist() == [0, 5, -5]
    assert table.affinity(Taste(("crime",), years=(1990, None))).tolist() == [5, 10, 5]
    assert table.affinity(Taste(("crime",), years=(1985, 1995))).tolist() == [10, 10, 0]
    assert table.affinity(Taste(("crime",), years=(None, 1985))).tolist() == [10, 5, 0]
    # B alone is named: its genre, and newer than it
    assert table.affinity(Taste((), named=(1,), years=(1996, None))).tolist() == [5, 5, 5]


def test_every_kind_is_drawn_and_states_its_taste() -> None:
    table, drawn = load_films(), dict.fromkeys(KINDS, 0)
    for index in range(600):
        kind, taste, text = draw_request(table, np.random.default_rng(index))
        drawn[kind] += 1
        assert text.startswith("USER: ")
        assert re.findall(r"^(USER|SYSTEM)", text, re.MULTILINE)[-1] == "USER"
        turns = text.replace("\nSYSTEM: ", "\nUSER: ").split("\nUSER: ")
        if kind == "comparison":
            film = table.films[taste.named[0]]
            assert film.name in text
            newer = any(word in text.replace(film.name, "") for word in LINES["newer"])
            assert taste.years == ((film.year + 1, None) if newer else (None, film.year - 1))
            continue
        assert any(word in turns[-1] or kind == "negation" for word in GENRE_WORDS[taste.genres[0]])
        if kind == "negation":
            assert any(word in text for word in GENRE_WORDS[taste.unwanted[0]])
            assert any({*taste.genres, *taste.unwanted} <= {*film.genres} for film in table.films)
        elif kind == "reversal":
            assert len(turns) == 3
            assert not any(re.search(rf"\b{word}\b", turns[0]) for word in GENRE_WORDS[taste.genres[0]])
        else:
            years = [int(year) for year in re.findall(r"\d{4}", text)]
            assert years == [year for year in taste.years if year is not None]
    assert min(drawn.values()) > 600 / 4 * 0.75


def test_tables_are_valid_and_have_the_kind(sample: Path) -> None:
    for split, count in COUNTS.items():
        assert validate_rl_table(sample / f"{split}.parquet") == (count, [])
    assert validate_sft_table(sample / "sft_train.parquet") == (600, [])
    assert {row[KIND] for row in read_rows(sample, "validation")} == {*KINDS}
    for row in read_rows(sample, "sft_validation"):
        items = parse_items(row["completion"][0]["content"])
        assert len({*items}) == 20
        assert all(title in conversation_text(row) for title in row["seen_titles"])


def test_the_plain_sample_has_not_changed(tmp_path: Path) -> None:
    rows = make_rows(load_films(), "train", 40, 3407, 20)
    digest = hashlib.sha256(json.dumps(rows, ensure_ascii=False).encode()).hexdigest()
    assert digest == "d53afca88ef1b1261ad4aa4aa12a9f3eec7a99ca8876164b5602008da4839ac3"
    out = write_sample(tmp_path / "plain", counts={"train": 3, "validation": 1, "test": 1})
    assert KIND not in pq.read_schema(out / "train.parquet").names


def test_hard_requests_are_made_and_evaluation_slices_by_kind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "hard"
    counts = ["--train", "200", "--validation", "40", "--test", "1"]
    assert main(["--out", str(out), *counts, "--requests", "hard"]) == 0
    files = {"data": "validation", "catalog": "catalog", "train": "train"}
    arguments = [part for name, file in files.items() for part in (f"--{name}", str(out / f"{file}.parquet"))]
    ours = ["--baselines", "retrieval", "--slices", KIND, "--out", str(tmp_path / "evaluation")]
    assert evaluate.main([*arguments, *ours]) == 0
    printed = capsys.readouterr().out
    assert all(f"{KIND} {kind} " in printed for kind in KINDS)
    metrics = json.loads((tmp_path / "evaluation" / "metrics.json").read_text())
    assert sum(part["n"] for part in metrics["slices"][KIND].values()) == 40
