"""Config and dry run of a training: nothing is started, nothing is written."""

import re
from pathlib import Path

import pytest
import yaml

from recipes.launch import runner
from recipes.launch.recipe import RECIPES
from recipes.tiny_model import make_tiny_model


@pytest.fixture
def variables(good: dict[str, str], set_variables, tmp_path: Path) -> dict[str, str]:
    model = make_tiny_model(tmp_path / "model", ["Heat (1995)"], ["Heat"], vocab_size=400)
    own = {"MODEL_PATH": str(model), "MAX_RESPONSE_LENGTH": "64", "TOTAL_EPOCHS": "3", "SAVE_FREQ": "8"}
    set_variables(good | own)
    return good


def test_a_dry_run_finds_a_response_that_cannot_hold_the_lists(variables, monkeypatch, capsys) -> None:
    monkeypatch.setenv("MAX_RESPONSE_LENGTH", "30")
    assert runner.run(RECIPES["rank_grpo"], ["--dry-run"]) == 0
    output = "".join(capsys.readouterr())
    match = re.search(r"MAX_RESPONSE_LENGTH=30: a list of 20 items takes (\d+) tokens.* (\d+) tokens hold any", output)
    assert match
    assert 30 < int(match[1]) < int(match[2])
    monkeypatch.setenv("MAX_RESPONSE_LENGTH", match[2])
    runner.run(RECIPES["rank_grpo"], ["--dry-run"])
    assert "hold any list" not in "".join(capsys.readouterr())


def test_dry_run_reports_the_planned_work_and_writes_nothing(variables, tmp_path: Path, capsys) -> None:
    assert runner.run(RECIPES["rank_grpo"], ["--dry-run", "trainer.test_freq=5"]) == 0
    out = capsys.readouterr().out
    assert "steps: 30 of 4 rows out of 40; a validation every 5 steps" in out
    assert "checkpoints: 4, 4 of them kept" in out
    assert "memory: " in out
    assert "disk: " in out
    assert out.endswith("nothing was started (--dry-run)\n")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("keep", "kept"), [("", 5), ("1", 3), ("all", 15)])
def test_the_number_of_checkpoints_is_bounded_by_what_is_kept(keep, kept, variables, monkeypatch, capsys) -> None:
    """The newest ones (3 by default), the best, and the one being written."""
    monkeypatch.setenv("SAVE_FREQ", "2")
    monkeypatch.setenv("SAVE_KEEP", keep)
    assert runner.run(RECIPES["rank_grpo"], ["--dry-run"]) == 0
    assert f"checkpoints: 15, {kept} of them kept" in capsys.readouterr().out


def test_a_dry_run_refuses_what_a_run_refuses(variables, monkeypatch, tmp_path: Path, capsys) -> None:
    monkeypatch.setenv("CATALOG_FILE", str(tmp_path / "none.parquet"))
    monkeypatch.setenv("LEARNING_RATE", "1e-5")
    assert runner.run(RECIPES["rank_grpo"], ["--dry-run"]) == 2
    warning, error = capsys.readouterr().err.splitlines()
    assert warning.startswith("warning: LEARNING_RATE is set, but no recipe reads it")
    assert error.startswith("error: CATALOG_FILE")
    assert error.endswith("[preflight.missing-file]")


def test_the_whole_config_is_printed_as_yaml(variables, capsys) -> None:
    assert runner.run(RECIPES["rank_grpo"], ["--print-config", "convrec.num_items=7"]) == 0
    config = yaml.safe_load(capsys.readouterr().out)
    assert config["convrec"]["num_items"] == 7
    assert config["data"]["train_files"] == variables["TRAIN_FILE"]


def test_nothing_that_is_printed_holds_a_secret(variables, monkeypatch, capsys) -> None:
    monkeypatch.setenv("OF_THE_TEST", "a-secret")
    key = "+reward.custom_reward_function.reward_kwargs.api_key"
    for argument, status in ((f"{key}=a-secret", 2), (f"{key}='${{oc.env:OF_THE_TEST}}'", 0)):
        assert runner.run(RECIPES["rank_grpo"], ["--print-config", "--dry-run", argument]) == status
        assert "a-secret" not in "".join(capsys.readouterr())
