"""What credit by rank buys, on a toy small enough to enumerate: docs/explanation/why-ranks.md has the numbers.

    python benchmarks/studies/why_ranks.py --figure docs/images/why-ranks.png > outputs/why_ranks.json

A policy is a table: at each of N ranks one of M items is drawn, independently, from the softmax of M logits. Two items
are relevant, each once: a repeat earns nothing. An item is one token, so every list has N tokens.
For a way to give credit the gradient that one group of G lists has in expectation is compared with the gradient of
expected DCG@N: by cosine (1: no bias in direction) and by its signal-to-noise ratio |E g|^2 / trace Cov g.

`exact` enumerates all M^N lists, in the limit of large groups: there advantages are (r - mean) / std of the policy, and
the ratio is G times that of one list. `simulated` draws groups of G lists and takes their advantages and gradients
from convrec.rank_grpo's own `rank_advantages`, `assign_units` and `rank_policy_loss`.
"""

import argparse
import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from convrec.lists.rank_rewards import dcg, rank_returns
from convrec.rank_grpo.advantages import assign_units, rank_advantages
from convrec.rank_grpo.policy_loss import BatchCounts, RankLossSettings, rank_policy_loss

WANTED = 2
GAMMA = 2.0
LIST = "list"  # one advantage a list, from DCG@N, as GRPO and, with mu = 1, GSPO have
CREDITS = (LIST, "exp_inf", "log_decay", "exp_gamma")


