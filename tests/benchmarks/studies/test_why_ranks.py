"""The toy behind docs/explanation/why-ranks.md: its numbers, and the program's loss against enumeration."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))
from benchmarks.studies import why_ranks  # noqa: E402
from benchmarks.studies.why_ranks import CREDITS, LIST, Toy, dcg_gradient, exact, relevance, returns, simulated  # noqa: E402


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


def test_without_normalisation_causal_returns_have_the_gradient_of_dcg() -> None:
    """log_decay: the return from rank k on is all that rank k can change. exp_inf leaves later ranks out."""
    toy = Toy.drawn(3, 4, seed=1)
    target = dcg_gradient(toy)
    assert exact(toy, "log_decay", normalised=False).mean_NM == pytest.approx(target)
    assert exact(toy, LIST, normalised=False).mean_NM == pytest.approx(target)
    assert exact(toy, "exp_inf", normalised=False).cosine(target) < 0.999


def test_the_pages_numbers_by_ranks_are_what_enumeration_gives() -> None:
    table = page_table("ranks")
    assert [row[0] for row in table] == [1, 2, 3, 4, 5, 6]
    found = why_ranks.exact_table(range(1, 5), num_items=6, seeds=10)
    for row, numbers in zip(found, table, strict=False):
        ratios = [row[f"{credit} ratio"] for credit in CREDITS[1:]]
        cosines = [row[f"{credit} cosine"] for credit in CREDITS]
        assert [row["ranks"], *ratios, *cosines] == pytest.approx(numbers, abs=0.0051)


@pytest.mark.parametrize("credit", CREDITS)
def test_the_programs_loss_has_the_enumerated_gradient_in_large_groups(credit: str) -> None:
    toy = Toy.drawn(3, 5, seed=2)
    size, limit = 32, exact(toy, credit)
    found, error = simulated(toy, credit, size, groups=300, seed=0)
    assert found.mean_NM == pytest.approx(limit.mean_NM, abs=0.03)
    assert found.cosine(limit.mean_NM) > 0.995
    assert abs(found.ratio / size - limit.ratio) < 4 * error / size + 0.15 * limit.ratio
