"""The algorithms that `ALGORITHM` chooses from, the method and its baselines: name -> what a run with it calls itself.

To add one: an entry, and conf/algorithm_preset/<name>.yaml with its estimator, policy loss and clipping (and
trainer.v1.trainer_mode, where it needs another trainer than the recipe's).
"""

ALGORITHMS = {"rank_grpo": "Rank-GRPO", "grpo": "GRPO", "gspo": "GSPO"}
