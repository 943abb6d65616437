"""A study's results are kept, and restored on another machine, where the other runs are trained."""

import json
from pathlib import Path

import pandas as pd

from benchmarks.studies.ranks.kept import CURVES, VALUES, keep, restore
from benchmarks.studies.ranks.runs import BEYOND, beyond_accuracy
from convrec.base.files import read_json, write_json
from convrec.runs.folder import read_metrics
from recipes.evaluation.scoring import load_rows
from tests.user_errors import refuses


def evaluated(out: Path, name: str, values: list[float], run: str = "grpo-s1") -> None:
    folder = out / name
    folder.mkdir(parents=True)
    rows = {"sample_id": [f"s{n}" for n in range(len(values))], "prompt_id": "p", "text": "Heat (1995)"}
    pd.DataFrame(rows | dict.fromkeys(VALUES, values)).to_parquet(folder / "rows.parquet")
    if name.startswith("evaluation/"):
        model = {metric: {"mean": values[0], "se": 0.125} for metric in BEYOND}
        write_json(folder / "metrics.json", {"results": {"paper": {"model": model}}})
    (out / run / "metrics").mkdir(parents=True, exist_ok=True)
    curves = dict.fromkeys(CURVES, 0.5)
    lines = [{"step": step, "data": curves | {"actor/kl": step / 8, "timing_s/step": 3.0}} for step in (1, 2)]
    (out / run / "metrics" / "0001.jsonl").write_text("\n".join(map(json.dumps, lines)))


def test_what_is_kept_on_one_machine_goes_on_on_another(tmp_path: Path) -> None:
    first, second, kept = tmp_path / "first", tmp_path / "second", tmp_path / "kept"
    evaluated(first, "evaluation/grpo-s1", [0.5, float("nan"), 0.25])
    evaluated(first, "equal_kl/grpo-s1_step_50", [0.5, 0.75, 0.0])
    rows = pd.read_parquet(first / "evaluation" / "grpo-s1" / "rows.parquet").assign(**{"ndcg@20": [1.0, 0.0, 0.5]})
    rows.to_parquet(first / "evaluation" / "grpo-s1" / "rows_constrained.parquet")
    (first / "unfinished-s1" / "metrics").mkdir(parents=True)
    (first / "unfinished-s1" / "metrics" / "0001.jsonl").write_text('{"step": 1, "data": {"actor/kl": 1.0}}')
    keep(first, kept)
    restore(kept, second)
    evaluated(second, "evaluation/gspo-s1", [0.0, 0.5, 1.0], run="gspo-s1")
    keep(second, kept)
    restore(kept, first)
    assert pd.DataFrame(load_rows(first / "evaluation" / "gspo-s1").values())["ndcg@20"].tolist() == [0.0, 0.5, 1.0]
    of_constrained = load_rows(second / "evaluation_constrained" / "grpo-s1").values()
    assert [row["ndcg@20"] for row in of_constrained] == [1.0, 0.0, 0.5]
    for name in ("evaluation/grpo-s1", "equal_kl/grpo-s1_step_50"):
        then, now = (
            pd.DataFrame(load_rows(out / name).values()).drop(columns="text", errors="ignore")
            for out in (first, second)
        )
        pd.testing.assert_frame_equal(then, now, check_dtype=False)
    assert beyond_accuracy(second / "evaluation" / "grpo-s1") == dict.fromkeys(BEYOND, 0.5)
    assert beyond_accuracy(first / "evaluation" / "gspo-s1") == dict.fromkeys(BEYOND, 0.0)
    logged = read_metrics(second / "grpo-s1")
    assert [(entry["step"], entry["actor/kl"], entry["val/ndcg"]) for entry in logged] == [
        (1, 0.125, 0.5),
        (2, 0.25, 0.5),
    ]
    assert "timing_s/step" not in logged[0]
    assert {file.parent.name for file in second.glob("*/metrics")} == {"grpo-s1", "gspo-s1"}


def test_a_run_that_was_evaluated_again_replaces_what_was_kept(tmp_path: Path) -> None:
    for value in (0.25, 0.5):
        out = tmp_path / str(value)
        evaluated(out, "evaluation/grpo-s1", [value])
        keep(out, tmp_path / "kept")
    assert pd.read_parquet(tmp_path / "kept" / "rows.parquet")["evaluation/grpo-s1:ndcg@20"].tolist() == [0.5]
    assert read_json(tmp_path / "kept" / "beyond.json") == {"grpo-s1": dict.fromkeys(BEYOND, 0.5)}
    assert len(pd.read_parquet(tmp_path / "kept" / "curves.parquet")) == 2 * len(CURVES)


def test_other_conversations_are_not_mixed_in(tmp_path: Path) -> None:
    evaluated(tmp_path / "one", "evaluation/grpo-s1", [0.5])
    evaluated(tmp_path / "two", "evaluation/grpo-s1", [0.5, 0.25])
    keep(tmp_path / "one", tmp_path / "kept")
    with refuses("study.other-conversations", tmp_path / "two"):
        keep(tmp_path / "two", tmp_path / "kept")
    with refuses("study.nothing-evaluated", tmp_path / "none"):
        keep(tmp_path / "none", tmp_path / "other")
    with refuses("study.missing-rows", tmp_path / "other"):
        restore(tmp_path / "other", tmp_path / "one")
