"""Demonstrations that ask questions: in the sample and in your own data."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from convrec.base.errors import UserError
from convrec.data.schema import conversation_text, get_group_id
from convrec.data.validation import validate_sft_table
from convrec.features.asking.attributes import load_attributes
from convrec.features.asking.turns import format_question, read_turn
from convrec.titles.catalog import load_catalog
from convrec.titles.matching import Matcher
from data_prep import questions
from data_prep.own import convert_own
from data_prep.own import main as own
from data_prep.sample import main as sample
from data_prep.sample import write_sample
from data_prep.sample_data.conversations import LINES
from tests.user_errors import refuses

ATTRIBUTES = ["genre", "decade"]
COUNTS = {"train": 60, "validation": 10, "test": 20}


def read_rows(folder: Path, name: str) -> list[dict[str, Any]]:
    return pq.read_table(folder / f"{name}.parquet").to_pylist()


@pytest.fixture(scope="module")
def asking_sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sample(tmp_path_factory.mktemp("data") / "ask", counts=COUNTS, ask=ATTRIBUTES)


def test_sample_is_vague_and_a_share_of_demonstrations_asks(asking_sample: Path) -> None:
    vague = [
        any(line in conversation_text(row) for line in LINES["vague"]) for row in read_rows(asking_sample, "train")
    ]
    assert 0.3 < sum(vague) / len(vague) < 0.8
    rows = read_rows(asking_sample, "sft_train")
    validate_sft_table(asking_sample / "sft_train.parquet")
    assert len({row["sample_id"] for row in rows}) == len(rows)
    asked = [read_turn(row["completion"][0]["content"], ATTRIBUTES).asked for row in rows]
    asking = [row for row, attribute in zip(rows, asked, strict=True) if attribute]
    firsts = [row for row in asking if row["sample_id"].endswith("_q1")]
    assert 0.15 < len(firsts) / 60 < 0.45
    assert set(asked) == {None, *ATTRIBUTES}
    lists = {row["sample_id"]: row for row in rows if "_q" not in row["sample_id"]}
    assert len(lists) == 60
    for question in asking:  # each continues in a later row, which ends with a list
        later = lists[question["sample_id"].split("_q")[0]]["prompt"][0]["content"]
        turn = f"SYSTEM: {question['completion'][0]['content']}\nUSER: "
        assert later.startswith(question["prompt"][0]["content"].rstrip("\n") + "\n" + turn)
        assert question["prompt"][0]["content"].count(turn) == 0  # nothing is asked twice


def test_turn_row_belongs_to_the_group_of_its_conversation(asking_sample: Path) -> None:
    groups = {row["sample_id"]: get_group_id(row) for row in read_rows(asking_sample, "train")}
    rows = read_rows(asking_sample, "sft_train")
    assert [get_group_id(row) for row in rows] == [groups[row["sample_id"].split("_q")[0]] for row in rows]
    assert get_group_id({"sample_id": "17_t5_q2"}) == get_group_id({"sample_id": "17_t5"}) == "17"


def test_a_list_after_an_answer_begins_with_fitting_items(asking_sample: Path) -> None:
    attributes = load_attributes(asking_sample / "catalog.parquet", ATTRIBUTES)
    matcher, checked = Matcher(attributes.catalog), 0
    for row in read_rows(asking_sample, "sft_train"):
        lines = row["completion"][0]["content"].split("\n")
        _, _, answer = row["prompt"][0]["content"].partition(f"{format_question('genre')}\nUSER: ")
        genres = attributes.named("genre", answer.split("\n")[0])
        if not genres or format_question("decade") in row["prompt"][0]["content"] or len(lines) == 1:
            continue
        items = matcher.match_lines(lines, (), None).catalog_index
        fitting = [len(attributes.values["genre"][item].intersection(genres)) for item in items]
        assert fitting == sorted(fitting, reverse=True)
        assert fitting[0] > 0
        checked += 1
    assert checked > 2


# SHA-256 of the rows that were written before there was `--ask`
PLAIN = "6ca3dfcd331fd188522d2f0785bad0228ddb1256c645074569ac8df104880ad7"


def test_the_sample_without_questions_has_not_changed(tmp_path: Path) -> None:
    folder = write_sample(tmp_path / "plain", counts={"train": 40, "validation": 5, "test": 5})
    rows = [row for name in ("train", "sft_train", "test", "catalog") for row in read_rows(folder, name)]
    assert hashlib.sha256(json.dumps(rows).encode()).hexdigest() == PLAIN


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Any]:
    genres = ["Crime", "Drama", "Comedy"]
    films = [{"title": f"Film {row}", "year": 1990 + row, "genres": [genres[row % 3]]} for row in range(12)]
    rows = [
        {"conversation": f"USER: Something good, number {row}!", "ground_truth": [[f"Film {row}", 1990 + row]]}
        | {"split": "train" if row < 9 else "validation"}
        for row in range(12)
    ]
    for name, content in (("dialogues", rows), ("catalog", films)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in content))
    return {
        "conversations": [tmp_path / "dialogues.jsonl"],
        "catalog": tmp_path / "catalog.jsonl",
        "out": tmp_path / "out",
        "num_items": 3,
    }


def test_own_data_without_demonstrations_gets_ones_that_ask(
    files: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(questions, "ASK_SHARE", 1.0)
    summary = convert_own(**files, ask=["genre"])
    counts = summary["rows"]
    assert (counts["questions_of_sft_train"], counts["questions_of_sft_validation"]) == (9, 3)
    rows = read_rows(files["out"], "sft_train")
    matcher = Matcher(load_catalog(files["out"] / "catalog.parquet"))
    assert len(rows) == 18
    assert (summary["files"]["sft_train"]["rows"], summary["files"]["sft_validation"]["rows"]) == (18, 6)
    assert summary["files"]["sft_train"]["contexts"] == 18
    assert {"id", "exposure"} <= rows[0].keys()  # as without questions
    for question, answer in zip(rows[::2], rows[1::2], strict=True):
        assert question["completion"][0]["content"] == "Which genre?"
        lines = answer["completion"][0]["content"].split("\n")
        items = matcher.match_lines(lines, (), None).catalog_index
        film = matcher.wanted(*answer["groundtruth_with_release_year"][0]).index
        assert {item % 3 for item in items} == {film % 3}  # the three of its genre that training wants


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--ask", "mood"], "mood"),
        (["--ask", ""], "--ask"),
    ],
)
def test_unknown_attributes_are_refused_and_nothing_is_written(
    files: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    few = ["--train", "3", "--validation", "1", "--test", "1"]
    inputs = ["--conversations", str(files["conversations"][0]), "--catalog", str(files["catalog"])]
    for command, options in ((sample, few), (own, inputs)):
        assert command([*options, "--out", str(tmp_path / "new"), *arguments]) == 2
        assert message in capsys.readouterr().err
        assert not (tmp_path / "new").exists()
    with pytest.raises(UserError, match="mood"):
        convert_own(**files, ask=["mood"])


def test_hard_requests_leave_nothing_to_ask(tmp_path: Path) -> None:
    with refuses("sample.ask-hard-requests", "--ask", "--requests hard"):
        write_sample(tmp_path / "data", ask=["genre"], requests="hard")
