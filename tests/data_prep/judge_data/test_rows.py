"""Ratings become comparisons, duplicates are listed, and rows that belong together stay in one split."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convrec.judges.prompt import format_query
from convrec.judges.schema import get_label, get_responses, make_row, read_judge_table
from data_prep import judge
from data_prep.judge import convert
from data_prep.judge_data.rows import BEGINNING, SPLITS, find_large_group, split_rows
from data_prep.options.judge import JudgeOptions
from tests.user_errors import refuses

TEST_ALONE = {"test_share": 1.0}


def written(tmp_path: Path, mode: str, records: list[Any], **options: Any) -> tuple[dict[str, Any], list[dict]]:
    """Convert records; return the summary and the rows of test.parquet."""
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    chosen = TEST_ALONE | options
    summary = convert(JudgeOptions(mode=mode, inputs=[str(path)], out=str(tmp_path / "out"), **chosen))
    return summary, read_judge_table(tmp_path / "out" / "test.parquet", mode, ties=True)


def left_out(tmp_path: Path) -> list[tuple[str, str, str]]:
    lines = (tmp_path / "out" / "left_out.jsonl").read_text().splitlines()
    return [(entry["place"], entry["kind"], entry["why"]) for entry in map(json.loads, lines)]


def rating(prompt: str, response: str, score: int) -> dict[str, Any]:
    return {"prompt": prompt, "response": response, "helpfulness": score}


def pair(prompt: str, chosen: str = "good", rejected: str = "bad") -> dict[str, Any]:
    return {"prompt": prompt, "chosen": chosen, "rejected": rejected}


def test_ratings_of_one_query_are_compared_with_each_other(tmp_path: Path) -> None:
    records = [rating("Why?", "x", 4), rating("How?", "alone", 1), rating("Why?", "y", 1), rating("Why?", "z", 4)]
    _, rows = written(tmp_path, "pairwise", records)
    better = {}
    for row in rows:
        label, texts = get_label(row, "pairwise"), get_responses(row)
        better[frozenset(texts)] = label if label == "tie" else texts["AB".index(label)]
    assert better == {frozenset("xy"): "x", frozenset("yz"): "z", frozenset("xz"): "tie"}


def test_identical_rows_are_listed_and_the_first_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Identical: the same comparison in the other order, and a query with other case and white space."""
    other_way = {"prompt": "Why?", "response_a": "bad", "response_b": "good", "preferred": "B"}
    records = [pair("Why?"), pair("Why else?"), other_way, pair(" WHY? ")]
    summary, rows = written(tmp_path, "pairwise", records)
    assert [format_query(row["input"]) for row in rows] == ["Why?", "Why else?"]
    assert (summary["identical_left_out"], summary["contradictory_left_out"]) == (2, 0)
    why = "repeats in.jsonl: line 1"
    assert left_out(tmp_path) == [("in.jsonl: line 3", "identical", why), ("in.jsonl: line 4", "identical", why)]
    assert "2 identical (in.jsonl: line 3; in.jsonl: line 4)" in capsys.readouterr().err


def test_contradictory_rows_are_listed_and_none_is_kept(tmp_path: Path) -> None:
    records = [pair("Why?"), pair("Why else?"), pair("Why?", "bad", "good"), pair("Why?")]
    summary, rows = written(tmp_path, "pairwise", records)
    assert [format_query(row["input"]) for row in rows] == ["Why else?"]
    assert summary["contradictory_left_out"] == 3
    places = "in.jsonl: line 1, in.jsonl: line 3, in.jsonl: line 4"
    assert left_out(tmp_path)[0] == ("in.jsonl: line 1", "contradictory", f"contradictory verdicts in {places}")


def test_contradictory_ratings(tmp_path: Path) -> None:
    records = [rating("Why?", "x", 4), rating("Why?", "x ", 1), rating("Why?", "y", 2), rating("why?", "y", 2)]
    summary, rows = written(tmp_path, "pointwise", records)
    assert [(get_responses(row), get_label(row, "pointwise")) for row in rows] == [(["y"], 2)]
    assert (summary["identical_left_out"], summary["contradictory_left_out"]) == (1, 2)


def test_a_response_that_wins_and_loses_has_no_score(tmp_path: Path) -> None:
    """Of preferences x > y and y > z, y would be the best and the worst."""
    summary, rows = written(tmp_path, "pointwise", [pair("Why?", "x", "y"), pair("Why?", "y", "z")])
    assert [(get_responses(row), get_label(row, "pointwise")) for row in rows] == [(["x"], 4), (["z"], 0)]
    assert summary["contradictory_left_out"] == 2


def test_an_empty_result_is_refused_with_what_was_left_out(tmp_path: Path) -> None:
    with refuses(
        "preferences.none-left", tmp_path / "in.jsonl", "2 contradictory (in.jsonl: line 1; in.jsonl: line 2)"
    ):
        written(tmp_path, "pairwise", [pair("Why?"), pair("Why?", "bad", "good")])


# ---- splits


def split_of(query: str, seed: int = 1) -> str:
    row = make_row([{"role": "user", "content": query}], ["x", "y"], "A", "")
    parts, _ = split_rows([row], "pairwise", {"validation": 0.3, "test": 0.3}, seed)
    return next(name for name in SPLITS if parts[name])


LONG = "Here is a text of several pages about which a question is asked at its end. " * 4


@settings(deadline=None)
@given(st.text(min_size=1, max_size=40).filter(str.strip), st.integers(0, 5))
def test_case_and_space_move_no_query_to_another_split(query: str, seed: int) -> None:
    spaced = "  " + query.upper().lower().replace(" ", " \n ") + "\t"
    assert split_of(query.upper().lower(), seed) == split_of(spaced, seed)
    assert split_of("who are you, " + query, seed) == split_of("Who are YOU,  " + query, seed)


def test_queries_that_begin_alike_for_long_are_in_one_split() -> None:
    assert len(LONG) > BEGINNING
    assert len({split_of(f"{LONG} Question {n}?") for n in range(30)}) == 1
    assert len({split_of(f"Question {n}? {LONG}") for n in range(30)}) == 3


def test_a_template_that_all_queries_begin_with_is_warned_about(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps(pair(f"{LONG} {n}")) + "\n" for n in range(30)))
    assert judge.main(["--mode", "pairwise", "--input", str(path), "--out", str(tmp_path / "out")]) == 0
    assert "warning: 30 of 30 rows have queries with the same beginning" in capsys.readouterr().err
    rows = [make_row([{"role": "user", "content": str(n)}], ["x"], 1, "") for n in range(30)]
    assert find_large_group(rows) is None
