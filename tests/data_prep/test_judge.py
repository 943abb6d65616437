"""Preferences and ratings in every format become judge rows: ties, order, splits, and an error per kind of damage."""

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from convrec.base.errors import UserError
from convrec.data.validation import validate_sft_table
from convrec.judges.criteria import read_criteria
from convrec.judges.prompt import format_query
from convrec.judges.schema import build_prompt, get_label, get_responses, make_row, read_judge_table, swap_row
from convrec.judges.verdict import parse_preference_verdict, parse_score_verdict
from data_prep import judge, judge_demonstrations
from data_prep.judge import convert
from data_prep.judge_data.rows import SPLITS, balance_order
from data_prep.judge_sample import make_preferences, make_ratings, write_sample
from data_prep.options.judge import JudgeOptions
from tests.user_errors import refuses

USER = [{"role": "user", "content": "Why?"}]
GOOD, BAD = {"role": "assistant", "content": "good"}, {"role": "assistant", "content": "bad"}
ALL = {"validation_share": 0.0, "test_share": 0.0}


def jsonl(path: Path, records: list[Any]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def converted(tmp_path: Path, mode: str, records: list[Any], **options: Any) -> dict[str, Any]:
    """Convert records into OUT and return the summary."""
    path = jsonl(tmp_path / "in.jsonl", records)
    return convert(JudgeOptions(mode=mode, inputs=[str(path)], out=str(tmp_path / "out"), **options))


def train_rows(tmp_path: Path, mode: str, records: list[Any], **options: Any) -> list[dict[str, Any]]:
    converted(tmp_path, mode, records, **ALL, **options)
    return read_judge_table(tmp_path / "out" / "train.parquet", mode)


def numbered(record: dict[str, Any], count: int) -> list[dict[str, Any]]:
    return [record | {"prompt": f"Why {n}?"} for n in range(count)]


FORMS = {
    "texts": {"prompt": "Why?", "chosen": "good", "rejected": "bad"},
    "messages": {"prompt": USER, "chosen": [GOOD], "rejected": [BAD]},
    "whole conversations": {"chosen": [*USER, GOOD], "rejected": [*USER, BAD]},
    "text prompt beside conversations": {"prompt": "Why?", "chosen": [*USER, GOOD], "rejected": [*USER, BAD]},
    "A and B": {"prompt": "Why?", "response_a": "good", "response_b": "bad", "preferred": "A"},
    "B and A": {"prompt": "Why?", "response_a": "bad", "response_b": "good", "preferred": "B"},
    "schema": make_row(USER, ["good", "bad"], "A", "mine"),
    "schema, B": make_row(USER, ["bad", "good"], "B", "mine"),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_preference(form: str, tmp_path: Path) -> None:
    (row,) = train_rows(tmp_path, "pairwise", [FORMS[form]])
    assert row["input"] == USER
    assert get_responses(row)["AB".index(get_label(row, "pairwise"))] == "good"
    assert set(get_responses(row)) == {"good", "bad"}
    assert row["source"] == ("mine" if "schema" in form else "in")


@pytest.mark.parametrize("form", [form for form in FORMS if "schema" not in form])
def test_a_preference_gives_two_pointwise_rows(form: str, tmp_path: Path) -> None:
    rows = train_rows(tmp_path, "pointwise", [FORMS[form]], chosen_score=3, rejected_score=1)
    assert [(get_responses(row), get_label(row, "pointwise")) for row in rows] == [(["good"], 3), (["bad"], 1)]


def test_ratings_and_the_schema_are_pointwise_rows(tmp_path: Path) -> None:
    rated = {"prompt": "Why?", "response": "good", "helpfulness": 2, "source": "survey", "reason": "so-so"}
    rows = train_rows(tmp_path, "pointwise", [rated, make_row(USER, ["bad"], 0, "mine")])
    assert [(get_label(row, "pointwise"), row["source"], row["reason"]) for row in rows] == [
        (2, "survey", "so-so"),
        (0, "mine", None),
    ]


@pytest.mark.parametrize("mode", ["pairwise", "pointwise"])
def test_ties_are_left_out_and_counted(mode: str, tmp_path: Path) -> None:
    ties = [
        {**FORMS["A and B"], "preferred": "tie", "response_b": "as good"},
        {"prompt": "Why?", "chosen": "same", "rejected": "same "},
    ]
    if mode == "pairwise":
        ties.append(make_row(USER, ["x", "y"], "tie", "mine"))
    records = [*ties, FORMS["texts"]]
    summary = converted(tmp_path, mode, records, **ALL)
    assert summary["ties_left_out"] == len(ties)
    assert summary["rows"]["train"] == (1 if mode == "pairwise" else 2)
    assert json.loads((tmp_path / "out" / "summary.json").read_text()) == summary


@pytest.mark.parametrize("order", ["A", "B"])
def test_each_side_wins_half_whatever_the_files_order(order: str, tmp_path: Path) -> None:
    form = FORMS["A and B" if order == "A" else "B and A"]
    rows = train_rows(tmp_path, "pairwise", numbered(form, 101), seed=7)
    labels = [get_label(row, "pairwise") for row in rows]
    assert (labels.count("A"), labels.count("B")) == (51, 50)
    assert labels != sorted(labels)
    assert all(get_responses(row)["AB".index(label)] == "good" for row, label in zip(rows, labels, strict=True))


@pytest.mark.parametrize("seed", range(5))
def test_each_side_is_right_equally_often_besides_ties(seed: int) -> None:
    rows = [make_row(USER, [f"a{n}", f"b{n}"], "tie" if n % 3 == 0 else "A", "") for n in range(540)]
    labels = Counter(get_label(row, "pairwise") for row in balance_order(rows, seed))
    assert labels == {"A": 180, "B": 180, "tie": 180}


def test_seed_decides_the_order_and_double_swap_is_identity() -> None:
    rows = [make_row(USER, [f"a{n}", f"b{n}"], "A", "") for n in range(40)]
    assert balance_order(rows, 1) == balance_order(rows, 1)
    assert balance_order(rows, 1) != balance_order(rows, 2)
    assert swap_row(rows[0]) == make_row(USER, ["b0", "a0"], "B", "")
    assert swap_row(swap_row(rows[0])) == rows[0]


def test_rows_of_a_query_share_a_split_that_more_data_keeps(tmp_path: Path) -> None:
    records = [{"prompt": f"Why {n % 60}?", "chosen": f"good {n}", "rejected": "bad"} for n in range(180)]
    parts = []
    for count in (120, 180):
        folder = tmp_path / f"out{count}"
        path = jsonl(tmp_path / "in.jsonl", records[:count])
        convert(JudgeOptions(mode="pairwise", inputs=[str(path)], out=str(folder), test_share=0.2))
        tables = {name: read_judge_table(folder / f"{name}.parquet", "pairwise") for name in SPLITS}
        parts.append({name: {format_query(row["input"]) for row in rows} for name, rows in tables.items()})
    assert parts[0] == parts[1]
    train, validation, test = parts[0].values()
    assert not train & validation
    assert not (train | validation) & test
    assert 3 <= len(test) <= 25


@pytest.mark.parametrize(
    ("record", "mode", "problem"),
    [
        ([1], "pairwise", "a list, not an object; write"),
        ({"prompt": "Why?"}, "pairwise", "unknown format with the columns prompt; give prompt with chosen"),
        ({"prompt": "Why?", "response": " ", "helpfulness": 4}, "pointwise", "`response` has no text"),
        ({"prompt": "Why?", "chosen": None, "rejected": "x"}, "pairwise", "`chosen` has no text"),
        ({"prompt": "Why?", "chosen": "x", "rejected": ""}, "pairwise", "`rejected` has no text"),
        ({"chosen": "x", "rejected": "y"}, "pairwise", "`prompt` is neither text nor messages"),
        ({"prompt": "Why?", "chosen": [*USER], "rejected": [BAD]}, "pairwise", "does not end with the assistant's"),
        ({"chosen": [*USER, GOOD], "rejected": [*USER, *USER, BAD]}, "pairwise", "differ before the response"),
        ({"prompt": [GOOD], "chosen": "x", "rejected": "y"}, "pairwise", "does not end with the user's message"),
        ({**FORMS["A and B"], "preferred": "C"}, "pairwise", "`preferred` is none of 'A', 'B', 'tie'"),
        (make_row(USER, ["x"], 9, ""), "pointwise", "whole number from 0 to 4"),
    ],
)
def test_a_broken_record_is_reported_with_file_line_and_fix(
    record: Any, mode: str, problem: str, tmp_path: Path
) -> None:
    good = FORMS["texts"]
    with pytest.raises(UserError) as error:
        converted(tmp_path, mode, [good, record])
    assert str(error.value).startswith(f"{tmp_path / 'in.jsonl'}: line 2: ")
    assert problem in str(error.value)
    assert "; " in str(error.value)
    assert not (tmp_path / "out").exists()


def test_files_and_settings_that_cannot_be_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "broken.jsonl").write_text('{"prompt": \n')
    good = str(jsonl(tmp_path / "in.jsonl", [FORMS["texts"]]))
    (tmp_path / "there").mkdir()
    for arguments, *messages in (
        (["--input", str(tmp_path / "none.jsonl"), "--out", "x"], "none.jsonl: no such file"),
        (["--input", good, str(tmp_path / "broken.jsonl"), "--out", "x"], "broken.jsonl: line 1:"),
        (["--input", good, "--out", str(tmp_path / "there")], str(tmp_path / "there"), "[output.already-there]"),
        (
            ["--input", good, "--out", "x", "--test-share", "0.95"],
            "--test-share 0.95",
            "[preferences.shares-too-large]",
        ),
        (
            ["--input", good, "--out", "x", "--chosen-score", "7"],
            "--chosen-score 7",
            "[preferences.score-out-of-range]",
        ),
        (["--input", good, "--out", "x", "--criteria", "none.yaml"], "none.yaml"),
        (["--input", good, "--out", "x", "--format", "llmbar"], "no `input`, `output_1`, `output_2`, `label`"),
    ):
        assert judge.main(["--mode", "pairwise", *arguments]) == 2
        printed = capsys.readouterr().err
        assert all(message in printed for message in messages)


def test_a_benchmark_is_all_test(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = jsonl(tmp_path / "in.jsonl", numbered(FORMS["texts"], 30))
    arguments = ["--mode", "pairwise", "--input", str(path), "--out", str(tmp_path / "out"), "--test-share", "1"]
    assert judge.main(arguments) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == {"train": 0, "validation": 0, "test": 30}
    assert len(read_judge_table(tmp_path / "out" / "test.parquet", "pairwise")) == 30
    assert not (tmp_path / "out" / "train.parquet").exists()


def test_ties_are_labelled_rows_of_test_alone(tmp_path: Path) -> None:
    records = numbered({**FORMS["A and B"], "preferred": "tie"}, 40)
    records += [record | {"prompt": f"How{record['prompt']}"} for record in numbered(FORMS["texts"], 40)]
    summary, out = converted(tmp_path, "pairwise", records, test_share=0.5), tmp_path / "out"
    tied = summary["labels"]["test"]["tie"]
    assert 10 < tied < 30
    assert summary["ties_left_out"] == 40 - tied
    assert "tie" not in summary["labels"]["train"] | summary["labels"]["validation"]
    with pytest.raises(UserError, match="tie"):
        read_judge_table(out / "test.parquet", "pairwise")  # as training reads it
    rows = read_judge_table(out / "test.parquet", "pairwise", ties=True)
    assert [get_label(row, "pairwise") for row in rows].count("tie") == tied


def test_both_orders_of_a_pair_are_neighbours_in_train_alone(tmp_path: Path) -> None:
    summary = converted(tmp_path, "pairwise", numbered(FORMS["texts"], 60), both_orders_in_train=True)
    rows = read_judge_table(tmp_path / "out" / "train.parquet", "pairwise")
    assert len(rows) == summary["rows"]["train"] == 2 * (60 - summary["rows"]["test"] - summary["rows"]["validation"])
    assert [swap_row(row) for row in rows[::2]] == rows[1::2]
    assert summary["labels"]["train"] == {"A": len(rows) // 2, "B": len(rows) // 2}


def test_criteria_ship_with_the_data_and_reach_the_judge(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text("task: Rate how polite it is.\nprinciples: [Rude words count double.]\nscores: [1, 5]\n")
    records = [FORMS["texts"], {"prompt": "How?", "response": "so", "helpfulness": 5}]
    rows = train_rows(tmp_path, "pointwise", records, criteria=str(own))
    assert [get_label(row, "pointwise") for row in rows] == [5, 1, 5]  # chosen and rejected: the ends of the scale
    (message,) = build_prompt(rows[0], "pointwise")
    assert message["content"].startswith("Rate how polite it is.\n\nPrinciples:\n1. Rude words count double.\n")
    assert message["content"].endswith("<score>1-5</score>")
    assert read_criteria(tmp_path / "out" / "criteria.yaml", "pointwise") == rows[0]["criteria"]
    zero = jsonl(tmp_path / "zero.jsonl", [{"prompt": "How?", "response": "so", "helpfulness": 0}])
    with pytest.raises(UserError, match="`helpfulness` is not a whole number from 1 to 5"):
        convert(JudgeOptions(mode="pointwise", inputs=[str(zero)], out=str(tmp_path / "other"), criteria=str(own)))


# ---- demonstrations


@pytest.mark.parametrize("mode", ["pairwise", "pointwise"])
def test_demonstrations_fit_sft_and_have_the_right_verdict(mode: str, tmp_path: Path) -> None:
    record = FORMS["texts"] if mode == "pairwise" else {"prompt": "Why?", "response": "x", "helpfulness": 3}
    rows = train_rows(tmp_path, mode, numbered(record | {"reason": "because"}, 3))
    data, out = tmp_path / "out" / "train.parquet", tmp_path / "sft.parquet"
    assert judge_demonstrations.main(["--mode", mode, "--data", str(data), "--out", str(out)]) == 0
    assert validate_sft_table(out) == (3, [])
    verdict = parse_preference_verdict if mode == "pairwise" else parse_score_verdict
    for row, demonstration in zip(rows, pq.read_table(out).to_pylist(), strict=True):
        # arrow orders a struct's fields by its schema
        assert demonstration["prompt"] == build_prompt(row, mode)
        text = demonstration["completion"][0]["content"]
        assert text.startswith("<think>\nbecause\n</think>\n\n")
        assert verdict(text) == get_label(row, mode)


def test_another_judges_right_answers_as_demonstrations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = train_rows(tmp_path, "pairwise", numbered(FORMS["texts"], 4))
    data, answers, out = tmp_path / "out" / "train.parquet", tmp_path / "rows.parquet", tmp_path / "sft.parquet"
    right = [f"<think>{n}</think><better>{get_label(row, 'pairwise')}</better>" for n, row in enumerate(rows)]
    texts = [right[0], "no verdict", "<think><better>A</better>", right[3]]
    queries = [format_query(row["input"]) for row in rows]
    pq.write_table(pa.table({"row": [0, 1, 2, 3], "query": queries, "text": texts}), answers)
    arguments = ["--mode", "pairwise", "--data", str(data), "--answers", str(answers)]
    assert judge_demonstrations.main([*arguments, "--out", str(out)]) == 0
    assert [row["completion"][0]["content"] for row in pq.read_table(out).to_pylist()] == [right[0], right[3]]
    assert judge_demonstrations.main([*arguments, "--out", str(out)]) == 2  # never overwritten
    pq.write_table(pa.table({"row": [1, 2], "query": queries[1:3], "text": ["none", None]}), answers)
    assert judge_demonstrations.main([*arguments, "--out", str(tmp_path / "none.parquet")]) == 2  # none is right
    for row, query in ((9, queries[0]), (1, queries[0]), (None, queries[0])):  # another split's, say
        pq.write_table(pa.table({"row": [row], "query": [query], "text": [right[0]]}), answers)
        assert judge_demonstrations.main([*arguments, "--out", str(tmp_path / "other.parquet")]) == 2
        printed = capsys.readouterr().err
        assert f"row {row} " in printed
        assert "[preferences.answers-to-other-rows]" in printed


# ---- the generated sample


def test_the_samples_labels_follow_from_its_texts() -> None:
    for record in make_preferences(200, seed=1):
        genre = record["reason"].removeprefix("asked for ")
        assert genre in record["prompt"]
        assert genre in record["chosen"]
        assert genre not in record["rejected"].split(", ")[-1]
    scores = set()
    for record in make_ratings(200, seed=1):
        genre = record["reason"].removeprefix("asked for ")
        claim = record["response"].split(", ")[-1]
        named, fits = claim.removesuffix(" film."), genre in claim
        expected = {(True, False): 4, (True, True): 3, (False, True): 1}.get((fits, " and " in named))
        if expected is None:
            expected = 2 if claim == "a film." else 0
        assert record["helpfulness"] == expected
        scores.add(expected)
    assert scores == {0, 1, 2, 3, 4}


def test_the_sample_is_the_same_each_time_and_never_overwritten(tmp_path: Path) -> None:
    first, second = (write_sample(tmp_path / name, count=60) for name in ("a", "b"))
    for file in ("pairwise/train.parquet", "pointwise/train.parquet", "pairwise.jsonl"):
        assert (first / file).read_bytes() == (second / file).read_bytes()
    with refuses("output.already-there", first):
        write_sample(first)
    assert not [name for name in os.listdir(tmp_path) if "partial" in name]
