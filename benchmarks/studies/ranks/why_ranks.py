"""What credit by rank buys, on a toy small enough to enumerate: docs/explanation/why-ranks.md has the numbers.

    python -m benchmarks.studies.ranks.why_ranks --figure docs/images/why-ranks.png > outputs/why_ranks.json

For a way to give credit the gradient that one group of G lists has in expectation is compared with the gradient of
expected DCG@N: by cosine (1: no bias in direction) and by its signal-to-noise ratio |E g|^2 / trace Cov g.
"""

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks.studies.ranks.toy import (
    CREDITS,
    LIST,
    LOSSES,
    PAPER,
    Gradient,
    Toy,
    dcg_gradient,
    exact,
    exp_inf_gradients,
    simulated,
)
from convrec.rank_grpo.policy_loss import Aggregation

SPREAD: dict[str, Callable[[list[float]], float]] = {"": np.mean, " least": min, " most": max}


def geometric_mean(values: np.ndarray | Sequence[np.ndarray] | Sequence[float]) -> np.ndarray:
    """Return the geometric mean over the first axis; all values must be positive."""
    return np.exp(np.mean(np.log(values), axis=0))


def compared(toys: Sequence[Toy], ways: Mapping[str, tuple[str, Aggregation]]) -> dict[str, float]:
    """Compare ways to give credit on the same policies.

    Args:
        toys: the policies.
        ways: name -> credit and loss. The first one is the base of the ratios.

    Returns:
        For each way, `NAME cosine`: the mean cosine to the gradient of expected DCG, and `NAME ratio`: the
        signal-to-noise ratio as a multiple of the first way's, the geometric mean over the policies.
    """
    targets = [dcg_gradient(toy) for toy in toys]
    found = {name: [exact(toy, *way) for toy in toys] for name, way in ways.items()}
    base = np.array([one.ratio for one in next(iter(found.values()))])
    row: dict[str, float] = {}
    for name, gradients in found.items():
        row[f"{name} cosine"] = float(np.mean([one.cosine(to) for one, to in zip(gradients, targets, strict=True)]))
        row[f"{name} ratio"] = float(geometric_mean([one.ratio for one in gradients] / base))
    return row


def exact_table(ranks: Sequence[int], num_items: int, seeds: int) -> list[dict[str, float]]:
    """Compare CREDITS for each number of ranks, with items of one token.

    Args:
        ranks: the numbers of ranks.
        num_items: M.
        seeds: number of policies.
    """
    ways = {credit: (credit, PAPER) for credit in CREDITS}
    return [{"ranks": n, **compared([Toy.drawn(n, num_items, seed) for seed in range(seeds)], ways)} for n in ranks]


def by_rank_table(num_ranks: int, num_items: int, seeds: int) -> list[dict[str, float]]:
    """Return the signal-to-noise ratio of each rank's part as a multiple of LIST's.

    Args:
        num_ranks: N.
        num_items: M.
        seeds: number of policies, over which the geometric mean is taken.
    """
    toys = [Toy.drawn(num_ranks, num_items, seed) for seed in range(seeds)]
    gains = {
        credit: geometric_mean([exact(toy, credit).ratio_N / exact(toy, LIST).ratio_N for toy in toys])
        for credit in CREDITS[1:]
    }
    return [
        {"rank": rank + 1, **{credit: float(gain_N[rank]) for credit, gain_N in gains.items()}}
        for rank in range(num_ranks)
    ]


def tokens_table(num_ranks: int, num_items: int, most_tokens: Sequence[int], seeds: int) -> list[dict[str, float]]:
    """Compare LOSSES for items of several tokens.

    Args:
        num_ranks: N.
        num_items: M.
        most_tokens: the largest numbers of tokens of an item, one row each.
        seeds: number of policies.
    """
    return [
        {"tokens": most, **compared([Toy.drawn(num_ranks, num_items, seed, most) for seed in range(seeds)], LOSSES)}
        for most in most_tokens
    ]


