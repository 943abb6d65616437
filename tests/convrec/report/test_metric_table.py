"""The table of metrics has the names that recorded runs log and evaluations report, and no others."""

import json
from collections.abc import Iterable
from pathlib import Path

from convrec.judges.metrics import summarise_pairwise, summarise_pointwise
from convrec.lists.metrics import summarise
from convrec.report.metric_table import (
    BEYOND_ACCURACY,
    DIALOGUES,
    EVALUATION,
    JUDGE_EVALUATION,
    LOGGED_BY_VERL,
    RUN_GROUPS,
    Metric,
    MetricGroup,
    find_metric,
)
from convrec.report.panels import PANELS
from recipes.evaluation.beyond_accuracy import DIALOGUE_MEASURES, GENRE_MEASURES, MENTION_MEASURES, SPLIT_MEASURES

GOLDEN = Path(__file__).parents[2] / "golden" / "training"


def read_logged_names() -> set[str]:
    """Return the metrics of the 25 recorded runs: every recipe and feature."""
    runs = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(GOLDEN.glob("*.json"))]
    return {name for run in runs for step in run["steps"] for name in step} - {"step"}


def find_undescribed(names: Iterable[str], *groups: MetricGroup) -> list[str]:
    return sorted(name for name in names if find_metric(name, groups) is None)


def find_unseen(names: Iterable[str], *groups: MetricGroup) -> list[str]:
    """Return the patterns of the groups that match none of the names."""
    seen = list(names)
    patterns = [pattern for group in groups for metric in group.metrics for pattern in metric.names]
    return [pattern for pattern in patterns if not any(Metric((pattern,), "").matches(name) for name in seen)]


def test_the_table_has_what_recorded_runs_log_and_nothing_else() -> None:
    logged = read_logged_names()
    assert len(logged) > 150
    assert find_undescribed(logged, *RUN_GROUPS) == []
    ours = [group for group in RUN_GROUPS if group is not LOGGED_BY_VERL]
    assert find_unseen(logged, *ours) == []
    measured = ["timing_s/*", "timing_per_token_ms/*", "perf/*"]  # recordings leave out what the machine decides
    assert find_unseen(logged, LOGGED_BY_VERL) == measured


def test_the_table_has_every_metric_that_a_report_draws() -> None:
    drawn = {panel.metric for panels in PANELS.values() for panel in panels}
    assert find_undescribed((name for name in drawn if not name.startswith("evaluated/")), *RUN_GROUPS) == []


def test_the_table_has_what_an_evaluation_of_lists_reports() -> None:
    row = {"num_truth": 1, "num_items": 2, "num_in_catalog": 1, "catalog_rows": [0], "recall@1": 1.0, "ndcg@1": 1.0}
    reported = [*summarise([row, row], [1], ["a", "b"]), "items_per_list", "repeats_per_list"]
    assert find_undescribed(reported, EVALUATION) == []
    assert find_unseen(reported, EVALUATION) == []
    beyond = (*SPLIT_MEASURES, *MENTION_MEASURES, *GENRE_MEASURES)
    assert find_undescribed(beyond, BEYOND_ACCURACY) == []
    assert find_unseen(beyond, BEYOND_ACCURACY) == []
    assert find_undescribed(DIALOGUE_MEASURES, DIALOGUES) == []
    assert find_unseen(DIALOGUE_MEASURES, DIALOGUES) == []


def test_the_table_has_what_an_evaluation_of_judges_reports() -> None:
    common = {"query": "q", "source": "s"}
    pairs = [{"label": "A", "verdict": "A", "verdict_swapped": "B", **common}] * 2
    scores = [{"label": label, "verdict": label, **common} for label in (1, 3)]
    summaries = summarise_pairwise(pairs) | summarise_pointwise(scores)
    reported = [name for name, value in summaries.items() if isinstance(value, dict) and "mean" in value]
    assert find_undescribed(reported, JUDGE_EVALUATION) == []
    assert find_unseen(reported, JUDGE_EVALUATION) == []
