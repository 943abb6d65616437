"""Judge rows: valid and invalid ones, and their prompts."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from convrec.base.errors import UserError
from convrec.judges.criteria import DEFAULTS
from convrec.judges.prompt import MODES, build_judge_prompt, format_query, format_verdict
from convrec.judges.schema import (
    build_prompt,
    describe_row_problem,
    get_label,
    get_responses,
    judge_schema,
    make_row,
    read_judge_table,
    validate_judge_table,
)
from convrec.judges.verdict import parse_preference_verdict, parse_score_verdict

USER = [{"role": "user", "content": "A horror film?"}]
RATED = make_row(USER, ["Alien."], 4, "test")
COMPARED = make_row(USER, ["Alien.", "Up."], "A", "test", "asked for horror")


def write(path: Path, rows: list[dict[str, Any]], mode: str) -> Path:
    pq.write_table(pa.Table.from_pylist(rows, judge_schema(mode)), path)
    return path


@pytest.mark.parametrize(("mode", "row"), [("pointwise", RATED), ("pairwise", COMPARED)])
def test_rows_come_back_as_they_were_written(mode: str, row: dict[str, Any], tmp_path: Path) -> None:
    (back,) = read_judge_table(write(tmp_path / "a.parquet", [row], mode), mode)
    assert back == {**row, "criteria": DEFAULTS[mode]}


def test_the_documented_columns_are_sufficient(tmp_path: Path) -> None:
    table = pa.Table.from_pylist([COMPARED], judge_schema("pairwise")).select(["source", "output", "input"])
    pq.write_table(table, tmp_path / "a.parquet")
    (row,) = read_judge_table(tmp_path / "a.parquet", "pairwise")
    assert (get_label(row, "pairwise"), get_responses(row)) == ("A", ["Alien.", "Up."])


def test_prompt_has_task_principles_query_responses_and_format() -> None:
    (message,) = build_prompt(COMPARED, "pairwise")
    assert message["role"] == "user"
    text = message["content"]
    parts = ["two responses", "Principles:\n1. ", "\n5. ", "Query:\n```\nA horror film?\n```"]
    parts += ["Response A:\n```\nAlien.\n```", "Response B:\n```\nUp.\n```"]
    parts += ["<think>your reasons</think><better>A or B</better>"]
    assert [text.index(part) for part in parts] == sorted(text.index(part) for part in parts)
    (message,) = build_prompt(RATED, "pointwise")
    assert "Response:\n```\nAlien.\n```" in message["content"]
    assert message["content"].endswith("<think>your reasons</think><score>0-4</score>")


def test_a_swapped_prompt_has_the_responses_in_the_other_order() -> None:
    assert build_prompt(COMPARED, "pairwise", swapped=True) == build_judge_prompt("pairwise", USER, ["Up.", "Alien."])


def test_requested_format_is_no_verdict_but_demonstrations_are() -> None:
    for mode, verdict in zip(MODES, (parse_score_verdict, parse_preference_verdict), strict=True):
        (message,) = build_prompt(RATED if mode == "pointwise" else COMPARED, mode)
        assert verdict(message["content"]) is None  # copying the form earns nothing
    assert parse_score_verdict(format_verdict("pointwise", 3, "<score>1</score>")) == 3
    assert parse_preference_verdict(format_verdict("pairwise", "B")) == "B"


def test_a_conversation_has_its_speakers_in_the_query() -> None:
    talk = [*USER, {"role": "assistant", "content": "Alien. "}, {"role": "user", "content": "Seen it."}]
    assert format_query(talk) == "USER: A horror film?\nASSISTANT: Alien.\nUSER: Seen it."
    assert format_query(USER) == "A horror film?"


def changed(row: dict[str, Any], **values: Any) -> dict[str, Any]:
    return {**row, **values}


OTHER = make_row(USER, ["Alien.", "Up."], "B", "test")["output"]
ANSWER = {"role": "assistant", "content": "Alien.", "label": {"helpfulness": 4}}


@pytest.mark.parametrize(
    ("row", "mode", "part"),
    [
        (changed(RATED, input=None), "pointwise", "`input` is not a list of messages"),
        (changed(RATED, input=[]), "pointwise", "`input` is not a list of messages"),
        (changed(RATED, input="A horror film?"), "pointwise", "`input` is not a list of messages"),
        (changed(RATED, input=[{"role": "user"}]), "pointwise", "`input` contains something other"),
        (changed(RATED, input=[{"role": "user", "content": " "}]), "pointwise", "`input` contains something other"),
        (changed(RATED, input=[{"role": "assistant", "content": "x"}]), "pointwise", "not the user's"),
        (changed(RATED, output=[]), "pointwise", "exactly 1 answer"),
        (RATED, "pairwise", "exactly 2 answers"),
        (changed(RATED, output=[{"answer": None}]), "pointwise", "`output` contains something other"),
        (changed(RATED, output=[{"answer": {**ANSWER, "label": None}}]), "pointwise", "from 0 to 4"),
        (make_row(USER, ["x"], 5, ""), "pointwise", "from 0 to 4"),
        (make_row(USER, ["x"], True, ""), "pointwise", "from 0 to 4"),
        (make_row(USER, ["x", "y"], "tie", ""), "pairwise", "a tie"),
        (make_row(USER, ["x", "y"], "a", ""), "pairwise", 'preference: "A" or "B"'),
        (make_row(USER, ["x", "y"], 1, ""), "pairwise", 'preference: "A" or "B"'),
        (changed(COMPARED, output=[COMPARED["output"][0], OTHER[1]]), "pairwise", "the same on both answers"),
    ],
)
def test_the_problem_of_an_invalid_row_is_described(row: dict[str, Any], mode: str, part: str) -> None:
    problem = describe_row_problem(row, mode)
    assert problem is not None
    assert part in problem


def test_an_error_names_file_rows_and_fix(tmp_path: Path) -> None:
    tie = make_row(USER, ["x", "y"], "tie", "")
    path = write(tmp_path / "a.parquet", [tie, COMPARED, *[tie] * 6], "pairwise")
    with pytest.raises(UserError, match=r"a\.parquet: rows 0, 2, 3, 4, 5 and 2 more: the preference is a tie"):
        read_judge_table(path, "pairwise")


def test_files_that_are_not_judge_tables_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none\.parquet.*convrec data judge"):
        read_judge_table(tmp_path / "none.parquet", "pairwise")
    (tmp_path / "text.parquet").write_text("no parquet")
    with pytest.raises(UserError, match=r"text\.parquet"):
        read_judge_table(tmp_path / "text.parquet", "pairwise")
    pq.write_table(pa.table({"input": ["x"]}), tmp_path / "other.parquet")
    with pytest.raises(UserError, match=r"other\.parquet.*output, source.*input"):
        read_judge_table(tmp_path / "other.parquet", "pairwise")
    with pytest.raises(UserError, match=r"empty\.parquet"):
        read_judge_table(write(tmp_path / "empty.parquet", [], "pairwise"), "pairwise")


def test_a_table_with_one_label_is_warned_about(tmp_path: Path) -> None:
    balanced = [make_row(USER, ["x", "y"], label, "") for label in "AB" * 10]
    assert validate_judge_table(write(tmp_path / "a.parquet", balanced, "pairwise"), "pairwise") == (20, [])
    (warning,) = validate_judge_table(write(tmp_path / "b.parquet", [COMPARED] * 20, "pairwise"), "pairwise").warnings
    assert "A in 100% of the rows" in warning
