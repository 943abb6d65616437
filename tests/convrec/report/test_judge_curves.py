"""A judge's run is recognised by its config and shown by the same report."""

import json
from pathlib import Path

import pytest
import yaml

from convrec.base.errors import UserError
from convrec.report.curves import read_curves
from convrec.report.panels import PANELS
from convrec.report.run_summary import SETTINGS
from recipes.launch.recipe import RECIPES
from recipes.report import report
from tests.user_errors import refuses

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
    with refuses("report.unknown-recipe", "one_of_mine", "sft, rank_grpo"):
        read_curves(run)


def test_the_curves_of_a_judge_are_in_the_report(run: Path, tmp_path: Path) -> None:
    curves = read_curves(run)
    assert curves.recipe == "judge_pairwise"
    assert curves.series["reward/score"] == {1: 0.1, 2: 0.2}
    page = report([run], tmp_path / "report.html").read_text()
    assert "Validation reward in training" in page
    assert "Prefers A, samples" in page
    assert "pkg://reward.judge_pairwise" in page
    assert "No evaluation yet" not in page


def test_the_evaluation_of_a_judge_is_not_part_of_a_report(run: Path, tmp_path: Path) -> None:
    (tmp_path / "metrics.json").write_text(json.dumps({"settings": {"judge": "pairwise"}, "results": {}}))
    with pytest.raises(UserError, match="evaluates a judge"):
        report([run], tmp_path / "report.html", {"the judge": tmp_path})
