"""Simulated users on the whole sample catalog: their labels, their wordings, and that they never reveal a title."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from convrec.features.asking.attributes import Attributes, load_attributes
from convrec.features.asking.users import (
    LABEL_WORDINGS,
    OPEN_WORDINGS,
    Asked,
    LLMUser,
    OtherUser,
    RandomUser,
    RuleUser,
)
from convrec.llm import Answer
from tests.user_errors import refuses

WORD = re.compile(r"[^\W_]+")


def find_row(films: Attributes, title: str) -> int:
    return list(films.catalog.titles).index(title)


def words(text: str) -> str:
    return f" {' '.join(WORD.findall(text.casefold()))} "


@pytest.mark.parametrize("evaluation", [False, True])
def test_no_answer_names_a_wanted_title_of_the_whole_catalog(films: Attributes, evaluation: bool) -> None:
    for seed in range(3):
        user = RuleUser(films, seed, evaluation)
        asked = [Asked(f"{row}", [row], name) for row in range(len(films.catalog)) for name in films.names]
        answers = user.answers(asked)
        for question, answer in zip(asked, answers, strict=True):
            title = words(films.catalog.titles[question.wanted[0]])
            assert not title.strip() or title not in words(answer), (question, answer)
        # and nearly all labels are named
        is_named = [
            label.casefold() in answer.casefold()
            for question, answer in zip(asked, answers, strict=True)
            for label in films.shared(question.attribute, question.wanted)
        ]
        assert sum(is_named) / len(is_named) > 0.99


def test_a_label_that_resembles_a_relevant_title_is_omitted(tmp_path: Path) -> None:
    rows = [("War", 2007, ["war", "action"]), ("Westerns", 1999, ["western"]), ("Any", 1990, ["action", "war"])]
    columns = [dict(zip(("title", "year", "genres"), row, strict=True)) for row in rows]
    pq.write_table(pa.Table.from_pylist(columns), tmp_path / "catalog.parquet")
    user = RuleUser(load_attributes(tmp_path / "catalog.parquet", ["genre"]), 0)
    war, western, any_ = ({user.answers([Asked(str(key), [row], "genre")])[0] for key in range(50)} for row in range(3))
    assert all("action" in text.casefold() and "war" not in text.casefold() for text in war)
    assert western <= set(OPEN_WORDINGS)
    assert all("any" not in words(text).split() for text in any_)


def test_rule_user_states_shared_attributes_and_leaves_rest_open(films: Attributes) -> None:
    comedies = [row for row, genres in enumerate(films.values["genre"]) if genres == {"comedy"}][:2]
    other = next(row for row, genres in enumerate(films.values["genre"]) if genres == {"war"})
    user = RuleUser(films, 0)
    (both, none) = user.answers([Asked("a", comedies, "genre"), Asked("a", [*comedies, other], "genre")])
    assert "comedy" in both.casefold()
    assert none in OPEN_WORDINGS


def test_wordings_are_seeded_and_half_held_out_for_evaluation(films: Attributes) -> None:
    row = find_row(films, "Heat")
    asked = [Asked(str(key), [row], name) for key in range(60) for name in films.names]
    answers = {evaluation: RuleUser(films, 1, evaluation).answers(asked) for evaluation in (False, True)}
    assert answers[False] == RuleUser(films, 1).answers(asked) != RuleUser(films, 2).answers(asked)
    assert len(set(answers[False])) == len(set(answers[True])) == 8  # 4 wordings for 2 attributes
    assert set(answers[False]).isdisjoint(answers[True])
    assert len(set(LABEL_WORDINGS)) == len(set(OPEN_WORDINGS)) == 8


def test_controls_ignore_the_relevant_items(films: Attributes) -> None:
    row, war = find_row(films, "Koyaanisqatsi"), find_row(films, "1917")
    asked = [Asked(str(key), [row], "genre") for key in range(200)]
    num_correct = sum("documentary" in text.casefold() for text in RandomUser(films, 0).answers(asked))
    assert num_correct < 30  # one of 20 genres
    other = OtherUser(films, 0)
    other.others = [[row], [war], []]
    assert all("war" in text.casefold() for text in other.answers(asked))
    assert other.choose_labels(Asked("1", [row, war], "genre")) == []  # there is no other user


class Model:
    """A fake client that records prompts and returns the texts it was given."""

    def __init__(self, *texts: str) -> None:
        self.texts = texts
        self.prompts: list[str] = []
        self.sampling: dict[str, Any] = {}

    def ask_all(self, prompts: list[str], label: str, **sampling: Any) -> list[Answer]:
        self.prompts += prompts
        self.sampling = sampling
        return [Answer(text) for text in self.texts]


def test_llm_user_knows_the_titles_and_does_not_reveal_them(
    films: Attributes, caplog: pytest.LogCaptureFixture
) -> None:
    row, model = find_row(films, "Heat"), Model("A crime film,\nplease", "I love heat!", "")
    user = LLMUser(films, model)  # type: ignore[arg-type]
    asked = [Asked("a", [row], "genre", "instruction\nHere is the conversation: USER: Hi\n")] * 3
    assert user.answers(asked) == ["A crime film, please", "I don't mind.", "I don't mind."]
    assert "1 of 3 answers of the user model are empty" in caplog.text
    assert "Heat" in model.prompts[0]
    assert "USER: Hi\n" in model.prompts[0]
    assert "instruction" not in model.prompts[0]


def test_llm_answer_naming_a_shortened_title_is_withheld(films: Attributes) -> None:
    row = find_row(films, "Terminator 2: Judgment Day")
    answers = ("I want Terminator 2", "judgment day", "Action, please.")
    user = LLMUser(films, Model(*answers))  # type: ignore[arg-type]
    asked = [Asked("a", [row], "genre", "instruction\nHere is the conversation: USER: Hi\n")] * len(answers)
    assert user.answers(asked) == ["I don't mind.", "I don't mind.", "Action, please."]


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        (None, {"temperature": 0.0, "max_tokens": 60}),
        ({"temperature": None, "top_p": 0.9}, {"max_tokens": 60, "top_p": 0.9}),
    ],
)
def test_the_user_models_sampling_parameters_override_the_defaults(
    films: Attributes, given: dict[str, Any] | None, sent: dict[str, Any]
) -> None:
    model = Model("A crime film")
    user = LLMUser(films, model, given)  # type: ignore[arg-type]
    user.answers([Asked("a", [find_row(films, "Heat")], "genre", "Here is the conversation: USER: Hi\n")])
    assert model.sampling == sent


@pytest.mark.parametrize(
    ("names", "code", "values"),
    [
        (["mood"], "questions.unknown-attribute", ["mood", "title, year, genres", "decade"]),
        (["one"], "questions.too-few-labels", ["one", "catalog.parquet", "(x)"]),
        (["genre", "title"], "questions.identifying-attribute", ["--ask title"]),
        ([], "questions.invalid-names", []),
        (["genre", "genre"], "questions.invalid-names", ["genre,genre"]),
    ],
)
def test_attributes_that_cannot_be_asked_about_are_refused(
    film_catalog: Path, tmp_path: Path, names: list[str], code: str, values: list[str]
) -> None:
    file = film_catalog
    if "one" in names:
        file = tmp_path / "catalog.parquet"
        pq.write_table(pa.Table.from_pylist([{"title": t, "year": 1999, "one": "x"} for t in "AB"]), file)
    with refuses(code, *values):
        load_attributes(file, names)


def test_attributes_of_a_catalog_that_is_replaced_while_it_is_read_are_refused(
    tmp_path: Path, replace_when_read: Callable[[Path, pa.Table], None]
) -> None:
    file = tmp_path / "catalog.parquet"
    films = pa.table({"title": ["Alien", "Heat"], "year": [1979, 1995], "genre": ["horror", "crime"]})
    pq.write_table(films, file)
    replace_when_read(file, films.take([1, 0]))
    with refuses("catalog.changed", file):
        load_attributes(file, ["genre"])


def test_attributes_of_a_catalog_without_columns_are_refused() -> None:
    with refuses("questions.no-columns", "--ask", "catalog.pkl"):
        load_attributes("catalog.pkl", ["genre"])


def test_labels_in_the_conversation_are_recognised_as_words(films: Attributes) -> None:
    row = find_row(films, "Heat")
    (label, *_) = films.shared("genre", [row])
    assert films.said("genre", [row], f"USER: A {label.upper()}. " + " ".join(films.shared("genre", [row])))
    assert not films.said("genre", [row], "USER: Hi!")
    assert not films.said("genre", [row], f"USER: Something {label}ly, perhaps a{label}?")  # within other words
    assert json.dumps(films.shared("decade", [row])) == '["1990s"]'