def simulated_row(ranks: int, size: int, num_items: int, lists: int) -> dict[str, float]:
    """Measure CREDITS for one policy and groups of a size.

    Args:
        ranks: N.
        size: rollouts per group.
        num_items: M.
        lists: number of lists to draw; at least 400 groups are drawn.

    Returns:
        For each credit the signal-to-noise ratio of one group, its standard error and its multiple of LIST's, and the
        cosine to the gradient of expected DCG.
    """
    toy = Toy.drawn(ranks, num_items, 0)
    row: dict[str, float] = {"ranks": ranks, "rollouts": size}
    target = dcg_gradient(toy)
    for credit in CREDITS:
        found, error = simulated(toy, credit, size, max(lists // size, 400), seed=size)
        row |= {f"{credit} ratio": found.ratio, f"{credit} error": error, f"{credit} cosine": found.cosine(target)}
        row[f"{credit} times"] = found.ratio / row[f"{LIST} ratio"]
    return row


def bias_row(num_ranks: int, num_items: int, seeds: int, shared: bool) -> dict[str, float]:
    """Compare `exp_inf_gradients` with the gradient of expected DCG.

    Args:
        num_ranks: N.
        num_items: M.
        seeds: number of policies.
        shared: whether all ranks have the same logits, whose gradient is the sum over the ranks.

    Returns:
        The mean, least and largest cosine of each over the policies.
    """
    cosines: dict[str, list[float]] = {}
    for seed in range(seeds):
        toy = Toy.drawn(num_ranks, num_items, seed, shared=shared)
        target = in_parameters(dcg_gradient(toy), shared)
        for name, gradient_NM in exp_inf_gradients(toy).items():
            found = Gradient(in_parameters(gradient_NM, shared), np.zeros(1)).cosine(target)
            cosines.setdefault(name, []).append(found)
    row = {"ranks": float(num_ranks), "shared": float(shared)}
    return row | {f"{name}{what}": float(of(found)) for name, found in cosines.items() for what, of in SPREAD.items()}


def in_parameters(gradient_NM: np.ndarray, shared: bool) -> np.ndarray:
    """Return a gradient in the policy's parameters: (1, M) if the ranks share their logits, else (N, M)."""
    return gradient_NM.sum(axis=0, keepdims=True) if shared else gradient_NM


def shared_row(num_ranks: int, num_items: int, size: int, groups: int, seeds: int) -> dict[str, float]:
    """Measure CREDITS for policies whose ranks have the same logits.

    Args:
        num_ranks: N.
        num_items: M.
        size: rollouts per group.
        groups: number of groups to draw.
        seeds: number of policies.

    Returns:
        For each credit the signal-to-noise ratio as a multiple of LIST's, the geometric mean over the policies, and the
        mean cosine.
    """
    toys = [Toy.drawn(num_ranks, num_items, seed, shared=True) for seed in range(seeds)]
    targets = [in_parameters(dcg_gradient(toy), shared=True) for toy in toys]
    row: dict[str, float] = {"ranks": num_ranks, "rollouts": size}
    base: np.ndarray | float = 1.0
    for credit in CREDITS:
        found = [simulated(toy, credit, size, groups, seed=1, shared=True)[0] for toy in toys]
        ratio = geometric_mean([one.ratio for one in found])
        base = ratio if credit == LIST else base
        row[f"{credit} times"] = float(ratio / base)
        row[f"{credit} cosine"] = float(np.mean([one.cosine(to) for one, to in zip(found, targets, strict=True)]))
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--figure", type=Path, help="PNG to draw")
    options = parser.parse_args()
    by_ranks = exact_table(range(1, 7), num_items=6, seeds=10)
    by_size = [simulated_row(5, size, num_items=6, lists=64_000) for size in (2, 4, 8, 16, 64)]
    longer = [simulated_row(ranks, 8, num_items=8, lists=64_000) for ranks in (3, 5, 10, 20)]
    tables = {"by number of ranks": by_ranks, "by rollouts of a prompt": by_size, "longer lists": longer}
    tables["each rank of 6"] = by_rank_table(6, num_items=6, seeds=10)
    tables["items of several tokens"] = tokens_table(5, num_items=6, most_tokens=(1, 2, 4, 8), seeds=10)
    tables["where exp_inf's bias is"] = [
        bias_row(ranks, 8, seeds=10, shared=shared) for shared in (False, True) for ranks in (5, 10, 20)
    ]
    tables["ranks that share their logits"] = [shared_row(20, 8, size=8, groups=1000, seeds=10)]
    print(json.dumps(tables, indent=1))
    if options.figure:
        draw(options.figure, longer)


def draw(path: Path, rows: Sequence[dict[str, float]]) -> None:
    from convrec.report.charts import Chart
    from convrec.report.drawing import write_png

    def lines(what: str) -> dict[str, dict[int, float]]:
        return {credit: {int(row["ranks"]): row[f"{credit} {what}"] for row in rows} for credit in CREDITS}

    ratio = Chart("Signal to noise, list = 1", "times that of credit by list", lines("times"), x_label="ranks")
    cosine = Chart("Direction", "cosine to the gradient of expected DCG", lines("cosine"), x_label="ranks", span=0.1)
    write_png(path, [ratio, cosine])


if __name__ == "__main__":
    main()
