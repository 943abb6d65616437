"""What every metric means: docs/reference/metrics.md is this table.

tests/convrec/report/test_metric_table.py compares the names with those that recorded runs log and evaluations report.

Formulas use the notation of docs/explanation/method.md: N ranks, relevance rel_k and return r_k at rank k, advantage A,
importance ratio w of a unit (a rank, or the stop token).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase


@dataclass(frozen=True)
class Metric:
    """One or several metrics with the same definition.

    Attributes:
        names: as they are logged or reported. `*` stands for a rank, a bucket of ranks, a part or a metric's name.
        definition: formula or definition.
        unit: "" for a share or a ratio.
        condition: the setting without which it is not there, "" for none.
    """

    names: tuple[str, ...]
    definition: str
    unit: str = ""
    condition: str = ""

    def matches(self, name: str) -> bool:
        """Return whether a name is one of these."""
        return any(fnmatchcase(name, pattern) for pattern in self.names)


@dataclass(frozen=True)
class MetricGroup:
    """Metrics from one source.

    Attributes:
        title: heading on the page.
        place: where the metrics are found, as a sentence.
        metrics: the table.
    """

    title: str
    place: str
    metrics: Sequence[Metric]


def find_metric(name: str, groups: Sequence[MetricGroup]) -> Metric | None:
    """Return the first metric of this name, None where no group has it."""
    return next((metric for group in groups for metric in group.metrics if metric.matches(name)), None)


RUN_METRICS = "`RUN/metrics/*.jsonl` and the trackers"

SFT = MetricGroup(
    "SFT",
    f"In {RUN_METRICS}: `train/*` at each step, `val/*` at each validation (TEST_FREQ).",
    (
        Metric(("train/loss",), "mean of -log p over the completion tokens of the step", "nats per token"),
        Metric(("train/grad_norm",), "L2 norm of the gradient before clipping"),
        Metric(("train/lr",), "learning rate of the step"),
        Metric(("train/global_tokens",), "tokens of the step on all devices, prompts included", "tokens"),
        Metric(("train/total_tokens(B)",), "tokens since the start of the run", "billions of tokens"),
        Metric(("val/loss",), "mean of -log p over the completion tokens of VAL_FILE", "nats per token"),
    ),
)

LISTS_LOGGED = (
    *("score", "dcg", "recall", "ndcg", "hits", "catalog_hit_ratio", "num_items", "unparsable"),
    *("duplicates", "overflow", "underflow"),
)
RANK_GRPO_SAMPLED = MetricGroup(
    "Rank-GRPO, GRPO, GSPO: sampled lists",
    f"In {RUN_METRICS}, at each step. Means are over the lists that the policy sampled.",
    (
        Metric(("rank_grpo/return@*",), "mean of r_k at rank k = 1, 2, 5, 10, 15, 20"),
        Metric(("rank_grpo/score", "rank_grpo/dcg"), "DCG@N: sum over k of rel_k / log2(k + 1)"),
        Metric(("rank_grpo/ndcg",), "DCG@N / DCG@N of an ideal list, which has all relevant items first"),
        Metric(("rank_grpo/recall",), "hits / number of relevant items"),
        Metric(("rank_grpo/hits",), "sum over k of rel_k", "items per list"),
        Metric(("rank_grpo/catalog_hit_ratio",), "share of the first N lines that name an item of the catalog"),
        Metric(("rank_grpo/num_items",), "lines of the list", "lines"),
        Metric(("rank_grpo/unparsable",), "lines among the first N that are not `Title (Year)`", "lines per list"),
        Metric(("rank_grpo/duplicates",), "lines among the first N that repeat an earlier item", "lines per list"),
        Metric(("rank_grpo/overflow",), "share of lists with more than N lines"),
        Metric(("rank_grpo/underflow",), "share of lists with fewer than N lines"),
        Metric(("rank_grpo/truncated",), "share of responses without a stop token", "", "ALGORITHM=rank_grpo"),
        Metric(("rank_grpo/no_hit",), "share of prompts for which no list has a hit"),
        Metric(("rank_grpo/zero_std/all_ranks",), "share of groups whose lists have equal r_k at every rank"),
        Metric(("rank_grpo/zero_std/*",), "share of the bucket's (group, rank) pairs with equal r_k: no signal"),
        Metric(("rank_grpo/part/*/return",), "mean return of this part over lists and ranks", "", "REWARDS"),
        Metric(("rank_grpo/part/*/signal",), "share of (group, rank) pairs that differ in this part", "", "REWARDS"),
        Metric(("rank_grpo/part/*/advantage",), "mean of abs(weight x advantage of this part alone)", "", "REWARDS"),
        Metric(("rank_grpo/forced",), "share of response tokens that were the only one allowed", "", "CONSTRAINED"),
        Metric(("rank_grpo/questions",), "mean number of questions before the list", "questions", "ASK"),
        Metric(("rank_grpo/repaired",), "share of groups in which one list was given a relevant title", "", "REPAIR"),
        Metric(("rank_grpo/sampled_tokens",), "share of trained tokens that the policy sampled itself", "", "REPAIR"),
    ),
)

RANK_GRPO_UPDATE = MetricGroup(
    "Rank-GRPO, GRPO, GSPO: updates",
    f"In {RUN_METRICS}, at each step. GRPO and GSPO use verl's loss: of this table they log `loss`, `kl_loss`, "
    "`entropy`, `grad_norm` and `lr`.",
    (
        Metric(("actor/loss",), "policy loss plus KL term"),
        Metric(("actor/policy_loss",), "-sum over tokens of weight x min(w A, clip(w, 1 - low, 1 + high) A)"),
        Metric(("actor/kl_loss",), "KL_LOSS_COEF x weighted sum of k3; GRPO, GSPO, judges: without the coefficient"),
        Metric(("actor/kl",), "mean over tokens of k3 = exp(d) - d - 1, d = log p_initial - log p", "nats per token"),
        Metric(("actor/approx_kl",), "mean over tokens of log p_old - log p", "nats per token"),
        Metric(("actor/ratio_mean/*",), "mean of w = exp(mean over the unit's tokens of log p - log p_old)"),
        Metric(("actor/ratio_min/*", "actor/ratio_max/*"), "smallest and largest w of the bucket"),
        Metric(("actor/clip_low/*",), "share of the bucket's units with A < 0 and w < 1 - low"),
        Metric(("actor/clip_high/*",), "share of the bucket's units with A > 0 and w > 1 + high"),
        Metric(("actor/rollout_diff_mean",), "mean over compared tokens of abs(log p_vLLM - log p_actor)", "nats"),
        Metric(("actor/rollout_diff_max",), "largest abs(log p_vLLM - log p_actor)", "nats"),
        Metric(("actor/entropy",), "mean of -log p over sampled tokens: an estimate of the entropy", "nats per token"),
        Metric(("actor/grad_norm",), "L2 norm of the gradient before clipping"),
        Metric(("actor/lr",), "learning rate of the step"),
    ),
)

VALIDATION = MetricGroup(
    "Rank-GRPO, GRPO, GSPO: validation",
    f"In {RUN_METRICS}, at each validation (TEST_FREQ): one greedy list for each conversation of VAL_FILE.",
    (
        Metric(
            tuple(f"val/{name}" for name in LISTS_LOGGED),
            "mean of the same figure as above over the rows of VAL_FILE",
        ),
        Metric(("val/reward",), "the same as `val/score`, by verl's name"),
        Metric(("val/*_se",), "standard error of the mean; rows of one conversation count as one draw"),
    ),
)

JUDGE_LOGGED = {
    "score": "mean reward of the answers",
    "no_verdict": "share of answers without a readable verdict",
    "exact_match": "pointwise: share of answers with exactly the true score",
    "predicted_helpfulness": "pointwise: mean score given; -1 for an answer without one",
    "true_helpfulness": "pointwise: mean true score",
    "accuracy": "pairwise: share of answers that name the better response",
    "prefers_a": "pairwise: share of answers that name A",
    "true_a": "pairwise: share of rows in which A is better",
}
JUDGES = MetricGroup(
    "Judges",
    f"In {RUN_METRICS}: `reward/*` at each step, `val/*` at each validation, over the rows of VAL_FILE.",
    (
        *(Metric((f"reward/{name}", f"val/{name}"), text) for name, text in JUDGE_LOGGED.items()),
        Metric(("reward/zero_std",), "share of groups whose answers all earn the same: no learning signal"),
        Metric(
            ("reward/right_both_ways",),
            "pairwise: share of pairs that are judged right in both orders",
            "",
            "convrec.orders",
        ),
        Metric(("val/reward",), "the same as `val/score`, by verl's name"),
        Metric(("val/*_se",), "standard error of the mean; rows of one query count as one draw"),
    ),
)

LOGGED_BY_VERL = MetricGroup(
    "Logged by verl",
    f"In {RUN_METRICS}, at each step of RL. verl defines these; with REPAIR, `critic/*` and `response_length/*` count "
    "repaired lists.",
    (
        Metric(("actor/pg_loss",), "policy loss of GRPO, GSPO and judges"),
        Metric(("actor/pg_clipfrac", "actor/pg_clipfrac_lower"), "share of tokens whose ratio is clipped"),
        Metric(("actor/ppo_kl",), "mean over tokens of log p_old - log p", "nats per token"),
        Metric(("actor/kl_coef",), "coefficient of the KL term"),
        Metric(("critic/*",), "rewards, returns and advantages: mean, smallest, largest"),
        Metric(
            ("prompt_length/*", "response/*", "response_length/*", "response_length_non_aborted/*"),
            "lengths of prompts and responses, and the share at the limit",
            "tokens",
        ),
        Metric(("num_turns/*", "training/num_turns/*"), "messages of a conversation"),
        Metric(("global_seqlen/*",), "tokens of each data-parallel process", "tokens"),
        Metric(("timing_s/*",), "time of each phase of the step", "seconds"),
        Metric(("timing_per_token_ms/*",), "time of each phase for each token", "milliseconds"),
        Metric(("perf/*",), "throughput, memory and time of the step"),
        Metric(("training/global_step", "training/epoch"), "number of the step and of the epoch"),
        Metric(("training/rollout_*",), "differences between vLLM's and the actor's probabilities"),
        Metric(("training/off_policy/*",), "steps between the policies that sampled and trained", "steps"),
        Metric(("training/filter_groups/*",), "samples that dynamic sampling left out", "samples"),
        Metric(("rollout_corr/*",), "weights of rollout correction, and distances of the two policies"),
        Metric(("val-core/*", "val-aux/*"), "the figures of `val/*`, by verl's names"),
    ),
)

RUN_GROUPS = (SFT, RANK_GRPO_SAMPLED, RANK_GRPO_UPDATE, VALIDATION, JUDGES, LOGGED_BY_VERL)

EVALUATION = MetricGroup(
    "Evaluation: accuracy",
    "In `OUT/metrics.json` of `convrec evaluate`, below `results.PROTOCOL.MODEL`. Figures with a standard error are "
    "`{mean, se}`; errors are by bootstrap over contexts (distinct prompts).",
    (
        Metric(("recall@*",), "hits among the first k items / number of relevant items"),
        Metric(("ndcg@*",), "DCG@k / DCG@k of min(k, number of relevant items) hits at the top"),
        Metric(("catalog_hit_ratio",), "share of all lines that name an item of the catalog"),
        Metric(("distinct_items",), "items of the catalog that at least one list has", "items"),
        Metric(("list_length_errors",), "lists whose length is not N", "lists"),
        Metric(("items_per_list",), "mean number of lines", "lines"),
        Metric(("repeats_per_list",), "mean number of catalog items that a list names again", "items"),
        Metric(("n",), "rows with relevant items: those that are scored", "rows"),
        Metric(("num_contexts",), "contexts (distinct prompts) among them", "contexts"),
        Metric(("without_ground_truth",), "rows without relevant items, which are left out", "rows"),
    ),
)

BEYOND_ACCURACY = MetricGroup(
    "Evaluation: beyond accuracy",
    "In the same place, as `{mean, se, n}`. L is the set of catalog items among a list's first N lines, m(i) the "
    "number of training rows in which item i is relevant.",
    (
        Metric(("coverage",), "share of the catalog's items that at least one list has"),
        Metric(("gini",), "sum over i of (2 i - M - 1) c(i) / (M sum of c), c: ascending counts of the M items"),
        Metric(("popularity_lift",), "mean m of recommended items / mean m of relevant items - 1"),
        Metric(("novelty",), "mean over L of -log2(m(i) / training rows), m at least 1", "bits"),
        Metric(("cold_share",), "share of L with m = 0"),
        Metric(("diversity",), "mean over pairs of L of 1 - (genres in common / genres of either)"),
        Metric(("calibration",), "KL(p, .99 q + .01 p), genres p of titles in the conversation and q of L", "nats"),
    ),
)

DIALOGUES = MetricGroup(
    "Evaluation: conversations with questions",
    "In the same place, with `--user`.",
    (
        Metric(("questions",), "mean number of questions", "questions"),
        Metric(("useful",), "share of questions about a label that all relevant items share and nobody had said"),
        Metric(("malformed",), "share of conversations whose last turn is neither a list nor an allowed question"),
        Metric(("success_by_*",), "share of conversations with a hit in a list at this turn or before"),
        Metric(("ndcg_after_*",), "NDCG at the largest k over the conversations with this many questions"),
    ),
)

JUDGE_EVALUATION = MetricGroup(
    "Evaluation of judges",
    "In `OUT/metrics.json` of `convrec evaluate --judge`, below `results`, as `{mean, se}`; errors are by bootstrap "
    "over queries.",
    (
        Metric(("accuracy",), "pairwise: share of rows in which the verdict names the better response"),
        Metric(("accuracy_swapped",), "pairwise: the same with A and B exchanged"),
        Metric(("right_both_ways",), "pairwise: share of rows judged right in both orders"),
        Metric(("judge_bench",), "pairwise: share of rows with more right than wrong verdicts in the two orders"),
        Metric(("agreement",), "pairwise: share of rows whose two orders prefer the same response"),
        Metric(("inconsistent",), "pairwise: share of rows whose two orders prefer different responses"),
        Metric(("says_tie",), "pairwise: share of verdicts that prefer neither"),
        Metric(("prefers_a",), "pairwise: share of A among preferences; 0.5 without position bias"),
        Metric(("exact_match",), "pointwise: share of verdicts equal to the true score"),
        Metric(("mae",), "pointwise: mean of abs(verdict - true score), over answers with a verdict", "points"),
        Metric(("reward",), "pointwise: mean reward of the answers"),
        Metric(("pair_ranking",), "pointwise: share of response pairs ranked right; equal verdicts count 0.5"),
        Metric(("best_of_n",), "pointwise: chance that the response with the highest verdict is a best one"),
        Metric(("no_verdict",), "share of answers without a readable verdict"),
    ),
)

EVALUATION_GROUPS = (EVALUATION, BEYOND_ACCURACY, DIALOGUES, JUDGE_EVALUATION)
