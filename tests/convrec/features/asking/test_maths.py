"""Credit for questions in a conversation small enough to enumerate: ask or not, 2 attributes, 8 items.

One of the 8 items is relevant, and the list is one item, drawn from those that fit the answers. `quarter` leaves 2
items and `half` 4, so the list hits with probability 1/2 after the first, 1/4 after the second and 1/8 without a
question. At cost c a question is worth 3/8 - c or 1/8 - c. All expectations are over every group of G rollouts.
"""

import itertools
from typing import NamedTuple

import pytest
import torch

from convrec.features.asking.attributes import Attributes
from convrec.features.asking.maths import Turns, assign_questions, question_advantages
from convrec.rank_grpo.advantages import compute_rank_advantages
from convrec.titles.catalog import Catalog

CATALOG = Catalog.from_items([(f"Item {row}", None) for row in range(8)])
ATTRIBUTES = Attributes(
    CATALOG,
    {
        "quarter": [frozenset([f"q{row // 2}"]) for row in range(8)],
        "half": [frozenset([f"h{row // 4}"]) for row in range(8)],
    },
)
ACTIONS = ("quarter", "half", None)
G = 3


def hit_rate(action: str | None) -> float:
    """Enumerate the relevant item and the item of the list."""
    hits = lists = 0
    for wanted in range(8):
        shared = set(ATTRIBUTES.shared(action, [wanted])) if action else set()
        left = [row for row in range(8) if not action or shared <= ATTRIBUTES.values[action][row]]
        hits, lists = hits + left.count(wanted), lists + len(left)
    return hits / lists


RATES = torch.tensor([hit_rate(action) for action in ACTIONS], dtype=torch.float64)


class Groups(NamedTuple):
    """Every group of G rollouts: rows of questions and of lists, and the probability of each group."""

    turns: Turns
    action_B: torch.Tensor
    weight_B: torch.Tensor


def enumerate_groups(policy_A: torch.Tensor) -> Groups:
    rows = []
    outcomes = list(itertools.product(range(3), (0, 1)))
    chance = {(a, hit): policy_A[a] * (RATES[a] if hit else 1 - RATES[a]) for a, hit in outcomes}
    for group, rollouts in enumerate(itertools.product(outcomes, repeat=G)):
        weight = float(torch.stack([chance[rollout] for rollout in rollouts]).prod())
        for action, hit in rollouts:
            asks = ACTIONS[action] is not None
            if asks:
                rows.append((group, 0, True, hit, 1, action, weight))
            rows.append((group, int(asks), False, hit, int(asks), action, weight))
    group, turn, question, hit, asked, action, weight = zip(*rows, strict=True)
    numbers = [torch.tensor(hit, dtype=torch.float64), torch.tensor(asked, dtype=torch.float64)]
    turns = Turns(group, torch.tensor(turn), torch.tensor(question), *numbers)
    return Groups(turns, torch.tensor(action), torch.tensor(weight, dtype=torch.float64))


def expected_gradient(groups: Groups, advantages_B: torch.Tensor, policy_A: torch.Tensor) -> torch.Tensor:
    """Return the gradient for the logits of the first turn's decision: mean over groups of 1/G sum A d log pi."""
    decides_B = groups.turns.turn_B == 0
    score_BA = torch.nn.functional.one_hot(groups.action_B, 3) - policy_A
    return ((groups.weight_B * advantages_B * decides_B)[:, None] * score_BA).sum(0) / G


def true_gradient(policy_A: torch.Tensor, cost: float) -> torch.Tensor:
    """Return the gradient of J = sum over actions of pi (hit rate - cost if it asks): pi_a (V_a - J)."""
    value_A = RATES - cost * torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64)
    return policy_A * (value_A - (policy_A * value_A).sum())


POLICIES = [torch.tensor(p, dtype=torch.float64) for p in ((0.3, 0.3, 0.4), (0.05, 0.05, 0.9), (0.6, 0.3, 0.1))]
COSTS = (0.0, 0.05, 0.2, 0.3, 0.45, 0.8)


def test_hit_rates_of_the_toy_are_those_of_its_description() -> None:
    assert RATES.tolist() == [1 / 2, 1 / 4, 1 / 8]


@pytest.mark.parametrize("policy_A", POLICIES, ids=str)
def test_direction_and_size_are_those_of_the_derivation(policy_A: torch.Tensor) -> None:
    groups = enumerate_groups(policy_A)
    for cost in COSTS:
        advantages_B = question_advantages(groups.turns, cost, norm_by_std=False)
        gradient_A = expected_gradient(groups, advantages_B, policy_A)
        value_A = RATES - cost * torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64)
        gap_A = value_A - (policy_A * value_A).sum()
        # sum over questions q of pi_q (V_q - J) (e_q - pi); a mean that includes the rollout itself removes 1/G
        wanted_A = (policy_A * gap_A)[:2] @ (torch.eye(3, dtype=torch.float64)[:2] - policy_A) * (G - 1) / G
        assert torch.allclose(gradient_A, wanted_A, atol=1e-12)
        assert gradient_A @ true_gradient(policy_A, cost) > 0  # a step along it raises J


