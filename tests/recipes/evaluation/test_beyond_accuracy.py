"""Measures beyond accuracy: equal to libraries' on the same lists, by hand, their errors, and the baselines alone."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from convrec.base.statistics import bootstrap, jackknife
from convrec.data.schema import RL_SCHEMA
from convrec.report.page import explain_missing_measures
from convrec.titles.catalog import Catalog
from convrec.titles.matching import Matcher
from recipes import evaluate
from recipes.evaluation.beyond_accuracy import (
    SPLIT_MEASURES,
    Figures,
    add_measures,
    compute_figures,
    make_context,
)
from recipes.evaluation.measures import Context
from recipes.evaluation.slices import _divide_into_parts, compute_slice_results, label_slice
from recipes.evaluation.split import Split, read_split
from tests.recipes.evaluation.small import row

LISTS = [[0, 1, 2], [0, 1, 3], [0, 4], [1, 0, 5]]
TRAINING = [[0, 1], [0], [0, 2], [1], [3, 0], [1, 2]]
GENRES = ["horror", "horror crime", "crime", "comedy", "comedy horror", "drama", "drama", "horror"]
FACTS = Context(
    num_items=8,
    mentions_M=np.bincount([item for row in TRAINING for item in row], minlength=8),
    rows=len(TRAINING),
    genres=[frozenset(words.split()) for words in GENRES],
)
WANTED = [[1], [0], [2, 3], [5]]


def measured(lists: list[list[int]], context: Context = FACTS) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [{"recommended": items} for items in lists]
    add_measures(rows, replace(context, mentioned=[[]] * len(lists), wanted=WANTED[: len(lists)]))
    return rows


def figures(*after: list[dict[str, Any]], minus: Sequence[list[dict[str, Any]]] = ()) -> Figures:
    return compute_figures(after, range(len(after[0])), FACTS.num_items, 0, minus)


def test_values_are_those_of_kept_libraries_on_the_same_lists(golden: Callable[[str], Any]) -> None:
    """LensKit: ListGini. RecTools: CatalogCoverage, MeanInvUserFreq, AvgRecPopularity, IntraListDiversity. SciPy:
    entropy. tests/golden/make_beyond_accuracy.py has the versions and the calls."""
    reference = golden("beyond_accuracy")
    training = [item for row in reference["training"] for item in row]
    context = Context(
        num_items=reference["items"],
        mentions_M=np.bincount(training, minlength=30),
        rows=len(reference["training"]),
        genres=list(map(frozenset, reference["genres"])),
        mentioned=reference["mentioned"],
        wanted=reference["wanted"],
    )
    rows = [{"recommended": items} for items in reference["lists"]]
    add_measures(rows, context)
    found = compute_figures([rows], range(len(rows)), reference["items"], seed=0)
    for name, expected in reference["expected"].items():
        if isinstance(expected, float):
            assert found[name]["mean"] == pytest.approx(expected, rel=1e-12)
        else:
            values = [math.nan if value is None else value for value in expected]
            assert [row[name] for row in rows] == pytest.approx(values, rel=1e-12, nan_ok=True)


def test_the_share_of_cold_items_by_hand() -> None:
    """Mentions 4 3 2 1 0 0 0 0."""
    assert figures(measured(LISTS))["cold_share"]["mean"] == pytest.approx((0 + 0 + 1 / 2 + 1 / 3) / 4)


def test_what_a_list_is_too_short_for_is_left_out_and_counted() -> None:
    found = figures(measured([[0, 1], [2], []]))
    assert [found[name]["n"] for name in ("coverage", "novelty", "diversity", "calibration")] == [3, 2, 1, 0]
    assert found["diversity"]["mean"] == pytest.approx(0.5)
    assert math.isnan(found["calibration"]["mean"])
    assert measured([[0]], Context(num_items=8, mentions_M=None, rows=0, genres=None)) == [{"recommended": [0]}]
    no_genres = replace(FACTS, genres=[frozenset[str]()] * 8)
    for lists, context in (([[0, 1], [2]], no_genres), ([[], []], FACTS), ([[], []], no_genres)):
        rows: list[dict[str, Any]] = [{"recommended": items} for items in lists]
        add_measures(rows, replace(context, mentioned=[[0], [1]], wanted=WANTED[:2]))
        assert np.isnan([[row["diversity"], row["calibration"]] for row in rows]).all()


def test_the_jackknifes_error_of_a_mean_is_the_bootstraps() -> None:
    rng = np.random.default_rng(0)
    contexts = list(rng.integers(0, 150, 400))
    values = rng.normal(size=400) + np.array(contexts) / 100

    def mean(weights_R: np.ndarray) -> np.ndarray:
        return np.array([weights_R @ values / weights_R.sum()])

    value, error = jackknife(mean, contexts, seed=1)
    expected, by_drawing = bootstrap(values[:, None], contexts, seed=1)
    assert value == pytest.approx(expected)
    assert error == pytest.approx(by_drawing, rel=0.1)


def test_coverage_error_is_at_least_the_spread_between_samples() -> None:
    """120 lists of 5 of 200 items, few of them popular. The jackknife's variance is never too small in the mean (Efron
    and Stein, The Jackknife Estimate of Variance, 1981)."""
    rng = np.random.default_rng(0)
    log_chances = -np.log(np.arange(1, 201))

    def draw() -> Figures:
        lists = np.argsort(-(log_chances + rng.gumbel(size=(120, 200))), axis=1)[:, :5]
        return compute_figures([[{"recommended": items} for items in lists.tolist()]], range(120), 200)

    drawn = [draw() for _ in range(200)]
    for name in SPLIT_MEASURES[:2]:
        spread = np.std([found[name]["mean"] for found in drawn], ddof=1)
        assert 0.95 < np.mean([found[name]["se"] for found in drawn[:3]]) / spread < 1.6


def test_a_difference_is_paired_and_of_seeds_the_mean() -> None:
    before, after = measured(LISTS), measured([[5, 6, 7], [0, 1, 3], [0, 4], [1, 0, 5]])
    same = figures(before, minus=[before])
    assert all(found["mean"] == found["se"] == 0 for name, found in same.items() if name != "calibration")
    one = figures(after, minus=[before])
    two = figures(before, after, minus=[before])
    # an empty list has no popularity: its row counts for neither side
    empty = figures(measured([[], *LISTS[1:]]), minus=[before])["popularity_lift"]
    assert (empty["mean"], empty["n"]) == (0.0, 3)
    for name in ("coverage", "gini", "popularity_lift", "novelty", "cold_share", "diversity"):
        values = [figures(lists)[name]["mean"] for lists in (before, after)]
        assert one[name]["mean"] == pytest.approx(values[1] - values[0])
        assert two[name]["mean"] == pytest.approx((values[1] - values[0]) / 2)


# ---- slices, and the command

FILMS = [("Alien", 1979), ("Heat", 1995), ("Up", 2009), ("The Thing", 1982), ("The Thing", 2011)]
FILMS += [("Dead Poets Society", 1989)]


def split_of(conversations: list[str], truths: list[list[str]], data: str = "test.parquet") -> Split:
    catalog = Catalog.from_items(FILMS)
    numbered = enumerate(zip(conversations, truths, strict=True))
    rows = [row(str(number), text, truth, films=dict(FILMS)) for number, (text, truth) in numbered]
    return Split(
        data=data,
        rows=rows,
        prompt_ids=[row["sample_id"] for row in rows],
        catalog=catalog,
        matcher=Matcher(catalog),
        warnings=[],
        damaged={},
    )


def test_slices_are_by_turns_truths_popularity_and_columns(tmp_path: Path) -> None:
    conversations = ["a", "a\nSYSTEM: b\nUSER: c", "d"]
    split = split_of(conversations, [["Alien"], ["Alien", "Heat"], ["Up"]], str(tmp_path / "test.parquet"))
    table = pa.Table.from_pylist(split.rows, RL_SCHEMA).append_column("age", pa.array(["old", None, "young"]))
    pq.write_table(table, split.data)
    context = Context(
        num_items=5,
        mentions_M=np.array([4, 2, 0, 0, 0]),
        rows=5,
        genres=None,
        mentioned=[[]] * 3,
        wanted=[[0], [0, 1], [2]],
    )
    labels = {name: label_slice(name, split, context) for name in ("turns", "wanted", "popularity", "age")}
    assert labels["turns"] == ["1", "3", "1"]
    assert labels["wanted"] == ["1", "2", "1"]
    assert labels["popularity"] == ["4", "3", "0"]
    assert labels["age"] == ["old", None, "young"]
    many = split_of(["x" + "\nSYSTEM: y" * n for n in range(8)], [["Up"]] * 8)
    assert label_slice("turns", many, context)[:4] == ["1 to 2", "1 to 2", "3 to 4", "3 to 4"]
    rows = [{"num_truth": 1, "ndcg@2": value} for value in (1.0, 0.5, 0.0)]
    parts = compute_slice_results(
        {"turns": labels["turns"]}, rows, split.prompt_ids, ["ndcg@2"], [{"ndcg@2": 0.5}, None, None]
    )
    assert parts["turns"]["1"]["ndcg@2"] == {"mean": 0.5, "se": pytest.approx(0.5)}
    assert parts["turns"]["1"]["ndcg@2 gain"]["mean"] == 0.5
    assert "ndcg@2 gain" not in parts["turns"]["3"]


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ([10001, 10003, 10002], ["10001", "10003", "10002"]),  # four digits would make one part of them
        ([float("nan"), 1.0, None, 2.5], [None, "1", None, "2.5"]),
        ([0.333331, 0.333332], ["0.333331", "0.333332"]),
        ([1, 2, 3, 4, 5, 6, 7, math.nan], ["1", "2 to 3", "2 to 3", "4 to 5", "4 to 5", "6 to 7", "6 to 7", None]),
        ([math.nan], [None]),
    ],
)
def test_numbers_are_sliced_into_distinct_parts_skipping_nans(
    values: list[float | None], labels: list[str | None]
) -> None:
    assert _divide_into_parts(values) == labels


def test_baselines_need_no_model(sample: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [part for name in ("test", "catalog") for part in (sample / f"{name}.parquet",)]
    arguments = ["--data", str(files[0]), "--catalog", str(files[1]), "--out", str(tmp_path / "out")]
    train = ["--train", str(sample / "train.parquet")]
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "rows.parquet").touch()  # of a model's evaluation, which metrics.json is no longer of
    assert evaluate.main([*arguments, *train, "--baselines", "popularity", "retrieval", "--slices", "turns"]) == 0
    printed = capsys.readouterr().out
    for words in ("popularity lift", "diversity in a list", "parts of the split, popularity:", "turns 1", "retrieval"):
        assert words in printed
    assert "wanted 1" not in printed  # metrics.json has it
    assert not (tmp_path / "out" / "rows.parquet").exists()
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert list(metrics["slices"]) == ["turns", "wanted", "popularity"]
    assert list(metrics["results"]["paper"]) == ["popularity", "retrieval"]
    assert metrics["results"]["paper"]["popularity"]["coverage"]["mean"] == pytest.approx(20 / 1087)
    # no genres: what cannot be measured is said in a sentence
    pq.write_table(pq.read_table(files[1]).select(["title", "year"]), tmp_path / "bare.parquet")
    assert evaluate.main([*arguments, *train, "--catalog", str(tmp_path / "bare.parquet")]) == 0
    printed = capsys.readouterr().out
    assert "No diversity or calibration: the catalog has no column genres." in printed
    assert "Gini" in printed
    assert "turns 1" not in printed
    for options, value, code in (
        ([], "popularity", "evaluation.conflicting-options"),
        (["--baselines"], "--baselines", "evaluation.conflicting-options"),
        (["--constrained"], "--constrained", "evaluation.conflicting-options"),
        ([*train, "--slices", "moon"], "--slices moon", "evaluation.unknown-slice"),
    ):
        assert evaluate.main([*arguments, *options]) == 2
        message = capsys.readouterr().err
        assert value in message
        assert message.endswith(f"[{code}]\n")


def test_popularity_comes_from_mentions_without_training_rows(sample: Path, tmp_path: Path) -> None:
    catalog = pq.read_table(sample / "catalog.parquet")
    pq.write_table(catalog.select(["title", "year"]), tmp_path / "bare.parquet")
    with_mentions, bare = (
        make_context(read_split(sample / "test.parquet", file), [])
        for file in (sample / "catalog.parquet", tmp_path / "bare.parquet")
    )
    assert with_mentions.mentions_M is not None
    assert with_mentions.mentions_M.sum() == with_mentions.rows == sum(catalog["mentions"].to_pylist())
    assert bare.mentions_M is None
    no_train = "No popularity lift, novelty or cold items: no --train, and the catalog has no column mentions."
    assert explain_missing_measures({"coverage": 0.1, "diversity": 0.5}) == [no_train]
