"""A recommender small enough to enumerate, and the gradient that a way to give credit has on it.

A policy is a table: at each of N ranks one of M items is drawn, independently, from the softmax of M logits. Two items
are relevant, each once: a repeat earns nothing. An item is one token, or some: the first is the choice, the others
follow from it with probability 1, as a title does from its first words.

`exact` enumerates all M^N lists, in the limit of large groups, where ratios grow as G. `simulated` draws groups of G
lists and takes their advantages and gradients from convrec.rank_grpo: `compute_rank_advantages`, `assign_units` and
`compute_rank_policy_loss`. The reference preset differs here in the loss's token-mean alone: no list is short or long.
"""

import itertools
from dataclasses import dataclass

import numpy as np
import torch

from convrec.lists.rank_rewards import dcg, rank_returns
from convrec.rank_grpo.advantages import assign_units, compute_rank_advantages
from convrec.rank_grpo.policy_loss import Aggregation, BatchCounts, RankLossSettings, compute_rank_policy_loss

WANTED = 2
GAMMA = 2.0
LIST = "list"  # one advantage a list, from DCG@N, as GRPO and, with mu = 1, GSPO have
CREDITS = (LIST, "exp_inf", "log_decay", "exp_gamma")
PAPER: Aggregation = "rank-mean"
LOSSES: dict[str, tuple[str, Aggregation]] = {  # credit and loss where items have several tokens
    "grpo": (LIST, "seq-mean-token-mean"),
    "exp_inf": ("exp_inf", PAPER),
    "log_decay": ("log_decay", PAPER),
    "exp_inf, reference": ("exp_inf", "token-mean"),
    "log_decay, reference": ("log_decay", "token-mean"),
}


