"""The size and progress of a matrix, read from the files of its runs."""

from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from convrec.base.errors import UserError
from convrec.settings.run import Run
from recipes.experiments.matrix_runs import MatrixRun, composed, count_steps, described, is_finished
from tests.conftest import mark_complete


def training(*sections: dict[str, Any]) -> Run[Any]:
    """Make a run with only these settings; later sections override earlier ones."""
    return Run.from_config(OmegaConf.merge(*sections))


def test_runs_and_steps_are_counted_as_far_as_they_are_known(tmp_path: Path) -> None:
    """A run that trained beyond its steps counts as its steps."""
    runs = []
    trainings = {}
    for name, steps, done in (("a", 300, 310), ("b", 100, 10), ("c", 10, 0), ("d", None, 0)):
        runs.append(MatrixRun(name, name, "rank_grpo", None, {"SEED": "1"}))
        trainings[name] = training({"trainer": {"total_training_steps": steps}, "data": {"train_batch_size": None}})
        if done:
            mark_complete(tmp_path / name, done)
    text = described(runs, trainings, tmp_path)
    assert text.startswith("1 of 4 runs finished; 310 of 410 steps; 1 with an unknown number of steps")
    assert described(runs[:1], trainings, tmp_path) == "1 of 1 runs finished; 300 of 300 steps"


def test_steps_are_a_setting_or_counted_in_the_data(tmp_path: Path, sample: Path) -> None:
    trainer = {"total_training_steps": None, "total_epochs": 3, "nnodes": 1}
    data = {"train_files": str(sample / "train.parquet"), "train_batch_size": 16}  # 40 conversations
    base = {"trainer": trainer, "data": data}
    rows = count_steps(training(base, {"data": {"train_batch_size": 1}, "trainer": {"total_epochs": 1}}))
    assert rows is not None
    assert count_steps(training(base)) == 3 * (rows // 16)
    assert count_steps(training(base, {"trainer": {"total_training_steps": 7}})) == 7
    assert count_steps(training(base, {"data": {"train_files": str(tmp_path / "none.parquet")}})) is None
    assert count_steps(training(base, {"data": {"train_batch_size": None}})) is None


def test_settings_compose_once_per_variant_and_errors_name_runs(tmp_path: Path) -> None:
    runs = [MatrixRun(f"a-s{seed}", "a", "sft", None, {"SEED": seed, "TOTAL_STEPS": "6"}) for seed in ("1", "2")]
    trainings = composed(runs, tmp_path)
    assert trainings["a-s1"] is trainings["a-s2"]
    mark_complete(tmp_path / "a-s2", 6)
    assert [is_finished(run, trainings[run.name], tmp_path) for run in runs] == [False, True]
    with pytest.raises(UserError, match=r"b-s1: trainer\.stepz"):
        composed([MatrixRun("b-s1", "b", "sft", None, {"SEED": "1"}, ["trainer.stepz=1"])], tmp_path)
