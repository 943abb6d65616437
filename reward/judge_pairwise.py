"""The reward of a pairwise judge, where conf/judge_pairwise.yaml has verl look for it."""

from convrec.judges.pairwise_reward import compute_score

__all__ = ["compute_score"]
