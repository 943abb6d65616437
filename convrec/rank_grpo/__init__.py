"""The rank-level method: credit of ranks, policy loss, and the metrics of a step. Tensors in, tensors out; no verl."""

NAME = "rank_grpo"  # in verl's registries, and as trainer.v1.trainer_mode
