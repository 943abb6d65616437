"""Kinds of values: descriptions in errors and documentation, and the same rules for texts and values."""

from typing import Any

import pytest

from convrec.base import kinds
from convrec.base.kinds import Boolean, Character, Fraction, NonNegativeInteger, Percentage, PositiveInteger, one_of
from tests.user_errors import refuses


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (PositiveInteger, [1, 20], [0, -1, 1.0, "1", True, None]),
        (NonNegativeInteger, [0, 2], [-1, 0.5, False]),
        (Percentage, [0.1, 90, 100], [0, 100.5, float("nan"), "90", True]),
        (kinds.PositiveNumber, [1, 0.5], [0, float("inf"), float("nan"), "1"]),
        (Boolean, [True, False], [0, 1, "true", None]),
        (Character, ["\n", "|"], ["", "ab", "、", 1]),
        (one_of({"a": 1, "b": 2}), ["a", "b"], ["c", None, ["a"]]),
    ],
)
def test_a_kind_accepts_its_values_and_no_others(kind: Any, good: list[Any], bad: list[Any]) -> None:
    assert [value for value in good if not kinds.is_valid(kind, value)] == []
    assert [value for value in bad if kinds.is_valid(kind, value)] == []


@pytest.mark.parametrize(
    ("kind", "values", "invalid"),
    [
        (PositiveInteger, {"1": 1, "04": 4}, ["0", "1.5", "5.0", "true", "often", ""]),
        (Fraction, {"00.61": 0.61, "1": 1.0, "1e-2": 0.01}, ["80", "nan", "inf", "true"]),
        (Boolean, {"1": True, "0": False, "true": True, "false": False}, ["yes", "True", "2", ""]),
        (one_of(("a", "1")), {"a": "a", "1": "1"}, ["b"]),
    ],
)
def test_text_is_read_as_a_value_of_its_kind(kind: Any, values: dict[str, Any], invalid: list[str]) -> None:
    assert {text: kinds.read(kind, text) for text in values} == values
    for text in invalid:
        with pytest.raises(ValueError, match=f"^{kinds.describe_type(kind)}$"):
            kinds.read(kind, text)


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (PositiveInteger, 0, "convrec.x=0: expected a positive integer"),
        (PositiveInteger, True, "convrec.x=true: expected a positive integer"),
        (one_of(("round", "square")), "\n", "convrec.x=\\n: expected one of round, square"),
        (Percentage, None, "convrec.x=null: expected a number above 0, at most 100"),
    ],
)
def test_an_error_names_the_setting_its_value_and_its_kind(kind: Any, value: Any, message: str) -> None:
    with refuses("settings.wrong-kind", message):
        kinds.check("convrec.x", value, kind)


def test_an_unknown_name_gets_similar_names_or_all_as_a_hint() -> None:
    assert kinds.did_you_mean("numitems", ["num_items", "shape"], "convrec.") == "did you mean convrec.num_items?"
    assert kinds.did_you_mean("zzz", ["num_items", "shape"]) == "there are num_items, shape"


def test_numbers_are_shown_as_yaml_writes_them() -> None:
    assert [kinds.to_yaml_scalar(value) for value in (5e-05, 1e-10, 0.001, None, True)] == [
        "5e-5",
        "1e-10",
        "0.001",
        "null",
        "true",
    ]