@dataclass(frozen=True)
class Toy:
    """A policy that draws each rank's item independently.

    Attributes:
        probabilities_NM: probability of each item at each rank. Items 0 to WANTED - 1 are relevant.
        tokens_M: number of tokens of each item.
    """

    probabilities_NM: np.ndarray
    tokens_M: np.ndarray

    @classmethod
    def drawn(cls, num_ranks: int, num_items: int, seed: int, most_tokens: int = 1, shared: bool = False) -> "Toy":
        """Draw a policy, whose logits are normal with standard deviation 1.

        Args:
            num_ranks: N.
            num_items: M.
            seed: random seed of logits and lengths.
            most_tokens: an item has 1 to this many tokens, each number equally likely.
            shared: whether all ranks have the same logits.
        """
        rng = np.random.default_rng(seed)
        logits = rng.normal(size=(num_ranks, num_items))
        if shared:
            logits[1:] = logits[0]
        probabilities_NM = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        return cls(probabilities_NM, rng.integers(1, most_tokens + 1, size=num_items))

    @property
    def shape(self) -> tuple[int, int]:
        return self.probabilities_NM.shape

    def all_lists(self) -> tuple[np.ndarray, np.ndarray]:
        """Enumerate all lists.

        Returns:
            The lists, (L, N) item numbers, and the probability of each, (L,). L is M^N.
        """
        num_ranks, num_items = self.shape
        lists_LN = np.array(list(itertools.product(range(num_items), repeat=num_ranks)))
        return lists_LN, self.probabilities_NM[np.arange(num_ranks), lists_LN].prod(axis=1)

    def draw(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """Draw lists.

        Args:
            count: number of lists.
            rng: advanced by one number per list and rank.

        Returns:
            (count, N) item numbers.
        """
        ends_NM = self.probabilities_NM.cumsum(axis=1)
        ends_NM[:, -1] = 1.0
        return np.stack([np.searchsorted(ends_M, rng.random(count), side="right") for ends_M in ends_NM], axis=1)

    def scores(self, lists_LN: np.ndarray) -> np.ndarray:
        """Return d log pi(item at rank k) / d logits of rank k, (L, N, M)."""
        return np.eye(self.shape[1])[lists_LN] - self.probabilities_NM


def relevance(lists_LN: np.ndarray) -> np.ndarray:
    """Return 1 where a relevant item stands for the first time, else 0, (L, N)."""
    hits_LN = np.zeros(lists_LN.shape)
    for item in range(WANTED):
        is_item_LN = lists_LN == item
        hits_LN += is_item_LN & (is_item_LN.cumsum(axis=1) == 1)
    return hits_LN


def returns(lists_LN: np.ndarray, credit: str) -> np.ndarray:
    """Return the returns of each rank.

    Args:
        lists_LN: item numbers.
        credit: one of CREDITS; LIST gives every rank the DCG@N of its list.

    Returns:
        (L, N).
    """
    rel_LN, num_ranks = relevance(lists_LN), lists_LN.shape[1]
    patterns, of_list_L = np.unique(rel_LN, axis=0, return_inverse=True)
    if credit == LIST:
        rows = [[dcg(pattern, num_ranks)] * num_ranks for pattern in patterns]
    else:
        rows = [rank_returns(list(pattern), num_ranks, credit, gamma=GAMMA) for pattern in patterns]
    return np.array(rows)[of_list_L.ravel()]


@dataclass(frozen=True)
class Gradient:
    """The gradient that one group of lists has.

    Attributes:
        mean_NM: its expectation.
        noise_N: the trace of its covariance, by rank.
    """

    mean_NM: np.ndarray
    noise_N: np.ndarray

    @property
    def ratio(self) -> float:
        """Signal to noise."""
        return float((self.mean_NM**2).sum() / self.noise_N.sum())

    @property
    def ratio_N(self) -> np.ndarray:
        """Signal to noise of each rank's part."""
        return (self.mean_NM**2).sum(axis=1) / self.noise_N

    def cosine(self, other_NM: np.ndarray) -> float:
        norms = np.linalg.norm(self.mean_NM) * np.linalg.norm(other_NM)
        return float((self.mean_NM * other_NM).sum() / norms)


def dcg_gradient(toy: Toy) -> np.ndarray:
    """Return the gradient of expected DCG@N in the logits, (N, M).

    In closed form: item m earns at rank k when it is drawn there and at no earlier rank, p_km prod_{j<k} (1 - p_jm).
    """
    logits_NM = torch.tensor(np.log(toy.probabilities_NM), requires_grad=True)
    wanted_NW = torch.softmax(logits_NM, dim=1)[:, :WANTED]
    not_before_NW = torch.cat([torch.ones(1, WANTED), (1 - wanted_NW).cumprod(dim=0)[:-1]])
    discount_N = 1 / torch.log2(torch.arange(len(logits_NM), dtype=torch.float64) + 2)
    (discount_N[:, None] * wanted_NW * not_before_NW).sum().backward()
    assert logits_NM.grad is not None
    return logits_NM.grad.numpy()


def exp_inf_gradients(toy: Toy) -> dict[str, np.ndarray]:
    """Return expected gradients of exp_inf in the logits, for large groups and any number of ranks.

    In closed form: r_k is 1 when rank k draws a relevant item m that no earlier rank drew, which has the probability
    q_km = prod_{j<k} (1 - p_jm), so that E[r_k score_k] = p_k (q_k - p_k . q_k). Divided by one deviation for all ranks
    the last two keep their direction; by each rank's own, the last is the first again, whatever its discount.

    Returns:
        (N, M) by name: as it is (divided by each rank's standard deviation), only centred, and centred and discounted
        as DCG is.
    """
    p_NM = toy.probabilities_NM
    q_NM = np.vstack([np.ones(p_NM.shape[1]), (1 - p_NM).cumprod(axis=0)[:-1]])
    q_NM[:, WANTED:] = 0
    hit_N1 = (p_NM * q_NM).sum(axis=1, keepdims=True)
    centred_NM = p_NM * (q_NM - hit_N1)
    discount_N1 = 1 / np.log2(np.arange(len(p_NM))[:, None] + 2)
    by_rank_NM = centred_NM / (np.sqrt(hit_N1 * (1 - hit_N1)) + 1e-4)
    return {"exp_inf": by_rank_NM, "centred": centred_NM, "centred, discounted": discount_N1 * centred_NM}


def weight_of_choice(toy: Toy, lists_LN: np.ndarray, aggregation: Aggregation) -> np.ndarray:
    """Return what the loss multiplies an advantage by in the gradient of a choice's log-probability.

    A factor that is the same everywhere is left out (1 / (G N), and in a large batch 1 / its tokens). An item's tokens
    share a ratio, their geometric mean, so each has 1 / tokens of its item's weight: rank-mean gives items the same
    weight, token-mean one in proportion to their tokens. GRPO's tokens share their list's weight.

    Returns:
        (L, N); all are 1 where items have one token.
    """
    tokens_LN = toy.tokens_M[lists_LN]
    if aggregation == "rank-mean":
        return 1 / tokens_LN
    if aggregation == "token-mean":
        return np.ones(tokens_LN.shape)
    return np.broadcast_to(tokens_LN.shape[1] / tokens_LN.sum(axis=1, keepdims=True), tokens_LN.shape)


def exact(toy: Toy, credit: str, aggregation: Aggregation = PAPER, normalised: bool = True) -> Gradient:
    """Compute the gradient of one large group by enumerating all lists.

    A group's gradient is mean_i (r_i - m) / s * w_i score_i, with its own mean m and standard deviation s of the
    returns. To first order in their errors (delta method) list i adds, with A = (r - E r) / std r and g = E A w score,

        A_i w_i score_i - g  -  A_i E[w score]  -  g (A_i^2 - 1) / 2

    Args:
        toy: the policy.
        credit: one of CREDITS.
        aggregation: of the loss.
        normalised: whether returns are divided by their standard deviation.

    Returns:
        The mean of one group's gradient, and G times its noise.
    """
    lists_LN, weight_L = toy.all_lists()
    returns_LN = returns(lists_LN, credit)
    scores_LNM = weight_of_choice(toy, lists_LN, aggregation)[:, :, None] * toy.scores(lists_LN)
    advantages_LN = returns_LN - weight_L @ returns_LN
    if normalised:
        advantages_LN = advantages_LN / (np.sqrt(weight_L @ advantages_LN**2) + 1e-4)
    mean_NM = np.einsum("l,ln,lnm->nm", weight_L, advantages_LN, scores_LNM)
    added_LNM = advantages_LN[:, :, None] * (scores_LNM - np.einsum("l,lnm->nm", weight_L, scores_LNM)) - mean_NM
    if normalised:
        added_LNM -= mean_NM * (advantages_LN**2 - 1)[:, :, None] / 2
    return Gradient(mean_NM, np.einsum("l,lnm->n", weight_L, added_LNM**2))


def token_places(toy: Toy, lists_BN: np.ndarray) -> tuple[torch.Tensor, np.ndarray]:
    """Lay out the tokens of lists.

    Args:
        toy: has the number of tokens of each item.
        lists_BN: item numbers.

    Returns:
        The rank ids of the tokens, (B, T), -1 after the last, and the place of each item's first token, (B, N).
    """
    tokens_BN = toy.tokens_M[lists_BN]
    ends_BN = tokens_BN.cumsum(axis=1)
    ids_BT = (np.arange(ends_BN.max())[None, :, None] >= ends_BN[:, None, :]).sum(axis=2)
    return torch.tensor(np.where(ids_BT < lists_BN.shape[1], ids_BT, -1)), ends_BN - tokens_BN


def simulated(
    toy: Toy,
    credit: str,
    group_size: int,
    groups: int,
    seed: int,
    aggregation: Aggregation = PAPER,
    shared: bool = False,
) -> tuple[Gradient, float]:
    """Measure the gradient of drawn groups, by the program's own advantages and loss.

    |E g|^2 is estimated without bias: the mean's own variance is subtracted.

    Args:
        toy: the policy.
        credit: one of CREDITS.
        group_size: lists per group.
        groups: number of groups, at least 20.
        seed: random seed of the lists.
        aggregation: of the loss.
        shared: whether the gradient is that of the logits that all ranks share, (1, M).

    Returns:
        The gradient of one group, and the standard error of its ratio, from 20 parts of the groups.
    """
    num_ranks, _ = toy.shape
    lists_BN = toy.draw(groups * group_size, np.random.default_rng(seed))
    uid = np.repeat(np.arange(groups), group_size).tolist()
    advantages_BK = compute_rank_advantages(torch.tensor(returns(lists_BN, credit)), uid)
    rank_ids_BT, first_BN = token_places(toy, lists_BN)
    no_stop_BT = torch.zeros_like(rank_ids_BT, dtype=torch.bool)
    units_BT, advantages_BT = assign_units(rank_ids_BT, advantages_BK, no_stop_BT, num_ranks)
    log_prob_BT = torch.zeros(rank_ids_BT.shape, dtype=torch.float64, requires_grad=True)  # on-policy: any will do
    # as if every group were a batch of its own, of as many tokens as a batch of many groups has for each
    settings = RankLossSettings(num_ranks, aggregation=aggregation)
    tokens = int((rank_ids_BT >= 0).sum() / groups)
    counts = BatchCounts(group_size, batch_num_tokens=tokens)
    loss, _ = compute_rank_policy_loss(log_prob_BT, advantages_BT, units_BT, settings, counts)
    loss.backward()
    assert log_prob_BT.grad is not None
    # without the 1 / N (of token-mean: 1 / tokens of a list), as `exact`
    scale = tokens / group_size if aggregation == "token-mean" else num_ranks
    ascent_BN = -scale * np.take_along_axis(log_prob_BT.grad.numpy(), first_BN, axis=1)
    of_group_SNM = (ascent_BN[:, :, None] * toy.scores(lists_BN)).reshape(groups, group_size, *toy.shape).sum(axis=1)
    if shared:
        of_group_SNM = of_group_SNM.sum(axis=1, keepdims=True)
    parts = [_gradient(part) for part in np.array_split(of_group_SNM, 20)]
    error = np.std([part.ratio for part in parts], ddof=1) / np.sqrt(len(parts))
    return _gradient(of_group_SNM), float(error)


def _gradient(samples_SNM: np.ndarray) -> Gradient:
    mean_NM, noise_NM = samples_SNM.mean(axis=0), samples_SNM.var(axis=0, ddof=1)
    squared = (mean_NM**2).sum()
    signal = max(squared - noise_NM.sum() / len(samples_SNM), 0.0)
    return Gradient(mean_NM * np.sqrt(signal / squared), noise_NM.sum(axis=1))
