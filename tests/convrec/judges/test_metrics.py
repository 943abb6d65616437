"""The judges' metrics, computed by hand, and cases without a value."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pytest

from convrec.judges import metrics


def summarise_pairwise(
    true: Sequence[str],
    verdicts: Sequence[str | None],
    swapped: Sequence[str | None],
    contexts: Iterable[object],
    sources: Sequence[str] = (),
) -> dict[str, Any]:
    columns = {"label": true, "verdict": verdicts, "verdict_swapped": swapped, "query": contexts}
    return metrics.summarise_pairwise(make_rows(columns, sources))


def summarise_pointwise(
    true: Sequence[int], verdicts: Sequence[int | None], contexts: Iterable[object], sources: Sequence[str] = ()
) -> dict[str, Any]:
    return metrics.summarise_pointwise(make_rows({"label": true, "verdict": verdicts, "query": contexts}, sources))


def make_rows(columns: dict[str, Any], sources: Sequence[str]) -> list[dict[str, Any]]:
    columns["source"] = sources or [""] * len(columns["label"])
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def test_pairwise_by_hand() -> None:
    true = ["A", "A", "B", "B"]
    verdicts = ["A", "B", "B", None]
    swapped = ["B", "B", "A", "B"]  # in the row's own order: A, A, B, A
    summary = summarise_pairwise(true, verdicts, swapped, contexts=range(4))
    assert summary["accuracy"]["mean"] == 2 / 4
    assert summary["accuracy_swapped"]["mean"] == 3 / 4
    assert summary["agreement"]["mean"] == 2 / 4  # rows 0 and 2; no verdict agrees with nothing
    assert summary["no_verdict"]["mean"] == 1 / 8
    assert summary["prefers_a"]["mean"] == pytest.approx((1 / 2 + 0 + 1 / 2 + 0) / 4)
    assert (summary["n"], summary["num_contexts"]) == (4, 4)
    assert summary["right_both_ways"]["mean"] == 2 / 4  # rows 0 and 2
    assert summary["inconsistent"]["mean"] == 1 / 4  # row 1; row 3 has one verdict
    assert summary["judge_bench"]["mean"] == 2 / 4
    assert {name: part["n"] for name, part in summary["by_label"].items()} == {"A": 2, "B": 2}
    assert summary["by_label"]["A"]["accuracy"]["mean"] == 1 / 2


def test_judge_bench_counts_right_verdict_with_a_tie_or_none() -> None:
    """As in its `compute_final_metrics`: +1 for each right verdict, -1 for each wrong one; right if the sum is > 0."""
    verdicts = [("A", None), ("A", "tie"), ("A", "A"), ("tie", "tie"), (None, None), ("A", "B")]
    summaries = [summarise_pairwise(["A"], [verdict], [swapped], ["q"]) for verdict, swapped in verdicts]
    assert [summary["judge_bench"]["mean"] for summary in summaries] == [1, 1, 0, 0, 0, 1]
    assert [summary["right_both_ways"]["mean"] for summary in summaries] == [0, 0, 0, 0, 0, 1]


def test_ties_are_counted_separately() -> None:
    """Rows 0-1 have a better response, 2-5 are ties. A tie is missed only by preferring one response both ways."""
    true = ["A", "B", "tie", "tie", "tie", "tie"]
    verdicts = ["A", "tie", "A", "A", "tie", None]
    swapped = ["B", "tie", "A", "B", "A", "A"]  # in the row's order: A, tie, B, A, B, B
    summary = summarise_pairwise(true, verdicts, swapped, contexts=range(6))
    assert summary["n"] == 2
    assert summary["accuracy"]["mean"] == summary["right_both_ways"]["mean"] == 1 / 2
    assert (summary["says_tie"]["mean"], summary["no_verdict"]["mean"]) == (1 / 2, 0)
    assert summary["ties"]["n"] == 4
    assert summary["ties"]["tied"]["mean"] == 2 / 4  # rows 2 and 4; row 3 prefers A both ways
    assert summary["ties"]["no_verdict"]["mean"] == 1 / 8
    assert summarise_pairwise(["tie"], ["A"], ["A"], ["q"])["ties"]["tied"]["mean"] == 1


@pytest.mark.parametrize("letter", ["A", "B"])
def test_the_pairwise_baseline_has_the_metrics_of_a_constant_judge(letter: str) -> None:
    true = ["A"] * 5 + ["B"] * 3
    summary = summarise_pairwise(true, [letter] * 8, [letter] * 8, contexts=range(8))
    for name, value in summary["baseline"].items():
        best = {"accuracy": max, "accuracy_swapped": max, "prefers_a": max}.get(name)
        other = summarise_pairwise(true, ["AB"[letter == "A"]] * 8, ["AB"[letter == "A"]] * 8, contexts=range(8))
        means = summary[name]["mean"], other[name]["mean"]
        assert value == pytest.approx(best(means) if best else means[0]), name


def test_accuracy_by_source() -> None:
    summary = summarise_pairwise(["A"] * 3, ["A", "B", "A"], ["B", "B", "A"], range(3), ["math", "chat", "math"])
    assert {name: part["accuracy"]["mean"] for name, part in summary["by_source"].items()} == {"chat": 0, "math": 1}
    assert summary["by_source"]["math"]["right_both_ways"]["mean"] == 1 / 2
    summary = summarise_pointwise([4, 0], [4, 4], range(2), ["math", "chat"])
    assert summary["by_source"]["math"]["exact_match"]["mean"] == 1
    assert summary["by_label"]["0"]["exact_match"]["mean"] == 0


def test_pointwise_by_hand() -> None:
    summary = summarise_pointwise([0, 1, 2, 4], [0, 3, 1, None], contexts=range(4))
    assert summary["exact_match"]["mean"] == 1 / 4  # no verdict is wrong
    assert summary["mae"]["mean"] == pytest.approx((0 + 2 + 1) / 3)  # over the verdicts
    assert summary["no_verdict"]["mean"] == 1 / 4
    assert summary["reward"]["mean"] == pytest.approx(1.75 / 4)
    # always 1: (1 + 0 + 1 + 3) / 4; always 2: (2 + 1 + 0 + 2) / 4
    assert (summary["baseline"]["exact_match"], summary["baseline"]["mae"]) == (0.25, 1.25)
    assert "pair_ranking" not in summary  # no query has two responses


def test_a_pointwise_judge_ranks_the_responses_to_a_query() -> None:
    """Query p: true 4 0 0, verdicts 3 3 1. Query q: true 4 4 0, verdicts 2 none 3. Query r: true 1 1, no difference."""
    true = [4, 0, 0, 4, 4, 0, 1, 1]
    verdicts = [3, 3, 1, 2, None, 3, 0, 4]
    summary = summarise_pointwise(true, verdicts, "pppqqqrr")
    # pairs of p: equal .5, right 1; pairs of q: 2 < 3 is wrong, none is wrong
    assert summary["pair_ranking"]["mean"] == (0.5 + 1 + 0 + 0) / 4
    # p: two share the highest verdict, one of them is the best; q: the wrong one has the highest
    assert summary["best_of_n"]["mean"] == (1 / 2 + 0) / 2
    # a constant judge: one of three in p, two of three in q
    assert summary["baseline"]["best_of_n"] == pytest.approx((1 / 3 + 2 / 3) / 2)
    # always 4 is right for three of eight, as is always 0; always 3 or 2 earns .75 or .5 for each of the three
    assert (summary["baseline"]["pair_ranking"], summary["baseline"]["reward"]) == (0.5, 3 / 8)
    silent = summarise_pointwise(true, [None] * 8, "pppqqqrr")
    assert silent["best_of_n"]["mean"] == silent["pair_ranking"]["mean"] == 0


def test_standard_errors_are_over_queries() -> None:
    """Ten copies of each row are no more evidence; for independent rows, the standard error is the binomial one."""
    rng = np.random.default_rng(0)
    true = ["A"] * 400
    verdicts = ["A" if right else "B" for right in rng.random(400) < 0.7]
    alone = summarise_pairwise(true, verdicts, verdicts, contexts=range(400))["accuracy"]
    copied = summarise_pairwise(true * 10, verdicts * 10, verdicts * 10, contexts=[*range(400)] * 10)["accuracy"]
    assert alone["se"] == pytest.approx(math.sqrt(0.7 * 0.3 / 400), rel=0.1)
    assert copied["se"] == pytest.approx(alone["se"], rel=0.05)


def test_without_any_verdict_mae_is_nan() -> None:
    summary = summarise_pointwise([1, 3], [None, None], contexts=range(2))
    assert summary["exact_match"]["mean"] == 0
    assert summary["no_verdict"]["mean"] == 1
    assert math.isnan(summary["mae"]["mean"])
