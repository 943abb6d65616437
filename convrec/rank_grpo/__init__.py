"""The rank-level method: credit of ranks, policy loss, and what a step logs. Tensors in, tensors out; no verl."""

NAME = "rank_grpo"  # in verl's registries, and as trainer.v1.trainer_mode
