"""What the metrics of RUN/metrics/*.jsonl and of the trackers mean, name by name: those that are this program's own.

The rest (`perf/`, `timing_s/`, `critic/`, `response_length/`, `training/`, `val-core/`, `val-aux/`) is logged by verl.
A bucket is a range of ranks: `all`, `1`, `2-5`, `6-10`, ..., `stop` (a stop before the N-th item) or `overflow`.
"""

from collections.abc import Mapping
from fnmatch import fnmatchcase

SFT: Mapping[str, str] = {
    "train/loss": "mean loss of a completion token, in nats",
    "train/grad_norm": "norm of the gradient before clipping",
    "train/lr": "the learning rate that the step was trained with",
    "val/loss": "the loss on VAL_FILE",
}
_LIST: Mapping[str, str] = {
    "score": "the scalar that verl shows: DCG@N of the relevance",
    "reward": "verl's name for the score",
    "dcg": "DCG@N of the relevance",
    "recall": "share of the ground truths that are hit",
    "ndcg": "DCG@N over the ideal DCG@N",
    "hits": "items that are in the ground truth",
    "catalog_hit_ratio": "share of the items that are in the catalog",
    "num_items": "items of a list",
    "unparsable": "lines that are no item",
    "duplicates": "items that stood at an earlier rank",
    "overflow": "1 where a list has more than N items; a mean is a share of lists",
    "underflow": "1 where a list has fewer than N items; a mean is a share of lists",
}
RANK_GRPO: Mapping[str, str] = {
    "rank_grpo/return@*": "mean return at this rank",
    "rank_grpo/zero_std/all_ranks": "share of prompts whose rollouts earn the same at every rank, which train nothing",
    "rank_grpo/zero_std/*": "share of (prompt, rank) pairs of the bucket whose rollouts earn the same",
    "rank_grpo/part/*/return": "REWARDS: mean return of this part over responses and ranks",
    "rank_grpo/part/*/signal": "REWARDS: share of (prompt, rank) pairs whose rollouts differ in this part",
    "rank_grpo/part/*/advantage": "REWARDS: mean of |weight x advantage of this part alone|",
    "rank_grpo/truncated": "share of responses without a stop token",
    "rank_grpo/forced": "CONSTRAINED=1: share of response tokens that were the only one allowed",
    **{f"rank_grpo/{name}": text for name, text in _LIST.items() if name != "reward"},
    **{f"val/{name}": f"{text}; mean over the rows of VAL_FILE" for name, text in _LIST.items()},
    "val/*_se": "standard error of val/*: rows of one conversation count as one draw",
    "actor/policy_loss": "the loss without its KL term",
    "actor/approx_kl": "mean over tokens of old minus new log-prob",
    "actor/kl_loss": "the KL term, coefficient included (GRPO, GSPO: verl's, without it)",
    "actor/kl": "k3 estimate of the KL to the start, in nats a token",
    "actor/ratio_mean/*": "mean importance ratio of the bucket's ranks",
    "actor/ratio_min/*": "the smallest of them",
    "actor/ratio_max/*": "the largest of them",
    "actor/clip_low/*": "share of the bucket's ranks whose ratio is clipped from below",
    "actor/clip_high/*": "share of the bucket's ranks whose ratio is clipped from above",
    "actor/rollout_diff_mean": "mean of |log p(vLLM) - log p(actor)| of the sampled tokens",
    "actor/rollout_diff_max": "the largest of these differences",
    "actor/grad_norm": "norm of the gradient before clipping",
    "actor/lr": "the learning rate that the step was trained with",
    "actor/entropy": "mean surprisal of the sampled tokens, in nats: an estimate of the entropy",
}
_VERDICTS = {
    "score": "mean reward of the answers",
    "no_verdict": "share of answers without a readable verdict",
    "exact_match": "pointwise: share of answers with the very score",
    "predicted_helpfulness": "pointwise: mean score that was given; an answer without one counts as -1",
    "true_helpfulness": "pointwise: mean score of the rows",
    "accuracy": "pairwise: share of answers with the right letter",
    "prefers_a": "pairwise: share of answers that say A",
    "true_a": "pairwise: share of rows where A is right",
}
JUDGES: Mapping[str, str] = {
    **{f"reward/{name}": text for name, text in _VERDICTS.items()},
    "reward/zero_std": "share of groups whose rollouts all earn the same, which train nothing",
    "reward/right_both_ways": "pairwise, both orders in a batch: share of pairs that are right in both",
    **{f"val/{name}": f"{text}; over the rows of VAL_FILE" for name, text in _VERDICTS.items()},
    "val/*_se": "standard error of val/*: rows of one query count as one draw",
}
BY_RECIPE: Mapping[str, Mapping[str, str]] = {"SFT": SFT, "Rank-GRPO, GRPO, GSPO": RANK_GRPO, "Judges": JUDGES}


def meaning(name: str) -> str | None:
    """What the metric is; None for a name that is not in these tables."""
    for table in BY_RECIPE.values():
        for pattern, text in table.items():
            if fnmatchcase(name, pattern):
                return text
    return None
