"""A slow reference in numpy for the constrained policy and its Rank-GRPO loss (docs/explanation/method.md 9)."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from convrec.features.constrained.catalog_trie import CatalogTrie
from convrec.features.constrained.walk import Walk


class Policy(NamedTuple):
    """The policy at each token of one response.

    rank_T is the line that the token belongs to; grad_TV the gradient of the log-prob with respect to the logits.
    """

    log_prob_T: np.ndarray
    is_free_T: np.ndarray
    rank_T: np.ndarray
    entropy_T: np.ndarray
    grad_TV: np.ndarray


def policy(catalog: CatalogTrie, constraint: Sequence[int], tokens: Sequence[int], logits_TV: np.ndarray) -> Policy:
    walk = Walk(catalog, constraint[0], constraint[1:])
    result = Policy(*(np.zeros(len(tokens)) for _ in range(4)), np.zeros_like(logits_TV))
    for place, token in enumerate(tokens):
        allowed = walk.allowed()
        probabilities = np.exp(logits_TV[place][allowed] - logits_TV[place][allowed].max())
        probabilities /= probabilities.sum()
        result.log_prob_T[place] = np.log(probabilities[allowed.index(token)])
        result.is_free_T[place] = len(allowed) > 1
        result.rank_T[place] = len(walk.items)
        result.entropy_T[place] = -(probabilities * np.log(probabilities)).sum()
        result.grad_TV[place][allowed] = -probabilities
        result.grad_TV[place][token] += 1
        walk.advance(token)
    return result


def loss_and_gradients(
    new: Sequence[Policy],
    old: Sequence[Policy],
    ref: Sequence[Policy],
    advantages_BK: np.ndarray,
    clip: tuple[float, float],
    kl_coef: float,
) -> tuple[float, list[np.ndarray]]:
    """-J + KL of a batch, (G, N) being all of it, and its gradient with respect to each response's logits.

    A rank without a free token has ratio 1 whatever the policy: its term, a constant, is left out.
    """
    B, K = advantages_BK.shape
    loss, gradients = 0.0, [np.zeros_like(one.grad_TV) for one in new]
    for row in range(B):
        for rank in range(K):
            places = np.flatnonzero((new[row].rank_T == rank) & (new[row].is_free_T == 1))
            if not len(places):
                continue
            ratio = np.exp(np.mean(new[row].log_prob_T[places] - old[row].log_prob_T[places]))
            advantage = advantages_BK[row, rank]
            clipped = np.clip(ratio, 1 - clip[0], 1 + clip[1])
            loss -= min(ratio * advantage, clipped * advantage) / (B * K)
            active_advantage = advantage if ratio * advantage <= clipped * advantage else 0.0
            difference = ref[row].log_prob_T[places] - new[row].log_prob_T[places]
            loss += kl_coef * np.mean(np.exp(difference) - difference - 1) / (B * K)
            by_log_prob = (kl_coef * (1 - np.exp(difference)) - active_advantage * ratio) / len(places) / (B * K)
            gradients[row][places] += by_log_prob[:, None] * new[row].grad_TV[places]
    return loss, gradients
