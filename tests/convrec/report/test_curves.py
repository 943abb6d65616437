"""The curves of runs: repeated steps, step 0 and the last step, sweeps, names, the table."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from convrec.base.errors import UserError
from convrec.report.charts import make_charts
from convrec.report.curves import label_runs, read_csv, read_curves, write_csv
from recipes import plot
from tests.user_errors import refuses


def write_run(
    folder: Path, recipe: str, starts: list[dict[int, dict[str, float]]], algorithm: str = "rank_grpo"
) -> Path:
    (folder / "metrics").mkdir(parents=True)
    for number, steps in enumerate(starts, start=1):
        lines = [json.dumps({"step": step, "data": data}) for step, data in steps.items()]
        (folder / "metrics" / f"{number:04d}.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "config.yaml").write_text(f"run: {{recipe: {recipe}, algorithm: {algorithm}}}\n")
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run that was validated at step 0, stopped after step 2 and resumed at step 1: step 2 is logged twice."""
    no_number = {"note": "text", "train/loss": math.nan}
    first = {0: {"val/ndcg": 0.1}, 1: {"rank_grpo/return@1": 0.2} | no_number, 2: {"rank_grpo/return@1": 0.9}}
    second = {2: {"rank_grpo/return@1": 0.3}, 3: {"rank_grpo/return@1": 0.4, "val/ndcg": 0.5}}
    return write_run(tmp_path / "a" / "run", "rank_grpo", [first, second])


def sweep(run: Path, split: str = "test", protocol: str = "paper") -> None:
    rows = [{"step": 0, "ndcg@5": 0.1, "ndcg@5 se": None, "ndcg@20": 0.2, "recall@20": 0.3, "in catalog": 1.0}]
    rows[0]["ndcg@20 se"] = 0.05
    rows.append(rows[0] | {"step": 3, "ndcg@20": 0.4, "ndcg@20 se": math.nan})  # evaluated on one conversation
    write_csv(run / "evaluation" / split / "sweep.csv", rows)
    settings = {"protocol": protocol, "matching": "fuzzy", "limit": None}
    (run / "evaluation" / split / "sweep.json").write_text(json.dumps(settings))


def test_curves_keep_end_steps_and_the_later_of_repeated_ones(run: Path) -> None:
    curves = read_curves(run)
    assert (curves.name, curves.recipe) == ("run", "rank_grpo")
    assert curves.series == {"val/ndcg": {0: 0.1, 3: 0.5}, "rank_grpo/return@1": {1: 0.2, 2: 0.3, 3: 0.4}}


def test_checkpoints_evaluated_by_a_sweep_are_curves_too(run: Path) -> None:
    sweep(run)
    curves = read_curves(run)
    assert curves.series["evaluated/ndcg"] == {0: 0.2, 3: 0.4}  # at the largest k
    assert curves.series["evaluated/recall"] == {0: 0.3, 3: 0.3}
    assert curves.series["evaluated/ndcg_se"] == {0: 0.05}
    assert "NDCG@20 on test, by checkpoint" in [chart.title for chart in make_charts([curves])]
    sweep(run, "validation")
    with refuses("report.ambiguous-sweep", "test, validation", "--split"):
        read_curves(run)
    assert read_curves(run, split="validation").split == "validation"
    with refuses("report.no-sweep", "evaluation/other", "sweep.csv"):
        read_curves(run, split="other")


def test_kl_is_read_from_verls_kl_loss_but_not_from_rank_grpos(tmp_path: Path) -> None:
    """GRPO and GSPO log `actor/kl_loss`, without its coefficient; Rank-GRPO logs `actor/kl`, and a kl_loss with it."""
    verls = write_run(tmp_path / "grpo", "rank_grpo", [{1: {"actor/kl_loss": 0.5}, 2: {"actor/kl_loss": 0.6}}])
    ours = write_run(tmp_path / "ours", "rank_grpo", [{1: {"actor/kl": 0.5, "actor/kl_loss": 0.0005}}])
    assert read_curves(verls).series["actor/kl"] == {1: 0.5, 2: 0.6}
    assert read_curves(ours).series["actor/kl"] == {1: 0.5}


