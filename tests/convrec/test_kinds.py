"""A setting's kind is its check, and what an error and the documentation say of it."""

from dataclasses import dataclass

import pytest

from convrec import kinds
from convrec.errors import UserError
from convrec.kinds import BOOLEAN, CHARACTER, NON_NEGATIVE_INTEGER, PERCENTAGE, POSITIVE_INTEGER, one_of, setting


@dataclass(frozen=True)
class Settings:
    num_items: int = setting(20, POSITIVE_INTEGER, "items")
    shape: str = setting("round", one_of(("round", "square")), "of an item")
    gamma: float | None = setting(None, PERCENTAGE.or_null(), "a share")


GOOD = {"num_items": 3, "shape": "square", "gamma": 50.0}


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (POSITIVE_INTEGER, [1, 20], [0, -1, 1.0, "1", True, None]),
        (NON_NEGATIVE_INTEGER, [0, 2], [-1, 0.5, False]),
        (PERCENTAGE, [0.1, 90, 100], [0, 100.5, float("nan"), "90", True]),
        (BOOLEAN, [True, False], [0, 1, "true", None]),
        (CHARACTER, ["\n", "|"], ["", "ab", "、", 1]),
        (one_of({"a": 1, "b": 2}), ["a", "b"], ["c", None, ["a"]]),
        (POSITIVE_INTEGER.or_null(), [None, 1], [0]),
    ],
)
def test_a_kind_takes_its_values_and_no_others(kind, good, bad):
    assert [value for value in good if not kind.fits(value)] == []
    assert [value for value in bad if kind.fits(value)] == []


def test_good_values_pass():
    kinds.check(GOOD, Settings, "convrec.")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"num_items": 0}, "convrec.num_items=0: expected a positive integer"),
        ({"num_items": True}, "convrec.num_items=true: expected a positive integer"),
        ({"shape": "roun"}, "convrec.shape=roun: expected one of round, square"),
        ({"shape": "\n"}, "convrec.shape=\\n: expected one of round, square"),
        ({"gamma": 0}, "convrec.gamma=0: expected a number above 0, at most 100, or null"),
        ({"numitems": 5}, "convrec.numitems: no such setting; did you mean convrec.num_items?"),
        ({"zzz": 5}, "convrec.zzz: no such setting; there are convrec.num_items, convrec.shape, convrec.gamma"),
    ],
)
def test_an_error_names_the_setting_its_value_and_what_it_may_be(change, said):
    with pytest.raises(UserError) as error:
        kinds.check(GOOD | change, Settings, "convrec.")
    assert str(error.value) == said


def test_a_setting_that_is_missing_is_told_with_its_default():
    with pytest.raises(UserError, match="gamma: missing; its default is null"):
        kinds.check({"num_items": 3, "shape": "round"}, Settings)


def test_the_documentations_rows():
    assert kinds.rows(Settings) == [
        ("num_items", "20", "a positive integer", "items"),
        ("shape", "round", "one of round, square", "of an item"),
        ("gamma", "null", "a number above 0, at most 100, or null", "a share"),
    ]
