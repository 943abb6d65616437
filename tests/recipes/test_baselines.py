"""What a model is compared with: retrieval on a corpus to score by hand, a model behind an API, the paper's figures."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from convrec.schema import CATALOG_SCHEMA, RL_SCHEMA, prompt_text
from recipes import evaluate
from recipes.evaluation.baselines import baseline_lists
from recipes.evaluation.paper import PAPER, paper_table
from recipes.evaluation.split import Split, read_split

FILMS = [("Alien", 1979), ("Heat", 1995), ("Jaws", 1975), ("Up", 2009)]


def row(name: str, conversation: str, truth: list[str], seen: list[str] | None = None) -> dict[str, Any]:
    years = {title: str(year) for title, year in FILMS}
    return {
        "prompt": [{"role": "user", "content": prompt_text(f"USER: {conversation}\n", 3)}],
        "seen_titles": seen or [],
        "groundtruth_with_release_year": [[title, years[title]] for title in truth],
        "sample_id": name,
    }


TRAIN = [
    row("1", "space monsters spaceship", ["Alien"]),
    row("2", "robbery detective crime", ["Heat"]),
    row("3", "robbery crime drama", ["Heat", "Jaws"]),
    row("4", "sharks beach", ["Jaws"]),
]


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    paths = {name: tmp_path / f"{name}.parquet" for name in ("data", "train", "catalog")}
    rows = [
        row("a", "crime robbery", ["Heat"]),
        row("b", "spaceship", ["Alien"], seen=["Alien"]),
        row("c", "crime robbery", ["Jaws"], seen=["heat"]),
    ]
    pq.write_table(pa.Table.from_pylist(rows, RL_SCHEMA), paths["data"])
    pq.write_table(pa.Table.from_pylist(TRAIN, RL_SCHEMA), paths["train"])
    films = [{"title": title, "year": year} for title, year in FILMS]
    pq.write_table(pa.Table.from_pylist(films, CATALOG_SCHEMA), paths["catalog"])
    return {name: str(path) for name, path in paths.items()}


@pytest.fixture
def split(files: dict[str, str]) -> Split:
    return read_split(files["data"], files["catalog"])


def test_retrieval_lists_what_similar_training_conversations_wanted(split: Split) -> None:
    a, b, c = ([item.title for item in items if item] for items in baseline_lists("retrieval", split, TRAIN, 3))
    # a: Heat by conversations 2 and 3, Jaws by 3 alone; Alien comes last, as popular as its one conversation
    assert a == ["Heat", "Jaws", "Alien"]
    # b: Alien was seen; no similar conversation is left, so popularity decides: Heat and Jaws twice each, catalog order
    assert b == ["Heat", "Jaws"]
    # c: the same conversation as a, but Heat was seen. Up, which nobody wants, is in no list
    assert c == ["Jaws", "Alien"]


def test_an_unknown_baseline_is_an_error(split: Split) -> None:
    with pytest.raises(ValueError, match="popularity, retrieval"):
        baseline_lists("oracle", split, TRAIN, 3)


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
    arguments = ["--model", "api:teacher-1", "--out", str(out), "--num-items", "2", "--ks", "1", "--paper"]
    arguments += [part for name, path in files.items() for part in (f"--{name}", path)]
    arguments += ["--baselines", "popularity", "retrieval"]
    for _ in range(2):
        assert evaluate.main(arguments) == 0
    assert len(server.bodies) == 2  # two conversations, three rows, two evaluations
    assert server.bodies[0]["model"] == "teacher-1"
    assert server.bodies[0]["temperature"] == 0.0
    printed = capsys.readouterr().out
    assert [word for word in ("popularity", "retrieval", "model", "GPT-4o") if word not in printed] == []
    rows = {row["sample_id"]: row for row in pq.read_table(out / "rows.parquet").to_pylist()}
    assert [rows[name]["recall@1"] for name in "abc"] == [1.0, 0.0, 0.0]
    assert not any(b"a-secret" in file.read_bytes() for file in out.rglob("*") if file.is_file())


def test_an_api_without_an_address_says_which_variable(
    files: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("LLM_BASE_URL", raising=False)
    arguments = [
        "--model",
        "api:x",
        "--data",
        files["data"],
        "--catalog",
        files["catalog"],
        "--out",
        str(tmp_path / "o"),
    ]
    assert evaluate.main(arguments) == 2
    assert "LLM_BASE_URL is not set" in capsys.readouterr().err


def test_the_papers_figures_name_their_source() -> None:
    assert "arXiv 2510.20150" in paper_table()
    assert ("Qwen2.5-0.5B Rank-GRPO exp_inf", 0.2047, 0.1079) in PAPER
    assert all(0 < ndcg < recall < 1 for _, recall, ndcg in PAPER)