def test_sweeps_that_do_not_compare_are_not_drawn_together(run: Path, tmp_path: Path) -> None:
    other = write_run(tmp_path / "b" / "run", "rank_grpo", [{1: {"rank_grpo/return@1": 0.1}}])
    sweep(run)
    sweep(other, "validation")
    with pytest.raises(UserError, match="b/run: swept with split validation, a/run with split test"):
        plot.read_runs([run, other])
    (other / "evaluation" / "validation").rename(other / "evaluation" / "test")
    assert len(plot.read_runs([run, other])) == 2
    sweep(other, protocol="strict")
    with pytest.raises(UserError, match="b/run: swept with protocol strict, a/run with protocol paper"):
        plot.read_runs([run, other])
    write_csv(other / "evaluation" / "test" / "sweep.csv", [{"step": 0, "ndcg@5": 0.1}])
    with pytest.raises(UserError, match="b/run: swept with k 5, a/run with k 20"):
        plot.read_runs([run, other])


def test_what_has_nothing_to_draw_is_named(run: Path, tmp_path: Path) -> None:
    started = write_run(tmp_path / "b" / "new", "rank_grpo", [{}])  # there is a metrics file, but no step is done
    with pytest.raises(UserError, match="new: nothing logged yet"):
        plot.plot([started], tmp_path / "plots")
    assert tmp_path / "plots" / "rank_grpo.png" in plot.plot([started, run], tmp_path / "plots")
    sweep(run)
    (run / "evaluation" / "test" / "sweep.json").unlink()
    with refuses("report.damaged-sweep", "sweep.csv", "no sweep.json"):
        read_curves(run)
    (run / "evaluation" / "test" / "sweep.csv").write_text("")
    with refuses("report.damaged-sweep", "sweep.csv", "no rows"):
        read_curves(run)


def test_csv_keeps_numbers_and_leaves_out_what_is_missing(tmp_path: Path) -> None:
    table: list[dict[str, Any]] = [{"step": 0, "se": None}, {"step": 5, "se": 0.25, "n": 3}]
    write_csv(tmp_path / "t.csv", table)
    assert (tmp_path / "t.csv").read_text() == "step,se,n\n0,,\n5,0.25,3\n"
    assert read_csv(tmp_path / "t.csv") == [{"step": 0.0}, {"step": 5.0, "se": 0.25, "n": 3.0}]


def test_plot_draws_both_recipes_under_distinct_names(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = write_run(tmp_path / "b" / "run", "rank_grpo", [{1: {"actor/kl": 0.1}}])
    sft = write_run(tmp_path / "sft", "sft", [{1: {"train/loss": 3.0}, 2: {"train/loss": 2.0, "val/loss": 2.5}}])
    out = tmp_path / "plots"
    assert plot.main([str(run), str(other), str(sft), "--out", str(out)]) == 0
    assert {path.name for path in out.iterdir()} == {"rank_grpo.png", "sft.png", "curves.csv"}
    assert (out / "sft.png").read_bytes().startswith(b"\x89PNG")
    points = (out / "curves.csv").read_text().splitlines()[1:]
    assert {line.split(",")[0] for line in points} == {"a/run", "b/run", sft.parent.name + "/sft"}
    assert "a/run,rank_grpo/return@1,2,0.3" in points
    assert len(points) == 5 + 1 + 3
    assert plot.main([str(tmp_path / "nothing")]) == 2
    assert "[report.no-metrics]" in capsys.readouterr().err


def test_run_label_is_its_algorithm_plus_name_when_ambiguous(tmp_path: Path) -> None:
    algorithms = {"a": "grpo", "b": "gspo", "c": "rank_grpo", "d": "gspo"}
    curve = [{1: {"actor/kl": 0.1}}]
    folders = [write_run(tmp_path / name, "rank_grpo", curve, algorithm) for name, algorithm in algorithms.items()]
    sft = write_run(tmp_path / "sft", "sft", curve, "null")
    labels = label_runs(plot.read_runs([*folders[:3], sft]))
    assert labels == {"a": "GRPO", "b": "GSPO", "c": "Rank-GRPO", "sft": "SFT"}
    assert label_runs(plot.read_runs([folders[1], folders[3]])) == {"b": "GSPO b", "d": "GSPO d"}
