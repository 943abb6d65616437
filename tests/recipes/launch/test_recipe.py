"""A recipe and an algorithm are entries of their tables: nothing else knows their names."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from convrec.runs.folder import find_recipe, read_config, start_model
from convrec.settings.choices import ALGORITHMS
from recipes import doctor
from recipes.cluster.job_environment import job_environment
from recipes.launch import runner, settings
from recipes.launch.recipe import RANK_GRPO, RECIPES, Recipe
from recipes.preflight import findings
from tests.user_errors import refuses

ROOT = Path(__file__).resolve().parents[3]
SetVariables = Callable[[Mapping[str, str]], None]


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_the_script_starts_the_command(recipe: Recipe) -> None:
    assert f'exec "$PYTHON" -m recipes {recipe.command} "$@"\n' in (ROOT / recipe.script).read_text()


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_a_wrong_variable_is_refused_before_torch_is_imported(recipe: Recipe, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    environment |= {"PYTHON": sys.executable, "LR": "abc", "SAVE_PATH": str(tmp_path / "run")}
    command = ["bash", str(ROOT / recipe.script)]
    imports = {"PYTHONPROFILEIMPORTTIME": "1"}
    done = subprocess.run(command, env=environment | imports, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "recipes.launch.variables" in imported
    assert not imported & {"torch", "verl", "ray", "transformers", "pyarrow", "hydra"}

    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        2,
        "error: LR=abc: expected a number of at least 0 [variable.wrong-value]\n",
    )
    assert not (tmp_path / "run").exists()


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Recipe:
    """A recipe `short_lists` of five items and an algorithm `wide_grpo`: files of conf/, and entries of the tables."""
    conf = Path(shutil.copytree(ROOT / "conf", tmp_path / "conf"))
    text = (conf / "rank_grpo.yaml").read_text()
    (conf / "short_lists.yaml").write_text(text + "\nconvrec:\n  num_items: 5\n")
    preset = (conf / "algorithm_preset" / "grpo.yaml").read_text()
    assert "clip_ratio_high: 0.26\n" in preset
    (conf / "algorithm_preset" / "wide_grpo.yaml").write_text(preset.replace("0.26", "0.5"))
    monkeypatch.setattr(settings, "CONF", conf)

    recipe = replace(RANK_GRPO, name="short_lists", title="{algorithm} of short lists")
    monkeypatch.setitem(RECIPES, recipe.name, recipe)
    monkeypatch.setitem(ALGORITHMS, "wide_grpo", "Wide GRPO")
    return recipe


@pytest.fixture
def variables(good: dict[str, str]) -> dict[str, str]:
    return good | {"ALGORITHM": "wide_grpo"}


def test_added_recipe_and_algorithm_compose_check_and_run(
    added: Recipe,
    variables: dict[str, str],
    set_variables: SetVariables,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    set_variables(variables)
    config = settings.compose("short_lists", ["convrec.gamma=2"]).verl_config
    assert (config.run.recipe, config.run.algorithm) == ("short_lists", "wide_grpo")
    assert (config.convrec.num_items, config.convrec.gamma, config.convrec.matching) == (5, 2, "fuzzy")
    assert (config.algorithm.adv_estimator, config.actor_rollout_ref.actor.clip_ratio_high) == ("grpo", 0.5)
    assert config.trainer.experiment_name == "short_lists-run"

    first, *_ = doctor.diagnose(added, [])
    assert (first.check, first.status, first.where) == ("settings and data", "ok", "short_lists")
    monkeypatch.setenv("ROLLOUT_N", "1")
    refusal, *_ = doctor.diagnose(added, [])
    assert refusal.what.startswith("ROLLOUT_N=1: ")
    monkeypatch.delenv("ROLLOUT_N")
    with monkeypatch.context() as default:
        default.delenv("CATALOG_FILE")
        expected = os.path.abspath("data/reddit_v2/catalog.parquet")
        assert job_environment(added, settings.compose("short_lists", []), {})["CATALOG_FILE"] == expected

    trained: list[Any] = []
    monkeypatch.setattr(findings, "examine", lambda *args, **kwargs: [])  # a small machine may be refused
    with mock.patch.dict(os.environ):  # `run` sets some
        assert runner.run(replace(added, train=lambda *args: trained.append(args)), ["convrec.gamma=2"]) == 0
    assert trained[0][0].settings.gamma == 2
    output = capfd.readouterr().err
    assert f"Wide GRPO of short lists of {variables['MODEL_PATH']} into {tmp_path / 'run'}" in output
    assert "Wide GRPO of short lists finished" in output
    assert find_recipe(read_config(tmp_path / "run")) == "short_lists"
    assert start_model(tmp_path / "run") == variables["MODEL_PATH"]


def test_an_unregistered_algorithm_is_refused(
    added: Recipe, variables: dict[str, str], set_variables: SetVariables, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_variables(variables)
    monkeypatch.delitem(ALGORITHMS, "wide_grpo")
    with refuses("variable.wrong-value", "ALGORITHM=wide_grpo", "rank_grpo, grpo, gspo"):
        settings.compose("short_lists", [])
    monkeypatch.delenv("ALGORITHM")
    with refuses("settings.wrong-value", "algorithm_preset=wide_grpo (ALGORITHM)", "rank_grpo, grpo"):
        settings.compose("short_lists", ["algorithm_preset=wide_grpo"])


@pytest.mark.parametrize(
    ("recipe", "overrides", "title"),
    [
        ("sft", [], "SFT"),
        ("rank_grpo", [], "Rank-GRPO"),
        ("rank_grpo", ["algorithm_preset=grpo"], "GRPO"),
        ("rank_grpo", ["algorithm_preset=gspo"], "GSPO"),
        ("judge_pairwise", [], "GRPO of a pairwise judge"),
    ],
)
def test_a_run_is_named_after_its_method(
    recipe: str, overrides: list[str], title: str, set_variables: SetVariables
) -> None:
    set_variables({})
    assert RECIPES[recipe].describe_method(settings.compose(recipe, overrides)) == title
