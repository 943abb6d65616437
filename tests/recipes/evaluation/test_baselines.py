"""What a model is compared with: retrieval on a corpus to score by hand, a model behind an API, the paper's figures."""

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from convrec.lists.settings import ListSettings
from recipes import evaluate
from recipes.evaluation.baselines import retrieve
from recipes.evaluation.split import Split, read_split
from tests.recipes.evaluation.small import row, write_catalog, write_rows

FILMS = {"Alien": 1979, "Heat": 1995, "Jaws": 1975, "Up": 2009}
TRAIN = [
    row("1", "space monsters spaceship", ["Alien"]),
    row("2", "robbery detective crime", ["Heat"]),
    row("3", "robbery crime drama", ["Heat", "Jaws"]),
    row("4", "sharks beach", ["Jaws"]),
]


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    rows = [
        row("a", "crime robbery", ["Heat"]),
        row("b", "spaceship", ["Alien"], seen=["Alien"]),
        row("c", "crime robbery", ["Jaws"], seen=["heat"]),
    ]
    return {
        "data": write_rows(tmp_path / "data.parquet", rows),
        "train": write_rows(tmp_path / "train.parquet", TRAIN),
        "catalog": write_catalog(tmp_path / "catalog.parquet", FILMS),
    }


@pytest.fixture
def split(files: dict[str, str]) -> Split:
    return read_split(files["data"], files["catalog"])


def test_retrieval_lists_what_similar_training_conversations_wanted(split: Split) -> None:
    a, b, c = ([item.title for item in items if item] for items in retrieve(split, TRAIN, 3))
    # a: Heat by conversations 2 and 3, Jaws by 3 alone; Alien comes last, as popular as its one conversation
    assert a == ["Heat", "Jaws", "Alien"]
    # b: Alien was seen; no similar conversation is left, so popularity decides: Heat and Jaws twice each, catalog order
    assert b == ["Heat", "Jaws"]
    # c: the same conversation as a, but Heat was seen. Up, which nobody wants, is in no list
    assert c == ["Jaws", "Alien"]


@pytest.mark.parametrize("matching", ["fuzzy", "reference"])
def test_retrieval_leaves_out_what_the_scoring_calls_seen(files: dict[str, str], matching: str) -> None:
    seen = ["ＨＥＡＴ", " jaws (1975)"]  # another width, white space, a year
    write_rows(Path(files["data"]), [row("a", "crime robbery", ["Heat"], seen)])
    split = read_split(files["data"], files["catalog"], ListSettings(matching=matching))
    (items,) = retrieve(split, TRAIN, 3)
    assert [item.title for item in items if item] == ["Alien"]


def of_api(files: dict[str, str], out: Path) -> list[str]:
    given = files | {"model": "api:teacher-1", "out": str(out)}
    return [part for name, value in given.items() for part in (f"--{name}", value)]


def test_a_model_behind_an_api_is_evaluated_as_any_other_and_asked_once(
    files: dict[str, str],
    tmp_path: Path,
    chat_server: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = "<think>Up (2009)?</think>\nHeat (1995)\nNot in the catalog (1999)"
    server = chat_server(lambda body, count: text)
    monkeypatch.setenv("LLM_BASE_URL", server.url)
    monkeypatch.setenv("LLM_API_KEY", "a-secret")
    monkeypatch.setenv("LLM_MODEL", "another-model")
    out = tmp_path / "out"
    arguments = [*of_api(files, out), "--num-items", "5", "--ks", "1", "5"]
    arguments += ["--baselines", "popularity", "retrieval"]
    for _ in range(2):
        assert evaluate.main(arguments) == 0
    assert len(server.bodies) == 2  # two conversations, three rows, two evaluations
    assert server.bodies[0]["model"] == "teacher-1"
    assert server.bodies[0]["temperature"] == 0.0
    printed = capsys.readouterr().out
    assert [word for word in ("popularity", "retrieval", "model") if word not in printed] == []
    rows = {row["sample_id"]: row for row in pq.read_table(out / "rows.parquet").to_pylist()}
    assert [rows[name]["recall@1"] for name in "abc"] == [1.0, 0.0, 0.0]
    assert not any(b"a-secret" in file.read_bytes() for file in out.rglob("*") if file.is_file())
    other = chat_server(lambda body, count: text)  # where another model may have this name
    monkeypatch.setenv("LLM_BASE_URL", other.url)
    assert evaluate.main(arguments) == 0
    assert len(other.bodies) == 2


def test_a_refused_prompt_is_said_scored_as_empty_and_not_kept(
    files: dict[str, str],
    tmp_path: Path,
    chat_server: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def behave(body: dict, count: int) -> str | tuple[int, dict[str, str], str]:
        if "spaceship" in body["messages"][0]["content"]:
            return 400, {}, '{"error": {"message": "too long for me"}}'
        return "Heat (1995)"

    monkeypatch.setenv("LLM_BASE_URL", chat_server(behave).url)
    arguments = [*of_api(files, tmp_path / "out"), "--num-items", "1", "--ks", "1"]
    for asked in (2, 1):  # the refused one again
        assert evaluate.main(arguments) == 0
        said = capsys.readouterr()
        assert "1 of 2 prompts refused, scored as empty, asked again next time; the first: " in said.err
        assert "too long for me" in said.err
        assert f"{asked} of 2 prompts generated" in said.out
    rows = {row["sample_id"]: row for row in pq.read_table(tmp_path / "out" / "rows.parquet").to_pylist()}
    assert (rows["b"]["text"], rows["b"]["num_items"]) == ("", 0)
    assert len(pq.read_table(tmp_path / "out" / "generations.parquet")) == 1


def test_the_papers_figures_are_as_published(golden: Callable[[str], Any]) -> None:
    with (Path(evaluate.__file__).parent / "evaluation" / "paper.csv").open(encoding="utf-8", newline="") as file:
        published, rows = golden("paper_reddit_v2_test")["rows"], list(csv.DictReader(file))
    names = [f"{metric}@{k}" for metric in ("recall", "ndcg") for k in (5, 10, 15, 20)]
    for ours, (*name, figures) in zip(rows, published, strict=True):
        assert [float(ours[metric]) for metric in names] == figures, name