@dataclass(frozen=True)
class Toy:
    """probabilities_NM: of each item at each rank. Items 0 to WANTED - 1 are wanted."""

    probabilities_NM: np.ndarray

    @classmethod
    def drawn(cls, num_ranks: int, num_items: int, seed: int) -> "Toy":
        """Logits are normal with standard deviation 1."""
        logits = np.random.default_rng(seed).normal(size=(num_ranks, num_items))
        return cls(np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True))

    @property
    def shape(self) -> tuple[int, int]:
        return self.probabilities_NM.shape

    def all_lists(self) -> tuple[np.ndarray, np.ndarray]:
        """All lists (L, N), and the probability (L,) of each."""
        num_ranks, num_items = self.shape
        lists_LN = np.array(list(itertools.product(range(num_items), repeat=num_ranks)))
        return lists_LN, self.probabilities_NM[np.arange(num_ranks), lists_LN].prod(axis=1)

    def draw(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """(count, N) lists."""
        ends_NM = self.probabilities_NM.cumsum(axis=1)
        ends_NM[:, -1] = 1.0
        return np.stack([np.searchsorted(ends_M, rng.random(count), side="right") for ends_M in ends_NM], axis=1)

    def scores(self, lists_LN: np.ndarray) -> np.ndarray:
        """(L, N, M): d log pi(item at rank k) / d logits of rank k."""
        return np.eye(self.shape[1])[lists_LN] - self.probabilities_NM


def relevance(lists_LN: np.ndarray) -> np.ndarray:
    """1 where a wanted item stands for the first time."""
    hits_LN = np.zeros(lists_LN.shape)
    for item in range(WANTED):
        is_item_LN = lists_LN == item
        hits_LN += is_item_LN & (is_item_LN.cumsum(axis=1) == 1)
    return hits_LN


def returns(lists_LN: np.ndarray, credit: str) -> np.ndarray:
    """(L, N) rank returns; of LIST the DCG@N of the list at every rank."""
    rel_LN, num_ranks = relevance(lists_LN), lists_LN.shape[1]
    patterns, of_list_L = np.unique(rel_LN, axis=0, return_inverse=True)
    if credit == LIST:
        rows = [[dcg(pattern, num_ranks)] * num_ranks for pattern in patterns]
    else:
        rows = [rank_returns(list(pattern), num_ranks, credit, gamma=GAMMA) for pattern in patterns]
    return np.array(rows)[of_list_L.ravel()]


@dataclass(frozen=True)
class Gradient:
    """mean_NM: of one group's gradient. noise: the trace of its covariance; by rank: its parts."""

    mean_NM: np.ndarray
    noise_N: np.ndarray

    @property
    def ratio(self) -> float:
        """Signal to noise."""
        return float((self.mean_NM**2).sum() / self.noise_N.sum())

    def cosine(self, other_NM: np.ndarray) -> float:
        norms = np.linalg.norm(self.mean_NM) * np.linalg.norm(other_NM)
        return float((self.mean_NM * other_NM).sum() / norms)


def dcg_gradient(toy: Toy) -> np.ndarray:
    """(N, M): the gradient of expected DCG@N in the logits.

    In closed form: item m earns at rank k when it is drawn there and at no earlier rank, p_km prod_{j<k} (1 - p_jm).
    """
    logits_NM = torch.tensor(np.log(toy.probabilities_NM), requires_grad=True)
    wanted_NW = torch.softmax(logits_NM, dim=1)[:, :WANTED]
    not_before_NW = torch.cat([torch.ones(1, WANTED), (1 - wanted_NW).cumprod(dim=0)[:-1]])
    discount_N = 1 / torch.log2(torch.arange(len(logits_NM), dtype=torch.float64) + 2)
    (discount_N[:, None] * wanted_NW * not_before_NW).sum().backward()
    assert logits_NM.grad is not None
    return logits_NM.grad.numpy()


def exact(toy: Toy, credit: str, normalised: bool = True) -> Gradient:
    """Of one list, with the mean and standard deviation that a large group has."""
    lists_LN, weight_L = toy.all_lists()
    returns_LN, scores_LNM = returns(lists_LN, credit), toy.scores(lists_LN)
    mean_N = weight_L @ returns_LN
    centred_LN = returns_LN - mean_N
    if normalised:
        centred_LN = centred_LN / (np.sqrt(weight_L @ centred_LN**2) + 1e-4)
    gradients_LNM = centred_LN[:, :, None] * scores_LNM
    mean_NM = np.einsum("l,lnm->nm", weight_L, gradients_LNM)
    second_N = np.einsum("l,lnm->n", weight_L, gradients_LNM**2)
    return Gradient(mean_NM, second_N - (mean_NM**2).sum(axis=1))


def simulated(toy: Toy, credit: str, group_size: int, groups: int, seed: int) -> tuple[Gradient, float]:
    """Of groups of `group_size` lists, by the program's own advantages and loss; and the standard error of its ratio.

    The error is by 20 parts of the groups. |E g|^2 is estimated without bias: the mean's own variance is taken off.
    """
    num_ranks, _ = toy.shape
    lists_BN = toy.draw(groups * group_size, np.random.default_rng(seed))
    uid = np.repeat(np.arange(groups), group_size).tolist()
    advantages_BK = rank_advantages(torch.tensor(returns(lists_BN, credit)), uid)
    rank_ids_BT = torch.arange(num_ranks).repeat(len(uid), 1)
    no_stop_BT = torch.zeros_like(rank_ids_BT, dtype=torch.bool)
    units_BT, advantages_BT = assign_units(rank_ids_BT, advantages_BK, no_stop_BT, num_ranks)
    log_prob_BT = torch.tensor(np.log(toy.probabilities_NM[np.arange(num_ranks), lists_BN]), requires_grad=True)
    # every group is a batch of its own: 1 / (G N) of each item
    settings, counts = RankLossSettings(num_ranks), BatchCounts(global_batch_size=group_size)
    loss, _ = rank_policy_loss(log_prob_BT, advantages_BT, units_BT, settings, counts)
    loss.backward()
    assert log_prob_BT.grad is not None
    ascent_BT = -num_ranks * log_prob_BT.grad.numpy()  # without the 1 / N, as `exact`
    of_group_SNM = (ascent_BT[:, :, None] * toy.scores(lists_BN)).reshape(groups, group_size, *toy.shape).sum(axis=1)
    parts = [_gradient(part) for part in np.array_split(of_group_SNM, 20)]
    error = np.std([part.ratio for part in parts], ddof=1) / np.sqrt(len(parts))
    return _gradient(of_group_SNM), float(error)


def _gradient(samples_SNM: np.ndarray) -> Gradient:
    mean_NM, noise_NM = samples_SNM.mean(axis=0), samples_SNM.var(axis=0, ddof=1)
    squared = (mean_NM**2).sum()
    signal = max(squared - noise_NM.sum() / len(samples_SNM), 0.0)
    return Gradient(mean_NM * np.sqrt(signal / squared), noise_NM.sum(axis=1))


def exact_table(ranks: Sequence[int], num_items: int, seeds: int) -> list[dict[str, float]]:
    """A row for each N: of each credit the cosine to the gradient of expected DCG, and how many times the
    signal-to-noise ratio of LIST it has; means (of ratios: geometric) over policies."""
    rows = []
    for num_ranks in ranks:
        row: dict[str, float] = {"ranks": num_ranks}
        toys = [Toy.drawn(num_ranks, num_items, seed) for seed in range(seeds)]
        target = [dcg_gradient(toy) for toy in toys]
        of_list = [exact(toy, LIST).ratio for toy in toys]
        for credit in CREDITS:
            found = [exact(toy, credit) for toy in toys]
            row[f"{credit} cosine"] = float(np.mean([one.cosine(to) for one, to in zip(found, target, strict=True)]))
            gains = [one.ratio / base for one, base in zip(found, of_list, strict=True)]
            row[f"{credit} ratio"] = float(np.exp(np.mean(np.log(gains))))
        rows.append(row)
    return rows


def simulated_row(ranks: int, size: int, num_items: int, lists: int) -> dict[str, float]:
    """Of one policy and groups of `size` rollouts: each credit's signal-to-noise ratio of one group, its standard error
    and its multiple of LIST's, and the cosine to the gradient of expected DCG."""
    toy = Toy.drawn(ranks, num_items, 0)
    row: dict[str, float] = {"ranks": ranks, "rollouts": size}
    target = dcg_gradient(toy)
    for credit in CREDITS:
        found, error = simulated(toy, credit, size, max(lists // size, 400), seed=size)
        row |= {f"{credit} ratio": found.ratio, f"{credit} error": error, f"{credit} cosine": found.cosine(target)}
        row[f"{credit} times"] = found.ratio / row[f"{LIST} ratio"]
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--figure", type=Path, help="PNG to draw")
    options = parser.parse_args()
    by_ranks = exact_table(range(1, 7), num_items=6, seeds=10)
    by_size = [simulated_row(5, size, num_items=6, lists=64_000) for size in (2, 4, 8, 16, 64)]
    longer = [simulated_row(ranks, 8, num_items=8, lists=64_000) for ranks in (3, 5, 10, 20)]
    tables = {"by number of ranks": by_ranks, "by rollouts of a prompt": by_size, "longer lists": longer}
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
