"""When a step along the credit of questions raises J, and when it does not (docs/explanation/method.md 10)."""

import itertools

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from convrec.features.asking.maths import Turns, question_advantages

G = 2
SHARES = st.lists(st.floats(0.01, 1), min_size=3, max_size=5)


def expected_step(policy_A: np.ndarray, value_A: np.ndarray) -> np.ndarray:
    """Mean over all groups of G rollouts of 1/G sum A d log pi; the last action lists, the others ask."""
    listing = len(policy_A) - 1
    rows = []
    for group, actions in enumerate(itertools.product(range(len(policy_A)), repeat=G)):
        weight = np.prod(policy_A[list(actions)])
        for action in actions:
            asks = action != listing
            if asks:
                rows.append((group, 0, True, value_A[action], action, weight))
            rows.append((group, int(asks), False, value_A[action], action, weight))
    group, turn, question, gain, action, weight = zip(*rows, strict=True)
    gain_B = torch.tensor(gain, dtype=torch.float64)
    turns = Turns(group, torch.tensor(turn), torch.tensor(question), gain_B, torch.zeros(len(rows)))
    advantages_B = question_advantages(turns, 0.0, norm_by_std=False).numpy()
    score_BA = np.eye(len(policy_A))[list(action)] - policy_A
    return (np.array(weight) * advantages_B * (np.array(turn) == 0)) @ score_BA / G


def true_gradient(policy_A: np.ndarray, value_A: np.ndarray) -> np.ndarray:
    return policy_A * (value_A - policy_A @ value_A)


def slope(policy_A: np.ndarray, value_A: np.ndarray) -> float:
    """Return the product of step and gradient by the formula of method.md, up to (G - 1) / G."""
    *asked, _ = true_gradient(policy_A, value_A)
    total = sum(asked)
    return float(np.square(asked).sum() - total * (policy_A[:-1] @ asked) + policy_A[-1] * total**2)


def test_expected_step_can_lower_j_when_one_question_dominates() -> None:
    """t = (.09, .05), S = .14: .0081 + .0025 - .14 (.081 + .0025) + .05 * .14^2 = -.00011."""
    policy_A, value_A = np.array([0.9, 0.05, 0.05]), np.array([0.1, 1.0, -2.8])
    assert abs(policy_A @ value_A) < 1e-12
    assert round(slope(policy_A, value_A), 5) == -0.00011
    assert expected_step(policy_A, value_A) @ true_gradient(policy_A, value_A) < 0


@given(SHARES, st.data())
def test_slope_matches_formula_and_is_positive_without_dominance(shares: list[float], data: st.DataObject) -> None:
    policy_A = np.array(shares) / sum(shares)
    values = data.draw(st.lists(st.integers(-8, 8), min_size=len(shares), max_size=len(shares)))
    value_A = np.array(values, float)
    product = expected_step(policy_A, value_A) @ true_gradient(policy_A, value_A)
    assert np.isclose(product, (G - 1) / G * slope(policy_A, value_A), atol=1e-9)
    asked_A = policy_A[:-1]
    gradient_A = true_gradient(policy_A, value_A)
    if np.square(asked_A).sum() < 1 / len(asked_A) and np.abs(gradient_A).max() > 1e-3:
        assert product > 0
    if len({*values[:-1]}) == 1 and np.abs(gradient_A).max() > 1e-3:  # all questions are worth the same
        assert product > 0
