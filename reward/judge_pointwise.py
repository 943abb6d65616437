"""The reward of a pointwise judge, where conf/judge_pointwise.yaml has verl look for it."""

from convrec.judges.pointwise_reward import compute_score

__all__ = ["compute_score"]
