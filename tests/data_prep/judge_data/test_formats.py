"""A record of each data set, as its card describes it, is recognised by its columns and read."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from convrec.judges.schema import get_label, get_responses, make_row, read_judge_table
from data_prep.judge import convert
from data_prep.judge_data.formats import FORMATS, Comparison, Rating, find_source, parse_record
from data_prep.options.judge import JudgeOptions
from tests.user_errors import refuses_record

OFF_SCALE = "preferences.not-on-the-scale"
USER = [{"role": "user", "content": "Why?"}]
TALK = [*USER, {"role": "assistant", "content": "Which?"}, {"role": "user", "content": "That."}]


def better(*pairs: tuple[str, str], tie: bool = False) -> list[Comparison]:
    return [Comparison(USER, one, other, tie) for one, other in pairs]


RATED = [{"model": "x", "response": "good", "overall_score": 10.0, "fine-grained_score": 4.75}]
RATED += [{"model": "y", "response": "so-so", "overall_score": "6", "fine-grained_score": 3.5}]
MINE = make_row(USER, ["good", "bad"], "A", "mine")
RECORDS: dict[str, tuple[dict[str, Any], list[Any]]] = {
    "reward_bench_2": (
        {"id": "12", "prompt": "Why?", "chosen": ["good"], "rejected": ["bad", "worse", "worst"], "num_correct": 1,
         "num_incorrect": 3, "subset": "Factuality"},
        better(("good", "bad"), ("good", "worse"), ("good", "worst")),
    ),
    "chosen_rejected": (
        {"prompt": "Why?", "chosen": "good", "chosen_model": "x", "rejected": "bad", "rejected_model": "y",
         "subset": "llmbar-natural", "id": 30},
        better(("good", "bad")),
    ),
    "judge_bench": (
        {"pair_id": "81ec57f2", "original_id": "10646", "source": "mmlu-pro-law", "question": "Why?",
         "response_model": "m", "response_A": "bad", "response_B": "good", "label": "B>A"},
        better(("good", "bad")),
    ),
    "llmbar": ({"input": "Why?", "output_1": "bad", "output_2": "good", "label": 2}, better(("good", "bad"))),
    "response_a_b": (
        {"prompt": "Why?", "response_a": "good", "response_b": "bad", "preferred": "A"}, better(("good", "bad")),
    ),
    "helpsteer2_preference": (
        {"split": "train", "prompt": "Why?", "response_1": "bad", "response_2": "good", "preference_strength": 2},
        better(("good", "bad")),
    ),
    "helpsteer3": (
        {"domain": "code", "language": "python", "context": TALK, "response1": "good", "response2": "bad",
         "overall_preference": -1},
        [Comparison(TALK, "good", "bad")],
    ),
    "ratings": (
        {"prompt": "Why?", "response": "so-so", "helpfulness": 3, "correctness": 4, "coherence": 4, "complexity": 2},
        [Rating(USER, "so-so", 3, 3)],
    ),
    "ultra_feedback": (  # (6 - 1) / 9 x 4 = 2.2
        {"source": "sharegpt", "instruction": "Why?", "models": ["x", "y"], "completions": RATED},
        [Rating(USER, "good", 4, 10.0), Rating(USER, "so-so", 2, 6.0)],
    ),
    "rows": (MINE, [MINE]),
}  # fmt: skip


def test_every_format_is_tested() -> None:
    assert RECORDS.keys() == FORMATS.keys()


@pytest.mark.parametrize("name", FORMATS)
def test_a_record_is_recognised_by_its_columns(name: str) -> None:
    record, items = RECORDS[name]
    assert parse_record(record) == parse_record(record, name) == items


def test_sources_are_what_benchmarks_are_reported_by() -> None:
    sources = {name: find_source(record, "file") for name, (record, _) in RECORDS.items()}
    assert sources["reward_bench_2"] == "Factuality"
    assert sources["judge_bench"] == "mmlu-pro-law"
    assert sources["helpsteer3"] == "code"
    assert sources["ratings"] == "file"


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("chosen_rejected", {"score_chosen": 7.5, "score_rejected": 7.5}),
        ("judge_bench", {"label": "A=B"}),
        ("response_a_b", {"preferred": "tie"}),
        ("helpsteer2_preference", {"preference_strength": 0}),
        ("helpsteer3", {"overall_preference": 0}),
    ],
)
def test_a_tie_is_distinguished_from_a_preference(name: str, changes: dict[str, Any]) -> None:
    (item,) = parse_record(RECORDS[name][0] | changes)
    assert item.tie


def test_the_subset_ties_of_reward_bench_2() -> None:
    """Every response is compared at least once, and neighbouring right responses are ties."""
    record = {"prompt": "Why?", "chosen": list("abc"), "rejected": list("wxyz"), "subset": "Ties"}
    items = parse_record(record)
    compared = better(("a", "w"), ("b", "x"), ("c", "y"), ("a", "z"))
    assert items == compared + better(("a", "b"), ("b", "c"), tie=True)
    assert parse_record(record | {"subset": "Math"}) == compared


def test_ultra_feedback_binarized_has_scores_that_differ() -> None:
    chosen = [*USER, {"role": "assistant", "content": "good"}]
    rejected = [*USER, {"role": "assistant", "content": "bad"}]
    record = {"prompt": "Why?", "prompt_id": "1", "chosen": chosen, "rejected": rejected, "messages": chosen}
    assert parse_record(record | {"score_chosen": 8.0, "score_rejected": 4.0}) == better(("good", "bad"))


def test_a_conversation_in_one_text_of_help_steer() -> None:
    prompt = "Why?\n<extra_id_1>Assistant\nWhich?\n<extra_id_1>User\nThat."
    (item,) = parse_record({"prompt": prompt, "response": "x", "helpfulness": 1})
    assert item.messages == TALK


@pytest.mark.parametrize(
    ("name", "changes", "code", "value"),
    [
        ("reward_bench_2", {"rejected": []}, "preferences.no-responses", "`rejected`"),
        ("reward_bench_2", {"rejected": ["bad", None]}, "preferences.no-text", "`rejected`"),
        ("judge_bench", {"label": "A"}, "preferences.unknown-label", "'A>B', 'B>A', 'A=B'"),
        ("llmbar", {"label": True}, "preferences.unknown-label", "`label`"),
        ("llmbar", {"label": [1]}, "preferences.unknown-label", "`label`"),
        ("helpsteer3", {"overall_preference": 4}, OFF_SCALE, "`overall_preference` is not a number from -3 to 3"),
        ("helpsteer3", {"context": TALK[:2]}, "preferences.last-of-prompt", ""),
        ("ratings", {"helpfulness": 3.5}, OFF_SCALE, "`helpfulness` is not a whole number from 0 to 4"),
        ("ratings", {"helpfulness": "high"}, OFF_SCALE, "`helpfulness`"),
        ("ratings", {"helpfulness": True}, OFF_SCALE, "`helpfulness`"),
        ("ultra_feedback", {"completions": "x"}, "preferences.not-completions", "`completions`"),
        ("ultra_feedback", {"completions": [{"response": "x"}]}, OFF_SCALE, "`overall_score` is not a number from 1"),
    ],
)
def test_a_broken_record_is_refused(name: str, changes: dict[str, Any], code: str, value: str) -> None:
    with refuses_record(code, value):
        parse_record(RECORDS[name][0] | changes)


def test_a_forced_format_whose_columns_are_missing() -> None:
    with refuses_record("preferences.missing-column", "`question`, `response_A`, `response_B`, `label`"):
        parse_record(RECORDS["ratings"][0], "judge_bench")


def test_reward_bench_2_in_both_modes(tmp_path: Path) -> None:
    """A record as the parquet of RewardBench 2 has it."""
    pq.write_table(pa.Table.from_pylist([RECORDS["reward_bench_2"][0]]), tmp_path / "test.parquet")
    for mode, count in (("pairwise", 3), ("pointwise", 4)):
        path = str(tmp_path / "test.parquet")
        convert(JudgeOptions(mode=mode, inputs=[path], out=str(tmp_path / mode), test_share=1.0))
        rows = read_judge_table(tmp_path / mode / "test.parquet", mode)
        assert len(rows) == count
        assert {row["source"] for row in rows} == {"Factuality"}
        labels = {get_responses(row)[0]: get_label(row, "pointwise") for row in rows} if mode == "pointwise" else {}
        assert labels in ({}, {"good": 4, "bad": 0, "worse": 0, "worst": 0})


def test_the_shared_llmbar_is_read_whole(shared_dir: Path, tmp_path: Path) -> None:
    path = str(shared_dir / "data" / "llmbar" / "llmbar.jsonl")
    summary = convert(JudgeOptions(mode="pairwise", inputs=[path], out=str(tmp_path / "out"), test_share=1.0))
    assert summary["records"] == 419
    assert sum(summary["rows"].values()) + summary["identical_left_out"] + summary["contradictory_left_out"] == 419
    assert len(summary["sources"]) > 1
