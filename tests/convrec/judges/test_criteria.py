"""Criteria from a YAML file: what is taken, what is refused, and that they come back as they were written."""

from pathlib import Path

import pytest

from convrec.base.errors import UserError
from convrec.judges.card import write_card
from convrec.judges.criteria import DEFAULTS, Criteria, criteria_text, parse_criteria, read_criteria
from convrec.judges.prompt import MODES

OWN = "task: Rate it.\nprinciples: [Be strict., Be fair.]\n"


@pytest.mark.parametrize("mode", MODES)
def test_default_criteria_round_trip_and_include_safety(mode: str) -> None:
    assert parse_criteria(criteria_text(DEFAULTS[mode], mode), mode, "defaults") == DEFAULTS[mode]
    assert any("safe" in principle for principle in DEFAULTS[mode].principles)  # as in the recipe that this follows


def test_own_criteria() -> None:
    assert parse_criteria(OWN, "pairwise", "own") == Criteria("Rate it.", ("Be strict.", "Be fair."))
    assert parse_criteria(OWN + "scores: [1, 10]", "pointwise", "own").scores == (1, 10)


@pytest.mark.parametrize(
    ("text", "mode", "said"),
    [
        ("- a", "pairwise", "own.yaml: it has list; criteria of a pairwise judge are task, principles"),
        ("task: [", "pairwise", "own.yaml: not readable as YAML"),
        (OWN + "scores: [0, 4]", "pairwise", "it has task, principles, scores"),
        (OWN + "score: [0, 4]", "pointwise", "it has task, principles, score; .* are task, principles, scores"),
        ("principles: [x]", "pairwise", "`task` is no text"),
        ("task: x\nprinciples: y", "pairwise", "`principles` is no list of texts"),
        ("task: x\nprinciples: []", "pairwise", "`principles` is no list of texts"),
        ("task: x\nprinciples: [1]", "pairwise", "`principles` is no list of texts"),
        (OWN + "scores: 5", "pointwise", "`scores` is not the lowest and the highest"),
        (OWN + "scores: [0, 4.5]", "pointwise", "`scores` is not the lowest and the highest"),
        (OWN + "scores: [4, 0]", "pointwise", "`scores` .*: from 0 or more up"),
        (OWN + "scores: [-1, 1]", "pointwise", "from 0 or more up"),
        (OWN + "scores: [0, 1000]", "pointwise", "at most 101 different scores"),
    ],
)
def test_what_is_refused_and_why(text: str, mode: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(text)
    with pytest.raises(UserError, match=said):
        read_criteria(tmp_path / "own.yaml", mode)
    with pytest.raises(UserError, match=r"none\.yaml: no such file"):
        read_criteria(tmp_path / "none.yaml", "pairwise")


def test_a_models_card_has_its_criteria_and_how_it_is_asked(tmp_path: Path) -> None:
    own = Criteria("Rate how polite it is.", ("Rude words count double.",), (1, 5))
    write_card(tmp_path, "pointwise", own, "Qwen/Qwen3-8B", "12 rows: survey")
    assert read_criteria(tmp_path / "criteria.yaml", "pointwise") == own
    card = (tmp_path / "README.md").read_text()
    for part in ("base_model: Qwen/Qwen3-8B", "12 rows: survey", "Rude words count double.", "<score>1-5</score>"):
        assert part in card
