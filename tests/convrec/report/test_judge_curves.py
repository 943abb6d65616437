"""A judge's run is known by its config and drawn by the same report."""

import json
from pathlib import Path

import pytest
import yaml

from convrec.errors import UserError
from convrec.judges.metrics import pairwise_summary
from convrec.report.curves import PANELS, read_curves
from convrec.report.run_summary import SETTINGS
from recipes.launch.recipe import RECIPES
from recipes.report import report

CONFIG = {
    "run": {"recipe": "judge_pairwise"},
    "actor_rollout_ref": {"model": {"path": "models/start"}, "rollout": {"n": 4}},
    "reward": {"custom_reward_function": {"path": "pkg://reward.judge_pairwise"}},
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    (folder / "metrics").mkdir(parents=True)
    rows = [{"step": n, "data": {"reward/score": n / 10, "reward/prefers_a": 0.5, "val/score": 0.6}} for n in (1, 2)]
    (folder / "metrics" / "0001.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "config.yaml").write_text(yaml.safe_dump(CONFIG))
    return folder


def test_every_recipe_has_panels_and_settings() -> None:
    assert set(PANELS) == set(SETTINGS) == set(RECIPES)


def test_an_unknown_recipe_is_refused(run: Path) -> None:
    (run / "config.yaml").write_text("run: {recipe: one_of_mine}")
    with pytest.raises(UserError, match="no curves are known for its recipe, one_of_mine; known are sft, rank_grpo"):
        read_curves(run)


def test_its_curves_are_in_the_report(run: Path, tmp_path: Path) -> None:
    curves = read_curves(run)
    assert curves.recipe == "judge_pairwise"
    assert curves.series["reward/score"] == {1: 0.1, 2: 0.2}
    page = report([run], tmp_path / "report.html").read_text()
    assert "Validation reward in training" in page
    assert "Prefers A, samples" in page
    assert "pkg://reward.judge_pairwise" in page
    assert "--judge MODE" in page  # how an evaluation is had


def write_evaluation(folder: Path, judge: str, results: dict) -> Path:
    folder.mkdir()
    settings = {"judge": judge, "data": "test.parquet"}
    (folder / "metrics.json").write_text(json.dumps({"settings": settings, "results": results}))
    return folder


def test_its_evaluations_are_in_the_report(run: Path, tmp_path: Path) -> None:
    summary = pairwise_summary(["A", "B", "A"], ["A", "B", "B"], ["B", "A", "B"], ["q", "r", "s"])
    pairwise = write_evaluation(tmp_path / "pairwise", "pairwise", summary)
    page = report([run], tmp_path / "report.html", {"the judge": pairwise}).read_text()
    for text in ("the judge", "agreement", "always the same", "0.6667", "3 rows, 3 queries; pairwise judge"):
        assert text in page, text
    assert "No evaluation yet" not in page

    # no verdict at all: no error, which JSON has as null
    unknown = {"mae": {"mean": None, "se": None}, "n": 2, "num_contexts": 2, "baseline": {"mae": 1.0}}
    pointwise = write_evaluation(tmp_path / "pointwise", "pointwise", unknown)
    assert "mae" in report([run], tmp_path / "report.html", {"p": pointwise}).read_text()
    with pytest.raises(UserError, match="evaluated with judge pointwise, a with judge pairwise"):
        report([run], tmp_path / "report.html", {"a": pairwise, "b": pointwise})
