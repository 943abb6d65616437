"""A judge behind an API is evaluated as a whole: where it is asked, how its answers are read, what is reported."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from convrec.judges.criteria import DEFAULTS, FILE, Criteria, format_criteria
from convrec.judges.schema import judge_schema, make_row
from data_prep.judge_demonstrations import read_answers
from recipes import evaluate
from recipes.judge.evaluation import _check_criteria, _resolve_judge

Behave = Callable[[dict, int], Any]


@pytest.fixture
def asked(chat_server: Callable[[Behave], Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., dict]:
    """Evaluates a judge at JUDGE_BASE_URL; returns metrics.json."""

    def run(behave: Behave, mode: str, rows: list[dict], *more: str, criteria: Criteria | None = None) -> dict:
        for name in ("LLM_BASE_URL", "LLM_MODEL", "JUDGE_MODEL"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("JUDGE_BASE_URL", chat_server(behave).url)
        pq.write_table(pa.Table.from_pylist(rows, judge_schema(mode, criteria)), tmp_path / "rows.parquet")
        arguments = ["--judge", mode, "--model", "api:some-judge", "--data", str(tmp_path / "rows.parquet")]
        assert evaluate.main([*arguments, "--out", str(tmp_path / "out"), *more]) == 0
        return json.loads((tmp_path / "out" / "metrics.json").read_text())

    return run


def pair(query: str, first: str, second: str, label: str, source: str = "test") -> dict[str, Any]:
    return make_row([{"role": "user", "content": query}], [first, second], label, source)


def prefers_good(body: dict, count: int) -> str:
    """Knows what is good, in whatever order; asked about `odd`, always says A; about `?`, has no verdict."""
    text = body["messages"][0]["content"]
    first = text.partition("Response A:\n```\n")[2].partition("\n")[0]
    letter = "A" if "odd" in text or first == "good" else "B"
    return "I cannot say." if "?" in text else f"<think>{first}</think><better>{letter}</better>"


ROWS = [
    pair("one", "good", "bad", "A", "math"),
    pair("two", "bad", "good", "B", "math"),
    pair("odd", "good", "bad", "A", "chat"),
    pair("three?", "good", "bad", "A", "chat"),
    pair("odd, and as good", "good", "good too", "tie", "chat"),
]


def test_a_run_is_evaluated_as_a_judge_at_its_best_checkpoint(validated_run: Path) -> None:
    for choice, step in (("", 100), ("@last", 200)):
        folder = validated_run / f"global_step_{step}" / "actor" / "huggingface"
        assert _resolve_judge(f"{validated_run}{choice}") == str(folder)


def test_api_judge_gets_the_given_sampling_parameters(asked: Callable[..., dict]) -> None:
    sent: list[dict] = []

    def answer(body: dict, count: int) -> str:
        sent.append(body)
        return prefers_good(body, count)

    metrics = asked(answer, "pairwise", ROWS[:1], "--sampling", '{"temperature": null, "top_p": 0.9}')
    assert {(body.get("temperature"), body["top_p"]) for body in sent} == {(None, 0.9)}
    assert metrics["settings"]["sampling"] == {"temperature": None, "top_p": 0.9}


def test_a_pairwise_judge_is_asked_at_its_own_address(asked: Callable[..., dict], capsys: Any) -> None:
    results = asked(prefers_good, "pairwise", ROWS)["results"]
    assert (results["n"], results["ties"]["n"]) == (4, 1)
    assert results["accuracy"]["mean"] == 3 / 4
    assert results["right_both_ways"]["mean"] == 2 / 4
    assert (results["inconsistent"]["mean"], results["no_verdict"]["mean"]) == (1 / 4, 1 / 4)
    assert results["ties"]["tied"]["mean"] == 1
    assert results["by_source"]["math"]["right_both_ways"]["mean"] == 1
    printed = capsys.readouterr().out
    for part in (
        "right_both_ways",
        "of 1 ties: tied 1.0000",
        "by source:\n  chat",
        "by label:\n  A",
    ):
        assert part in printed
    assert "0.7500 for a constant verdict" in printed  # three of four are A


def test_an_answer_cut_off_while_it_thinks_has_no_verdict(asked: Callable[..., dict], tmp_path: Path) -> None:
    choice = {"message": {"content": "Is it <better>A</better>? Or"}, "finish_reason": "length"}
    reply = json.dumps({"choices": [choice], "usage": None})
    metrics = asked(lambda body, count: (200, {}, reply), "pairwise", ROWS[:2])
    assert metrics["results"]["no_verdict"]["mean"] == 1
    assert metrics["generation"]["unfinished_responses"] == 4
    # nor for what reads the texts later
    assert read_answers(tmp_path / "out" / "rows.parquet", ROWS[:2])[0].startswith("<think>")


def test_a_pointwise_judge_of_other_criteria(asked: Callable[..., dict]) -> None:
    """Scores of 1 to 3, by length: right but for `bad`, which gets as much as `fine`."""
    responses = {"ok": 1, "bad": 1, "fine": 2, "excellent": 3}
    rows = [make_row([{"role": "user", "content": "Why?"}], [text], score, "test") for text, score in responses.items()]

    def by_length(body: dict, count: int) -> str:
        text = body["messages"][0]["content"]
        assert text.startswith("Count letters.")
        response = text.partition("Response:\n```\n")[2].partition("\n")[0]
        return f"<think>.</think><score>{min(3, 1 + len(response) // 3)}</score>"

    criteria = Criteria("Count letters.", ("Nothing else.",), (1, 3))
    results = asked(by_length, "pointwise", rows, criteria=criteria)["results"]
    assert results["exact_match"]["mean"] == 3 / 4
    assert results["reward"]["mean"] == 3 / 4  # 1 and 2 want exactly that score
    assert results["best_of_n"]["mean"] == 1
    # ok, bad: equal truth; ok < fine, ok < excellent, bad = fine, bad < excellent, fine < excellent
    assert results["pair_ranking"]["mean"] == (4 + 0.5) / 5
    # always 1: 2 of 4 exact, (0 + 0 + 1 + 2) / 4 off; always 3 earns 1 - 2/2, 1 - 2/2 for true 1: none; 1 for 3
    assert results["baseline"]["exact_match"] == 2 / 4
    assert results["baseline"]["reward"] == 2 / 4
    assert results["baseline"]["best_of_n"] == 1 / 4


def test_evaluations_are_compared_on_rows_with_a_better_response(
    asked: Callable[..., dict], tmp_path: Path, capsys: Any
) -> None:
    asked(lambda body, count: "<better>A</better>", "pairwise", ROWS)
    (tmp_path / "out").rename(tmp_path / "before")
    metrics = asked(prefers_good, "pairwise", ROWS, "--against", str(tmp_path / "before"))
    paired = metrics["paired"]
    assert paired["n"] == 4
    assert paired["right_both_ways"]["mean"] == 2 / 4
    assert paired["accuracy"]["mean"] == 3 / 4 - 3 / 4
    turned = [pair("one", "bad", "good", "B", "math"), *ROWS[1:]]  # another draw of the same rows: nothing is paired
    pq.write_table(pa.Table.from_pylist(turned, judge_schema("pairwise")), tmp_path / "other.parquet")
    command = ["--judge", "pairwise", "--model", "api:some-judge", "--data", str(tmp_path / "other.parquet")]
    assert evaluate.main([*command, "--out", str(tmp_path / "new"), "--against", str(tmp_path / "before")]) == 2
    assert capsys.readouterr().err.endswith("[judge.other-data]\n")


def test_a_judge_of_another_kind_raises_a_warning(tmp_path: Path) -> None:
    trained_by = Criteria("Count letters.", ("Nothing else.",), (1, 3))
    (tmp_path / FILE).write_text(format_criteria(trained_by, "pointwise"))
    (warning,) = _check_criteria(tmp_path, {"criteria": DEFAULTS["pairwise"]}, "pairwise")
    assert "pairwise" in warning
    assert _check_criteria(tmp_path, {"criteria": trained_by}, "pointwise") == []
