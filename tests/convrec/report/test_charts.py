"""Charts: one for each metric of a run, one for all returns of a single run; captions; smoothing."""

from convrec.report.charts import Chart, make_charts, smooth_points
from convrec.report.curves import RunCurves

SERIES = {
    "rank_grpo/return@1": {1: 0.2, 2: 0.3},
    "rank_grpo/return@20": {1: 0.0, 2: 0.1},
    "val/ndcg": {0: 0.371, 4: 0.373},
    "val/ndcg_se": {0: 0.014, 4: 0.014},
}


def run(name: str, series: dict[str, dict[int, float]]) -> RunCurves:
    return RunCurves(name, "rank_grpo", "Rank-GRPO", series)


def test_returns_share_a_chart_for_one_run_and_split_for_several() -> None:
    (returns, ndcg) = make_charts([run("a", SERIES)])
    assert returns.lines == {"rank 1": {1: 0.2, 2: 0.3}, "rank 20": {1: 0.0, 2: 0.1}}
    assert ndcg.lines == {"Rank-GRPO": {0: 0.371, 4: 0.373}}
    assert (returns.last_step, ndcg.last_step) == (4, 4)  # the same scale of steps
    without = run("b", {"rank_grpo/return@1": {1: 0.5}})
    titles = {chart.title: chart.lines for chart in make_charts([run("a", SERIES), without])}
    assert list(titles) == ["Return at rank 1", "Return at rank 20", "Validation NDCG in training (strict)"]
    # a run without values keeps its place, which determines its colour
    assert titles["Return at rank 20"] == {"Rank-GRPO a": {1: 0.0, 2: 0.1}, "Rank-GRPO b": {}}


def test_caption_explains_error_bands_and_missing_errors() -> None:
    (*_, known) = make_charts([run("a", SERIES)])
    assert known.caption == "Band: one standard error to each side (over the validation conversations)."
    alone = run("alone", {"val/ndcg": {0: 0.37}})  # validated on one conversation
    assert make_charts([alone])[0].caption == "The standard error was not logged: a small change may be noise."
    (*_, both) = make_charts([run("a", SERIES), alone])
    assert "one standard error" in both.caption
    assert "The standard error of Rank-GRPO alone was not logged" in both.caption
    assert Chart("Loss", "nats", {"a": {1: 1.0}}).caption == ""  # a metric without standard errors
    noisy = Chart("Loss", "nats", {"a": dict.fromkeys(range(48), 1.0)}, smooth=True)
    assert noisy.caption == "Each point is the mean of about 4 steps."


def test_smoothing_is_centred_and_keeps_the_first_point() -> None:
    points = [(1, 9.0), (2, 3.0), (4, 3.0), (5, 0.0)]
    # (9 + 3 + 3) / 3 = 5, (3 + 3 + 0) / 3 = 2, (3 + 0) / 2 = 1.5
    assert smooth_points(points, 2) == [(1, 9.0), (2, 5.0), (4, 2.0), (5, 1.5)]
    assert smooth_points(points, 1) == points
