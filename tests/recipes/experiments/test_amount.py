"""How much a matrix is, from files as runs leave them: no number that was not measured."""

import json
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from convrec.errors import UserError
from convrec.runs.folder import LATEST
from recipes.experiments.amount import composed, described, is_finished, seconds_a_step, steps_of
from recipes.experiments.matrix_runs import MatrixRun

BEGUN = datetime(2026, 1, 1, tzinfo=UTC).timestamp()


def left_by(folder: Path, *starts: tuple[float, float, list[int]], saved: int = 0) -> Path:
    """A run's folder after these starts: (seconds after BEGUN of its beginning, of its last line, trained steps)."""
    (folder / "metrics").mkdir(parents=True)
    lines = []
    for number, (begun, last, steps) in enumerate(starts, start=1):
        lines.append(json.dumps({"time": datetime.fromtimestamp(BEGUN + begun, UTC).isoformat(timespec="seconds")}))
        file = folder / "metrics" / f"{number:04d}.jsonl"
        validated = [{"step": (steps or [1])[0] - 1, "data": {"val/ndcg": 0.1, "val-core/x": 1.0}}]
        trained = [{"step": step, "data": {"train/loss": 1.0}} for step in steps]
        file.write_text("".join(json.dumps(entry) + "\n" for entry in validated + trained) + '{"step": ')
        os.utime(file, (BEGUN + last, BEGUN + last))
    (folder / "starts.jsonl").write_text("\n".join(lines) + "\n")
    if saved:
        (folder / LATEST).write_text(str(saved))
    return folder


def test_the_seconds_of_a_step_are_of_the_last_start_that_has_trained(tmp_path: Path) -> None:
    run = left_by(tmp_path / "run", (0, 100, [1, 2]), (200, 260, [3, 4, 5, 6]), (300, 310, []))
    assert seconds_a_step(run) == pytest.approx(15)
    assert seconds_a_step(left_by(tmp_path / "refused", (0, 10, []))) is None
    assert seconds_a_step(tmp_path / "not there") is None
    assert seconds_a_step(left_by(tmp_path / "copied", (1000, 100, [1, 2]))) is None  # its last line before its start


def amount(folder: Path, *runs: tuple[str, str, int | None, int, float | None]) -> list[str]:
    """What is printed of these runs: (name, recipe, steps, done, seconds of a step)."""
    made, configs = [], {}
    for name, recipe, steps, done, seconds in runs:
        made.append(MatrixRun(name, name.split("-s")[0], recipe, None, {"SEED": "1"}))
        configs[name] = OmegaConf.create(
            {"trainer": {"total_training_steps": steps}, "data": {"train_batch_size": None}}
        )
        left_by(folder / name, *([(0, 10 * seconds, [*range(10)])] if seconds else []), saved=done)
    return described(made, configs, folder)


def test_hours_are_by_the_runs_own_pace_or_that_of_its_variant_or_of_its_recipe(tmp_path: Path) -> None:
    """a-s1: 40 s x 90 steps left = 1 h. a-s2 as a-s1: 100 x 40 s. b by the mean of all rank_grpo: 50 s x 72 = 1 h."""
    assert amount(
        tmp_path,
        ("sft", "sft", 300, 300, 2.0),
        ("a-s1", "rank_grpo", 100, 10, 40.0),
        ("a-s2", "rank_grpo", 100, 0, None),
        ("c", "rank_grpo", 10, 10, 60.0),
        ("b", "rank_grpo", 72, 0, None),
    ) == [
        "2 of 5 runs finished; 320 of 582 steps",
        "about 3.1 hours of training left, added up",
    ]


def test_what_is_not_known_is_said(tmp_path: Path) -> None:
    unknown = [("a", "rank_grpo", 100, 0, None), ("b", "rank_grpo", None, 0, None)]
    assert amount(tmp_path / "some", *unknown, ("c", "sft", 10, 0, 36.0)) == [
        "0 of 3 runs finished; 0 of 110 steps; runs whose steps are unknown, as their data are not there yet: 1",
        "about 0.1 hours of training left, added up; runs whose hours are unknown until the first steps are done: 2",
    ]
    finished = amount(tmp_path / "all", ("a", "rank_grpo", 5, 5, None))
    assert finished == ["1 of 1 runs finished; 5 of 5 steps", "nothing is left to train"]


def test_steps_are_said_or_counted_in_the_data(tmp_path: Path, sample: Path) -> None:
    trainer = {"total_training_steps": None, "total_epochs": 3, "nnodes": 1}
    data = {"train_files": str(sample / "train.parquet"), "train_batch_size": 16}  # 40 conversations
    config = OmegaConf.create({"trainer": trainer, "data": data})
    rows = steps_of(OmegaConf.merge(config, {"data": {"train_batch_size": 1}, "trainer": {"total_epochs": 1}}))
    assert rows is not None
    assert steps_of(config) == 3 * (rows // 16)
    assert steps_of(OmegaConf.merge(config, {"trainer": {"total_training_steps": 7}})) == 7
    assert steps_of(OmegaConf.merge(config, {"data": {"train_files": str(tmp_path / "none.parquet")}})) is None
    assert steps_of(OmegaConf.merge(config, {"data": {"train_batch_size": None}})) is None


def test_settings_are_composed_once_a_variant_and_a_wrong_one_names_its_run(tmp_path: Path) -> None:
    runs = [MatrixRun(f"a-s{seed}", "a", "sft", None, {"SEED": seed, "TOTAL_STEPS": "6"}) for seed in ("1", "2")]
    configs = composed(runs, tmp_path)
    assert configs["a-s1"] is configs["a-s2"]
    left_by(tmp_path / "a-s2", (0, 30, [1, 2, 3]), saved=6)
    assert [is_finished(run, configs[run.name], tmp_path) for run in runs] == [False, True]
    with pytest.raises(UserError, match=r"b-s1: trainer\.stepz: no such setting"):
        composed([MatrixRun("b-s1", "b", "sft", None, {"SEED": "1"}, ["trainer.stepz=1"])], tmp_path)
