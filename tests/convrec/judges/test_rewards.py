"""The rewards of both judges: every rule by hand, hostile answers, and the recorded cases of the cookbook."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from convrec.base.errors import UserError
from convrec.judges import pairwise_reward as judge_pairwise
from convrec.judges import pointwise_reward as judge_pointwise
from tests.user_errors import refuses


def pointwise(text: str, truth: object = 4) -> float:
    return judge_pointwise.compute_score("d", text, {"helpfulness": truth})["score"]


def pairwise(text: str, truth: str = "A") -> float:
    return judge_pairwise.compute_score("d", text, {"preference": truth})["score"]


# rows: the true score; columns: the predicted one. 0 and 1 must be exact, the others earn 1 - |difference| / 4
REWARDS = {
    0: [1, 0, 0, 0, 0],
    1: [0, 1, 0, 0, 0],
    2: [1 - 2 / 4, 1 - 1 / 4, 1, 1 - 1 / 4, 1 - 2 / 4],
    3: [1 - 3 / 4, 1 - 2 / 4, 1 - 1 / 4, 1, 1 - 1 / 4],
    4: [1 - 4 / 4, 1 - 3 / 4, 1 - 2 / 4, 1 - 1 / 4, 1],
}


@pytest.mark.parametrize("truth", range(5))
def test_pointwise_reward_of_every_score(truth: int) -> None:
    assert [pointwise(f"<think>.</think><score>{p}</score>", truth) for p in range(5)] == REWARDS[truth]


def test_pairwise_reward_is_equality() -> None:
    assert [pairwise(f"<better>{p}</better>", t) for t in "AB" for p in "AB"] == [1, 0, 0, 1]
    assert pairwise("nothing", "A") == pairwise("<better>A or B</better>", "B") == 0
    assert pairwise("<better>A</better>", "tie") == pairwise("<better>A or B</better>", "tie") == 0


@pytest.mark.parametrize(
    ("judge", "truth", "wrong", "right"),
    [
        (judge_pairwise, "A", "<better>B</better>", "<better>A</better>"),
        (judge_pointwise, 1, "<score>4</score>", "<score>1</score>"),
    ],
)
def test_malformed_may_earn_less_than_wrong(judge: Any, truth: object, wrong: str, right: str) -> None:
    """So that a group with only malformed and wrong answers has a gradient."""
    rewards = [judge.compute_score("d", text, truth, malformed=-1.0)["score"] for text in ("?", wrong, right)]
    assert rewards == [-1, 0, 1]


def test_another_range_of_scores_comes_with_the_row() -> None:
    def score(text: str, truth: int) -> float:
        return judge_pointwise.compute_score("d", text, {"helpfulness": truth}, {"scores": [1, 11]})["score"]

    # 1 and 2 must be exact; above, the difference counts in tenths
    assert [score(f"<score>{n}</score>", 2) for n in (1, 2, 3)] == [0, 1, 0]
    assert [score(f"<score>{n}</score>", 9) for n in (1, 9, 11)] == pytest.approx([1 - 8 / 10, 1, 1 - 2 / 10])
    assert score("<score>0</score>", 9) == score("<score>12</score>", 9) == 0
    with refuses("judges.invalid-score", '{"helpfulness": 1-11}'):
        score("<score>1</score>", 0)


def test_every_answer_has_the_same_keys_and_they_are_numbers() -> None:
    """verl collates the keys of a batch, and its validation metrics accept only numbers."""
    for text, truth, score, exact, missing, predicted in (
        ("<score>3</score>", 4, 0.75, 0, 0, 3),
        ("?", 0, 0.0, 0, 1, -1),
    ):
        verdicts = {"predicted_helpfulness": predicted, "true_helpfulness": truth}
        expected = {"score": score, "exact_match": exact, "no_verdict": missing, **verdicts}
        assert judge_pointwise.compute_score("d", text, {"helpfulness": truth}) == expected
    for text, truth, missing, prefers_a, true_a in (("<better>A</better>", "B", 0, 1, 0), ("?", "A", 1, 0, 1)):
        expected = {"score": 0.0, "accuracy": 0, "no_verdict": missing, "prefers_a": prefers_a, "true_a": true_a}
        assert judge_pairwise.compute_score("d", text, {"preference": truth}) == expected


@pytest.mark.parametrize("truth", [{"helpfulness": 3}, 3, "3", 3.0, np.int64(3), '{"helpfulness": 3}'])
def test_forms_of_a_true_score(truth: object) -> None:
    assert judge_pointwise.parse_score(truth) == 3


@pytest.mark.parametrize("truth", [{"preference": "B"}, "B", '{"preference": "B"}'])
def test_forms_of_a_true_preference(truth: object) -> None:
    assert judge_pairwise.parse_preference(truth) == "B"


NO_SCORES = [None, {}, {"helpfulness": None}, "", "abc", 2.9, 5, -1, True, [3], float("nan"), {"preference": "A"}]
NO_PREFERENCES = [None, {}, {"preference": None}, "", "b", "{A", 1, {"helpfulness": 3}]


@pytest.mark.parametrize(
    ("read", "truth", "code"),
    [
        *((judge_pointwise.parse_score, truth, "judges.invalid-score") for truth in NO_SCORES),
        *((judge_pairwise.parse_preference, truth, "judges.invalid-preference") for truth in NO_PREFERENCES),
    ],
)
def test_an_invalid_ground_truth_is_refused(read: Callable[[object], object], truth: object, code: str) -> None:
    with refuses(code, repr(truth)):
        read(truth)


# ---- the cookbook's recorded cases. Where it is wrong: (answer, ground truth) -> the reason

WRONG_POINTWISE = {
    ("no tag", '{"helpfulness": 0}'): "a missing verdict is not a score of 0",
    ("no tag", '{"helpfulness": 2}'): "a missing verdict is not a score of 0",
    ("no tag", '{"helpfulness": 3}'): "a missing verdict is not a score of 0",
    ("<score>-1</score>", '{"helpfulness": 1}'): "-1 is out of range, not a 1 with a sign to skip",
    ("<score>3.9</score>", '{"helpfulness": 3}'): "3.9 is not on the scale, and it is not 3",
    ("<score>10</score>", '{"helpfulness": 0}'): "10 is out of range, not 0",
    ("<think>unclosed <score>4</score>", '{"helpfulness": 4}'): "a tag inside the thinking is not a verdict",
    ("<score>2</score><score>4</score>", '{"helpfulness": 4}'): "two scores are no verdict, not the first of them",
    ("<score>4</score>", "{}"): "a row without a label is broken data, not a label of 0",
    ("<score>1</score>", '{"helpfulness": null}'): "a row without a label is broken data",
    ("<score>4</score>", "2.9"): "a label of 2.9 is broken data, not 2",
    ("<score>0</score>", '"abc"'): "a label of words is broken data, not 0",
}
WRONG_PAIRWISE = {
    ("<better>both</better>", '{"preference": "B"}'): "`both` is not a choice, although it contains a b",
    ("<better>EQUAL</better>", '{"preference": "A"}'): "`EQUAL` is not a choice, although it contains an a",
    ("<better>A or B</better>", '{"preference": "tie"}'): "no choice earns nothing; training data have no ties",
    ("text\nResponse B is better", '{"preference": "B"}'): "no tag, no verdict",
    ("Response A is worse than response B", '{"preference": "A"}'): "no tag, and it says the opposite",
    ("<think><better>A</better>", '{"preference": "A"}'): "a tag inside the thinking is not a verdict",
    ("<better>A</better>", '""'): "a row without a label is broken data, not a tie",
    ("<better>A</better>", "{}"): "a row without a label is broken data, not a tie",
}


@pytest.mark.parametrize(
    ("mode", "module", "wrong"),
    [("pointwise", judge_pointwise, WRONG_POINTWISE), ("pairwise", judge_pairwise, WRONG_PAIRWISE)],
)
def test_the_cookbooks_results_where_they_are_right(
    mode: str, module: Any, wrong: dict[tuple[str, str], str], golden: Callable[[str], Any]
) -> None:
    """All recorded cases agree except for those listed with a reason, and all of these really differ."""
    cases = golden("judge_reward_cases")[mode]
    differing = set()
    for case in cases:
        try:
            ours = module.compute_score("d", case["solution"], case["ground_truth"])["score"]
        except UserError:
            ours = "refused"
        if ours != case["result"]["score"]:
            differing.add((case["solution"], json.dumps(case["ground_truth"])))
    assert differing == set(wrong)
