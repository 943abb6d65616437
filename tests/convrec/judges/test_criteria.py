"""Criteria from a YAML file: valid and invalid ones, and the round trip."""

from pathlib import Path

import pytest

from convrec.judges.card import write_card
from convrec.judges.criteria import DEFAULTS, Criteria, format_criteria, parse_criteria, read_criteria
from convrec.judges.prompt import MODES
from tests.user_errors import refuses

OWN = "task: Rate it.\nprinciples: [Be strict., Be fair.]\n"


@pytest.mark.parametrize("mode", MODES)
def test_default_criteria_round_trip_and_include_safety(mode: str) -> None:
    assert parse_criteria(format_criteria(DEFAULTS[mode], mode), mode, "defaults") == DEFAULTS[mode]
    assert any("safe" in principle for principle in DEFAULTS[mode].principles)  # as in the cookbook's recipe


def test_custom_criteria_are_parsed() -> None:
    assert parse_criteria(OWN, "pairwise", "own") == Criteria("Rate it.", ("Be strict.", "Be fair."))
    assert parse_criteria(OWN + "scores: [1, 10]", "pointwise", "own").scores == (1, 10)


@pytest.mark.parametrize(
    ("text", "mode", "code", "values"),
    [
        ("- a", "pairwise", "criteria.unknown-key", ["list", "task, principles"]),
        ("task: [", "pairwise", "criteria.invalid-yaml", []),
        (OWN + "scores: [0, 4]", "pairwise", "criteria.unknown-key", ["task, principles, scores"]),
        (OWN + "score: [0, 4]", "pointwise", "criteria.unknown-key", ["principles, score,", "principles, scores"]),
        ("principles: [x]", "pairwise", "criteria.task", []),
        ("task: x\nprinciples: y", "pairwise", "criteria.principles", []),
        ("task: x\nprinciples: []", "pairwise", "criteria.principles", []),
        ("task: x\nprinciples: [1]", "pairwise", "criteria.principles", []),
        (OWN + "scores: 5", "pointwise", "criteria.scores", ["5"]),
        (OWN + "scores: [0, 4.5]", "pointwise", "criteria.scores", ["[0, 4.5]"]),
        (OWN + "scores: [4, 0]", "pointwise", "criteria.scores", ["[4, 0]"]),
        (OWN + "scores: [-1, 1]", "pointwise", "criteria.scores", ["[-1, 1]"]),
        (OWN + "scores: [0, 1000]", "pointwise", "criteria.scores", ["[0, 1000]", "at most 101"]),
    ],
)
def test_invalid_criteria_are_refused(text: str, mode: str, code: str, values: list[str], tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(text)
    with refuses(code, "own.yaml", *values):
        read_criteria(tmp_path / "own.yaml", mode)


def test_missing_and_unreadable_criteria_are_refused(tmp_path: Path) -> None:
    with refuses("criteria.missing-file", "none.yaml"):
        read_criteria(tmp_path / "none.yaml", "pairwise")
    (tmp_path / "latin.yaml").write_bytes("task: Bewerte, wie höflich es ist.".encode("latin-1"))
    with refuses("criteria.unreadable-file", "latin.yaml"):
        read_criteria(tmp_path / "latin.yaml", "pairwise")


def test_a_models_card_has_its_criteria_and_prompt(tmp_path: Path) -> None:
    own = Criteria("Rate how polite it is.", ("Rude words count double.",), (1, 5))
    write_card(tmp_path, "pointwise", own, "Qwen/Qwen3-8B", "12 rows: survey")
    assert read_criteria(tmp_path / "criteria.yaml", "pointwise") == own
    card = (tmp_path / "README.md").read_text()
    for part in ("base_model: Qwen/Qwen3-8B", "12 rows: survey", "Rude words count double.", "<score>1-5</score>"):
        assert part in card
