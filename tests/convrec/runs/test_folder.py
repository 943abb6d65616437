"""The folder of a run: metrics of several starts, checkpoints, the config and the lock."""

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from convrec.runs.folder import (
    RL_ENDED,
    RL_TRAINED,
    RUNNING,
    SFT_TRAINED,
    VALIDATION_LOSS,
    hold,
    lacks_validation,
    latest_step,
    next_metrics_file,
    read_metrics,
    saved_steps,
    start_model,
)
from tests.user_errors import refuses


def _write(file: Path, *entries: tuple[int, dict[str, Any]], tail: str = "") -> None:
    lines = [json.dumps({"step": step, "data": data}) + "\n" for step, data in entries]
    file.write_text("".join(lines) + tail)


def test_each_start_has_its_own_file(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        file = next_metrics_file(tmp_path)
        assert file.name == f"{number:04d}.jsonl"
        file.touch()
        (file.parent / f"{number:04d} (copy).jsonl").touch()


def test_starts_are_read_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for number in range(1, 12):
        _write(next_metrics_file(tmp_path), (1, {"loss": float(number)}))
    assert read_metrics(tmp_path) == [{"step": 1, "loss": 11.0}]


def test_lines_of_a_step_are_merged(tmp_path: Path) -> None:
    _write(next_metrics_file(tmp_path), (0, {"val/ndcg": 0.1}), (5, {"loss": 2.0}), (5, {"val/ndcg": 0.2}))
    assert read_metrics(tmp_path) == [{"step": 0, "val/ndcg": 0.1}, {"step": 5, "loss": 2.0, "val/ndcg": 0.2}]


def test_a_repeated_step_has_the_later_starts_values(tmp_path: Path) -> None:
    _write(next_metrics_file(tmp_path), (1, {"loss": 3.0}), (2, {"loss": 2.0, "lr": 1.0}), (3, {"loss": 1.5}))
    _write(next_metrics_file(tmp_path), (2, {"loss": 2.1}), (4, {"loss": 1.0}))
    assert read_metrics(tmp_path) == [
        {"step": 1, "loss": 3.0},
        {"step": 2, "loss": 2.1, "lr": 1.0},
        {"step": 3, "loss": 1.5},
        {"step": 4, "loss": 1.0},
    ]


def test_a_truncated_last_line_is_skipped(tmp_path: Path) -> None:
    _write(next_metrics_file(tmp_path), (1, {"loss": 3.0}), tail='{"step": 2, "data": {"lo')
    assert read_metrics(tmp_path) == [{"step": 1, "loss": 3.0}]


BEFORE_SAVING = {RL_TRAINED: 4, "actor/kl": 0.1}
COMPLETE = BEFORE_SAVING | {RL_ENDED: 9.0}
VALIDATED = {"val/ndcg": 0.5}


@pytest.mark.parametrize(
    ("lines", "lacks"),
    [
        ([], False),
        ([BEFORE_SAVING], True),
        ([BEFORE_SAVING, COMPLETE], False),
        ([BEFORE_SAVING, COMPLETE | VALIDATED, BEFORE_SAVING], True),  # the run went back and trained the step again
        ([BEFORE_SAVING, VALIDATED], False),  # the next start has validated it
    ],
)
def test_an_rl_step_that_was_not_validated_after_its_checkpoint(
    tmp_path: Path, lines: list[dict[str, Any]], lacks: bool
) -> None:
    file = next_metrics_file(tmp_path)
    _write(file, (3, COMPLETE), *((4, line) for line in lines))
    for test_freq, last_step, is_due in ((2, 9, True), (3, 9, False), (3, 4, True), (3, None, False), (-1, 4, False)):
        assert lacks_validation(tmp_path, 4, test_freq, last_step) == (is_due and lacks)


@pytest.mark.parametrize(
    ("lines", "lacks"),
    [
        ([{SFT_TRAINED: 2.0}], True),
        ([{SFT_TRAINED: 2.0}, {VALIDATION_LOSS: 1.9}], False),
        ([{SFT_TRAINED: 2.0}, {VALIDATION_LOSS: 1.9}, {SFT_TRAINED: 2.0}], True),  # trained again after going back
    ],
)
def test_an_sft_step_that_was_not_validated_after_its_checkpoint(
    tmp_path: Path, lines: list[dict[str, Any]], lacks: bool
) -> None:
    _write(next_metrics_file(tmp_path), *((4, line) for line in lines))
    for test_freq, last_step, is_due in ((2, 9, True), (3, 9, False), (3, 4, True), (-1, 4, True), (-1, 9, False)):
        assert lacks_validation(tmp_path, 4, test_freq, last_step) == (is_due and lacks)


def test_a_folder_without_metrics_or_checkpoints(tmp_path: Path) -> None:
    assert read_metrics(tmp_path / "nothing") == []
    assert latest_step(tmp_path / "nothing") == 0


def test_latest_step_is_newest_complete_one_up_to_the_tracker(tmp_path: Path) -> None:
    for step in (90, 100, 200):
        (tmp_path / f"global_step_{step}").mkdir()
        (tmp_path / f"global_step_{step}" / "complete.json").touch()
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("100")  # the run went back
    assert latest_step(tmp_path) == 100
    (tmp_path / "global_step_100" / "complete.json").unlink()  # killed between the tracker and the manifest
    assert latest_step(tmp_path) == 90


def test_the_start_model_is_read_from_either_recipes_config(tmp_path: Path) -> None:
    assert start_model(tmp_path) is None
    (tmp_path / "config.yaml").write_text("model: {path: a/b}\n")
    assert start_model(tmp_path) == "a/b"
    (tmp_path / "config.yaml").write_text("model: {path: judge}\nactor_rollout_ref: {model: {path: c/d}}\n")
    assert start_model(tmp_path) == "c/d"


@pytest.mark.parametrize(
    "content", [b"run: {recipe: [", b"\xff\xfe\x00", b"- a list\n", b"run: !!python/name:os.kill\n"]
)
def test_a_damaged_config_is_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.yaml").write_bytes(content)
    with refuses("run.damaged-config", tmp_path / "config.yaml") as error:
        start_model(tmp_path)
    assert "\n" not in str(error.value)


def test_saved_steps_are_complete_ones_that_still_have_a_model(tmp_path: Path) -> None:
    for step, file in (
        (9, "huggingface/model.safetensors"),
        (10, "actor/model_world_size_1_rank_0.pt"),
        (2, "data.pt"),
    ):
        path = tmp_path / f"global_step_{step}" / file
        path.parent.mkdir(parents=True)
        path.touch()
        (tmp_path / f"global_step_{step}" / "complete.json").touch()
    assert saved_steps(tmp_path) == []  # the tracker names no checkpoint
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("10")
    assert saved_steps(tmp_path) == [9, 10]
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("9")
    assert saved_steps(tmp_path) == [9]


HOLDER = """
import signal, sys, time
from pathlib import Path
from convrec.runs.folder import hold
signal.signal(signal.SIGINT, signal.default_int_handler)  # a script's background jobs inherit it as ignored
with hold(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT])
def test_one_process_holds_a_folder_until_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: signal.Signals
) -> None:
    monkeypatch.setenv("CONVREC_SUBMISSION", "job-1")
    other = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "run")],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=Path(__file__).resolve().parents[3],
    )
    try:
        assert other.stdout
        assert other.stdout.readline() == b"held\n"
        values = (tmp_path / "run", f"process {other.pid} of ", "(job job-1)")
        with refuses("run.folder-in-use", *values), hold(tmp_path / "run"):
            pytest.fail("held by two processes")
    finally:
        other.send_signal(end)
        other.communicate()
    with hold(tmp_path / "run") as warnings:
        assert warnings == []
        assert f"process {os.getpid()} of" in (tmp_path / "run" / RUNNING).read_text()
        (tmp_path / "run" / "config.yaml").touch()
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["config.yaml"]


def test_a_new_folder_that_stays_empty_is_removed(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    for name in ("old", "new"):
        with hold(tmp_path / name):
            pass
    assert [path.name for path in tmp_path.iterdir()] == ["old"]


def test_storage_without_locks_is_used_with_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with hold(tmp_path / "run") as (warning,):
        assert "(No locks available)" in warning
        assert "process" not in warning
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / RUNNING).write_text("process 7 of node-a\n")  # without locks, it may be stale or not
    with hold(tmp_path / "run") as (warning,):
        assert "process 7 of node-a" in warning


def test_an_unwritable_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    path = tmp_path / "file" / "run"
    with refuses("run.unwritable-folder", f"SAVE_PATH={path}"), hold(path):
        pytest.fail("held")