@pytest.mark.parametrize("norm_by_std", [False, True])
@pytest.mark.parametrize("ask", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("question", [0, 1])
def test_asking_increases_only_where_it_is_worth_its_cost(question: int, ask: float, norm_by_std: bool) -> None:
    policy_A = torch.tensor([0.0, 0.0, 1 - ask], dtype=torch.float64)
    policy_A[question] = ask
    groups = enumerate_groups(policy_A)
    worth = float(RATES[question] - RATES[2])  # 3/8 or 1/8
    for cost in (worth - 0.1, worth + 0.1):
        advantages_B = question_advantages(groups.turns, cost, norm_by_std)
        gradient_A = expected_gradient(groups, advantages_B, policy_A)
        assert (gradient_A[question] > 0) == (cost < worth)
        if not norm_by_std:  # two actions: 1 - pi of the true gradient
            wanted_A = (1 - ask) * (G - 1) / G * true_gradient(policy_A, cost)
            assert torch.allclose(gradient_A, wanted_A, atol=1e-12)


def test_a_deviation_of_each_group_would_have_the_wrong_sign() -> None:
    policy_A, cost = torch.tensor([0.0, 0.5, 0.5], dtype=torch.float64), 0.025  # the question gains 1/8
    groups = enumerate_groups(policy_A)
    return_B1 = (groups.turns.gain_B - cost * groups.turns.asked_B)[:, None]
    labels = list(zip(groups.turns.uid, groups.turns.turn_B.tolist(), strict=True))
    of_group_B = compute_rank_advantages(return_B1, labels)[:, 0] * groups.turns.is_question_B
    assert expected_gradient(groups, of_group_B, policy_A)[1] < 0
    assert expected_gradient(groups, question_advantages(groups.turns, cost), policy_A)[1] > 0


@pytest.mark.parametrize("norm_by_std", [False, True])
def test_rank_credit_ignores_asking_unless_all_lists_are_pooled(norm_by_std: bool) -> None:
    policy_A = torch.tensor([0.9, 0.0, 0.1], dtype=torch.float64)
    groups, cost = enumerate_groups(policy_A), 0.45  # a question costs more than its gain of 3/8
    of_lists_B1 = torch.where(groups.turns.is_question_B, 0.0, groups.turns.gain_B)[:, None]
    apart_B = compute_rank_advantages(of_lists_B1, groups.turns.list_groups, norm_by_std)[:, 0]
    assert torch.allclose(expected_gradient(groups, apart_B, policy_A), torch.zeros(3, dtype=torch.float64))
    labels = [(uid, question) for uid, _, question in groups.turns.list_groups]
    together_B = compute_rank_advantages(of_lists_B1, labels, norm_by_std)[:, 0]
    questions_B = question_advantages(groups.turns, cost, norm_by_std)
    assert expected_gradient(groups, questions_B, policy_A)[0] < 0
    assert expected_gradient(groups, questions_B + together_B, policy_A)[0] > 0  # the policy would ask at a loss


def test_a_question_by_hand() -> None:
    # two rollouts ask and then reach DCG 1 and 0, one lists at once with DCG .5: R = .75, -.25, .5, mean 1/3
    rows = [(0, True, 1.0, 1), (1, False, 1.0, 1), (0, True, 0.0, 1), (1, False, 0.0, 1), (0, False, 0.5, 0)]
    turn, question, gain, asked = zip(*rows, strict=True)
    turns = Turns(["u"] * 5, torch.tensor(turn), torch.tensor(question), torch.tensor(gain), torch.tensor(asked))
    advantages_B = question_advantages(turns, 0.25, norm_by_std=False)
    assert torch.allclose(advantages_B, torch.tensor([0.75 - 1 / 3, 0, -0.25 - 1 / 3, 0, 0]))
    # squares about the means of the turns: .1736 + .3403 + .0278 and .25 + .25, of 5 rows in 2 groups
    deviation = (1.0416667 / 3) ** 0.5 + 1e-4
    normalised_B = question_advantages(turns, 0.25)
    assert normalised_B.tolist() == pytest.approx([0.4166667 / deviation, 0, -0.5833333 / deviation, 0, 0], rel=1e-5)
    assert turns.list_groups == [("u", 0, True), ("u", 1, False), ("u", 0, True), ("u", 1, False), ("u", 0, False)]

    two = Turns(["u"] * 2, torch.zeros(2), torch.ones(2).bool(), torch.tensor([1.0, 0.0]), torch.ones(2))
    half = 0.5 / (0.5**0.5 + 1e-4)  # two rollouts, whose questions have returns 1 and 0
    assert question_advantages(two, 0.0).tolist() == pytest.approx([half, -half], rel=1e-5)

    own_BT = torch.tensor([[1, 1, 0]] * 5)
    units_BT, advantages_BT = torch.tensor([[2, 3, -1]] * 5), torch.full((5, 3), 0.5)
    units_BT, advantages_BT = assign_questions(units_BT, advantages_BT, own_BT, turns, advantages_B)
    assert units_BT.tolist() == [[0, 0, -1], [2, 3, -1], [0, 0, -1], [2, 3, -1], [2, 3, -1]]
    assert advantages_BT[0].tolist() == pytest.approx([0.75 - 1 / 3, 0.75 - 1 / 3, 0])
    assert advantages_BT[1].tolist() == [0.5] * 3
