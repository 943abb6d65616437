"""Conversations that are played with a user: who asks what, how it is measured, what is refused."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from convrec.base.errors import UserError
from convrec.features.asking.users import LABEL_WORDINGS
from recipes import evaluate as command
from recipes.evaluation.dialogues import play_conversations
from recipes.evaluation.examples import choose_examples
from recipes.evaluation.options import EvaluationOptions
from recipes.evaluation.setup import prepare_evaluation
from recipes.evaluation.single import evaluate
from recipes.report import report
from tests.recipes.evaluation.small import row, write_rows
from tests.user_errors import refuses

FILMS = {"Alien": 1979, "Heat": 1995, "Toy Story": 1995, "Jaws": 1975, "Fargo": 1996}
GENRES = {"Alien": ["horror"], "Heat": ["crime"], "Toy Story": ["family"], "Jaws": ["horror"], "Fargo": ["crime"]}
ROWS = [
    row("a", "hello", ["Alien"], films=FILMS),
    row("b", "hello", ["Heat", "Fargo"], films=FILMS),  # the same first turn, another user
    row("c", "a family film", ["Toy Story"], films=FILMS),
    row("d", "broken", ["Jaws"], films=FILMS),
]
TRAIN = [row("t1", "x", ["Heat", "Jaws", "Fargo", "Alien", "Toy Story"], films=FILMS), row("t2", "y", ["Heat"])]
LISTS = {"horror": "Alien (1979)\nJaws (1975)\nHeat (1995)", "crime": "Fargo (1996)\nHeat (1995)\nJaws (1975)"}


def turn(conversation: str, **_: Any) -> str:
    """A model that asks "hello" for a genre and again for a decade, and believes what it hears."""
    if conversation == "broken":
        return "Which genre?\nJaws (1975)"
    if "family" in conversation:
        return "Toy Story (1995)"
    if "Which genre?" not in conversation:
        return "Which genre?"
    if "Which decade?" not in conversation and "crime" in conversation.casefold():
        return "Which decade?"
    return next(text for genre, text in LISTS.items() if genre in conversation.casefold())


@pytest.fixture
def files(tmp_path: Path, sound_model: Callable[..., Path]) -> dict[str, Any]:
    catalog = [{"title": title, "year": year, "genres": GENRES[title]} for title, year in FILMS.items()]
    pq.write_table(pa.Table.from_pylist(catalog), tmp_path / "catalog.parquet")
    return {
        "data": write_rows(tmp_path / "data.parquet", ROWS),
        "catalog": str(tmp_path / "catalog.parquet"),
        "train": write_rows(tmp_path / "train.parquet", TRAIN),
        "model": str(sound_model(tmp_path / "model")),
        "out": str(tmp_path / "out"),
        "num_items": 3,
        "ks": (1, 3),
        "progress": False,
        "user": "rule",
        "ask": ["genre", "decade"],
    }


def test_a_catalog_that_is_replaced_before_the_conversations_is_refused(files: dict[str, Any]) -> None:
    """Rows of the split's catalog would have the genres of other films."""
    evaluation = prepare_evaluation(EvaluationOptions(**files))
    pq.write_table(pq.read_table(files["catalog"])[::-1], files["catalog"])
    with refuses("catalog.changed", files["catalog"]):
        play_conversations(evaluation, lambda request: pytest.fail("a conversation was played"))


def test_a_model_that_asks_is_measured_by_its_last_list(
    files: dict[str, Any], answer_with: Callable[..., list[list[str]]], tmp_path: Path
) -> None:
    asked = answer_with(turn)
    metrics = evaluate(EvaluationOptions(**files))
    assert [len(prompts) for prompts in asked] == [3, 2, 1]  # equal first turns are one prompt, what follows is not
    assert asked[0] == ["hello", "a family film", "broken"]
    model = metrics["results"]["paper"]["model"]
    assert model["questions"]["mean"] == pytest.approx(3 / 4)  # 1 of a, 2 of b
    assert model["malformed"]["mean"] == pytest.approx(1 / 4)
    assert (model["useful"]["mean"], model["useful"]["n"]) == (1, 2)  # of the two that ask
    assert [model[f"success_by_{t}"]["mean"] for t in (1, 2, 3)] == [1 / 4, 2 / 4, 3 / 4]
    # a: Alien first. b: Fargo and Heat first. c: its one item. d: malformed, no item
    assert model["ndcg@3"]["mean"] == pytest.approx(3 / 4)
    assert {count: part["n"] for count, part in metrics["slices"]["questions"].items()} == {"0": 2, "1": 1, "2": 1}
    assert metrics["slices"]["questions"]["0"]["ndcg@3"]["mean"] == pytest.approx(1 / 2)
    assert (model["ndcg_after_0"]["mean"], model["ndcg_after_0"]["n"]) == (pytest.approx(1 / 2), 2)
    rows = {one["sample_id"]: one for one in pq.read_table(tmp_path / "out" / "rows.parquet").to_pylist()}
    assert [one["questions"] for one in rows.values()] == [1, 2, 0, 0]
    assert rows["c"]["dialogue"] == ""
    answers = [line.removeprefix("USER: ") for line in rows["b"]["dialogue"].splitlines() if line.startswith("USER")]
    wordings = {
        wording.format(labels=label).capitalize() for wording in LABEL_WORDINGS[1::2] for label in ("crime", "1990s")
    }
    assert {text.capitalize() for text in answers} <= wordings
    shown = {example.conversation for example in choose_examples({"model": tmp_path / "out"}, {}, 4)}
    assert any("SYSTEM: Which genre?\nUSER: " in conversation for conversation in shown)
    printed = {line.split("  ")[0]: line.split() for line in command.format_metrics(metrics).splitlines()}
    assert "0.7500" in printed["questions"]
    assert printed["questions 2"][2] == "1"  # rows
    page = report([], tmp_path / "report.html", {"asking": tmp_path / "out"}).read_text()
    assert "success by turn 3" in page
    assert "NDCG after 2 questions" in page


