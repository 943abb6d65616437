"""The algorithms that `ALGORITHM` chooses from: the method and its baselines.

To add one: an entry in ALGORITHMS, and conf/algorithm_preset/<name>.yaml with its estimator, policy loss and clipping
(and trainer.v1.trainer_mode, where it needs another trainer than the recipe's).
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Algorithm:
    """title: what a run with it calls itself."""

    name: str
    title: str


ALGORITHMS = {
    algorithm.name: algorithm
    for algorithm in (Algorithm("rank_grpo", "Rank-GRPO"), Algorithm("grpo", "GRPO"), Algorithm("gspo", "GSPO"))
}
