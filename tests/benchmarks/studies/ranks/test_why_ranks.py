"""The toy behind docs/explanation/why-ranks.md: its numbers, and the program's loss against enumeration."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.studies.ranks import why_ranks
from benchmarks.studies.ranks.toy import (
    CREDITS,
    LIST,
    LOSSES,
    PAPER,
    Toy,
    dcg_gradient,
    exact,
    exp_inf_gradients,
    relevance,
    returns,
    simulated,
    token_places,
    weight_of_choice,
)

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[4]


def page_table(first: str) -> list[list[float]]:
    """The numbers of the table of the page whose header begins with `first`."""
    lines = (ROOT / "docs" / "explanation" / "why-ranks.md").read_text(encoding="utf-8").splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(f"| {first} |")) + 2
    table = []
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        table.append([float(cell) for cell in re.findall(r"(?<=\| )[\d.]+", line)])
    return table


def test_a_repeat_earns_nothing() -> None:
    lists = np.array([[0, 0, 1], [2, 1, 1]])
    assert relevance(lists).tolist() == [[1, 0, 1], [0, 1, 0]]
    assert returns(lists, "exp_gamma").tolist() == [[1.25, 0.5, 1], [0.5, 1, 0]]
    assert returns(lists, LIST)[0].tolist() == pytest.approx([1.5] * 3)


def test_unnormalised_causal_returns_give_the_dcg_gradient() -> None:
    """log_decay: the return from rank k on is all that rank k can change. exp_inf leaves later ranks out."""
    toy = Toy.drawn(3, 4, seed=1)
    target = dcg_gradient(toy)
    assert exact(toy, "log_decay", normalised=False).mean_NM == pytest.approx(target)
    assert exact(toy, LIST, normalised=False).mean_NM == pytest.approx(target)
    assert exact(toy, "exp_inf", normalised=False).cosine(target) < 0.999


def test_exp_inf_closed_form_gradients_match_enumeration() -> None:
    toy = Toy.drawn(4, 5, seed=2)
    found = exp_inf_gradients(toy)
    assert found["exp_inf"] == pytest.approx(exact(toy, "exp_inf").mean_NM)
    assert found["centred"] == pytest.approx(exact(toy, "exp_inf", normalised=False).mean_NM)
    discounts = found["centred, discounted"] / found["centred"]
    assert discounts == pytest.approx(np.repeat(1 / np.log2(np.arange(4) + 2)[:, None], 5, axis=1))


@pytest.mark.parametrize("shared", [False, True])
def test_documented_bias_tables_match_the_closed_form(shared: bool) -> None:
    table = page_table("ranks, one table" if shared else "ranks, a table each")
    assert [row[0] for row in table] == [5, 10, 20]
    for numbers in table:
        row = why_ranks.bias_row(int(numbers[0]), 8, seeds=10, shared=shared)
        columns = ["exp_inf", "exp_inf least", "centred", "centred, discounted"]
        assert [row[name] for name in columns] == pytest.approx(numbers[1:], abs=0.0006)


RANK_COLUMNS = ["ranks", *(f"{credit} ratio" for credit in CREDITS[1:]), *(f"{credit} cosine" for credit in CREDITS)]
TOKEN_COLUMNS = ["tokens", "exp_inf ratio", "exp_inf, reference ratio", *(f"{name} cosine" for name in LOSSES)]


@pytest.mark.long
@pytest.mark.parametrize(
    ("first", "columns", "enumerated"),
    [
        ("ranks", RANK_COLUMNS, lambda: why_ranks.exact_table(range(1, 5), num_items=6, seeds=10)),
        ("rank", None, lambda: why_ranks.by_rank_table(6, num_items=6, seeds=10)),
        ("tokens", TOKEN_COLUMNS, lambda: why_ranks.tokens_table(5, num_items=6, most_tokens=(1, 2, 4, 8), seeds=10)),
    ],
)
def test_the_pages_numbers_are_what_enumeration_gives(first: str, columns: list[str] | None, enumerated: Any) -> None:
    """Of the table by ranks the first four rows."""
    table = page_table(first)
    found = enumerated()
    assert len(found) == (4 if first == "ranks" else len(table))
    for row, numbers in zip(found, table, strict=False):
        assert [row[name] for name in columns or row] == pytest.approx(numbers, abs=0.0051)


@pytest.mark.parametrize("loss_mode", ["vanilla", "gspo"])
def test_verls_losses_weigh_a_choice_as_grpo_is_said_to(loss_mode: str) -> None:
    from verl.trainer.ppo.core_algos import get_policy_loss_fn
    from verl.workers.config import ActorConfig, PolicyLossConfig

    toy = Toy.drawn(3, 4, seed=3, most_tokens=4)
    lists_BN = toy.draw(6, np.random.default_rng(0))
    ids_BT, first_BN = token_places(toy, lists_BN)
    mask_BT, log_prob_BT = (ids_BT >= 0).double(), torch.zeros(ids_BT.shape, dtype=torch.float64, requires_grad=True)
    of_mode = PolicyLossConfig(loss_mode=loss_mode)
    config = ActorConfig(strategy="fsdp2", rollout_n=6, use_dynamic_bsz=True, clip_ratio_c=1000.0, policy_loss=of_mode)
    loss, _ = get_policy_loss_fn(loss_mode)(
        old_log_prob=log_prob_BT.detach(),
        log_prob=log_prob_BT,
        advantages=mask_BT,
        response_mask=mask_BT,
        loss_agg_mode="seq-mean-token-mean",
        config=config,
    )
    loss.backward()
    weights_BN = -len(lists_BN) * 3 * np.take_along_axis(log_prob_BT.grad.numpy(), first_BN, axis=1)
    assert weights_BN == pytest.approx(weight_of_choice(toy, lists_BN, "seq-mean-token-mean"))


@pytest.mark.parametrize(
    ("credit", "most_tokens", "aggregation"),
    [*((credit, 1, PAPER) for credit in CREDITS), *((*loss[:1], 3, *loss[1:]) for loss in LOSSES.values())],
)
def test_loss_gradient_matches_enumeration_in_large_groups(credit: str, most_tokens: int, aggregation: Any) -> None:
    toy = Toy.drawn(3, 5, seed=2, most_tokens=most_tokens)
    size, limit = 32, exact(toy, credit, aggregation=aggregation)
    found, error = simulated(toy, credit, size, groups=300, seed=0, aggregation=aggregation)
    assert found.mean_NM == pytest.approx(limit.mean_NM, abs=0.03)
    assert found.cosine(limit.mean_NM) > 0.995
    assert abs(found.ratio / size - limit.ratio) < 4 * error / size + 0.1 * limit.ratio