def test_baselines_ask_by_their_rule_and_list_what_fits(
    files: dict[str, Any], answer_with: Callable[..., list[list[str]]]
) -> None:
    answer_with(turn)
    metrics = evaluate(EvaluationOptions(**files))
    questions = {name: figures["questions"]["mean"] for name, figures in metrics["results"]["paper"].items()}
    assert questions == {"model": 3 / 4, "never": 0, "fixed": 2, "entropy": 2}
    results = metrics["results"]["paper"]
    # popular: Heat, then Alien, Toy Story, Jaws, Fargo. Of four rows a is hit at 2, b at 1, c at 3, d not at all
    never = (1 / math.log2(3) + 1 / (1 + 1 / math.log2(3)) + 1 / 2) / 4
    assert results["never"]["ndcg@3"]["mean"] == pytest.approx(never)
    assert results["fixed"]["ndcg@3"]["mean"] > results["never"]["ndcg@3"]["mean"]
    assert set(metrics["minus"]) == {"never", "fixed", "entropy"}
    baselines = evaluate(EvaluationOptions(**files | {"model": None}))
    assert set(baselines["results"]["paper"]) == {"never", "fixed", "entropy"}
    assert baselines["results"]["paper"]["fixed"] == results["fixed"]


def test_turns_are_as_many_as_the_run_was_trained_with(
    files: dict[str, Any], answer_with: Callable[..., list[list[str]]], tmp_path: Path
) -> None:
    answer_with(turn)
    (tmp_path / "config.yaml").write_text("convrec: {max_turns: 2}\n")
    metrics = evaluate(EvaluationOptions(**files | {"run": str(tmp_path)}))
    assert metrics["settings"]["max_turns"] == 2
    assert metrics["results"]["paper"]["model"]["questions"]["mean"] == pytest.approx(2 / 4)  # b's second is refused


def test_question_without_turns_left_is_no_item(
    files: dict[str, Any], answer_with: Callable[..., list[list[str]]]
) -> None:
    answer_with(turn)
    metrics = evaluate(EvaluationOptions(**files | {"max_turns": 1}))
    assert metrics["results"]["paper"]["model"]["questions"]["mean"] == 0
    assert metrics["results"]["paper"]["model"]["ndcg@3"]["mean"] == pytest.approx(1 / 4)
    for user in ("rule", "other"):
        files |= {"user": user, "model": None, "out": files["out"] + user}
        gained = evaluate(EvaluationOptions(**files))["results"]["paper"]
        gain = gained["fixed"]["ndcg@3"]["mean"] - gained["never"]["ndcg@3"]["mean"]
        assert (gain > 0.2) == (user == "rule")


@pytest.mark.parametrize(
    ("changes", "options"),
    [
        ({"ask": None}, ["--user", "--ask"]),
        ({"user": None}, ["--user", "--ask"]),
        ({"max_turns": 0}, ["--max-turns 0"]),
        ({"constrained": True}, ["--user", "--constrained"]),
        ({"retrieval": "r"}, ["--user", "--retrieval"]),
    ],
)
def test_conflicting_options_of_dialogues_are_refused(
    files: dict[str, Any], changes: dict[str, Any], options: list[str]
) -> None:
    with refuses("evaluation.conflicting-options", *options):
        evaluate(EvaluationOptions(**files | changes))


def test_attributes_must_be_columns_of_the_catalog(files: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="--ask mood: "):
        evaluate(EvaluationOptions(**files | {"ask": ["mood"]}))
