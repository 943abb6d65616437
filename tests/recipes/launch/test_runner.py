"""The terminal output and the exit status of a run: trained, failed, interrupted, resumed."""

import errno
import json
import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from pprint import pprint
from typing import Any
from unittest import mock

import pytest
import torch
from omegaconf import OmegaConf

from convrec.base.errors import NoProgress, ProcessLost, UserError
from convrec.base.progress import Progress
from convrec.checkpoints import saving
from convrec.runs import memory, supervisor
from convrec.runs.folder import RL_TRAINED, RUNNING, hold
from convrec.training.trackers import tracking
from recipes.launch import runner
from recipes.launch.recipe import SFT
from recipes.preflight import findings
from tests.user_errors import refuses

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(
    tmp_path: Path, model: Path, set_variables: Callable[..., None], capfd: pytest.CaptureFixture[str]
) -> Iterator[Run]:
    """Run a recipe with SFT's settings and the test's own `train`; it returns the exit status and stderr."""

    def start(
        train: Callable[[Any], None], check: Any = lambda training: [], arguments: Any = (), **variables: str
    ) -> tuple[int, str]:
        files = {"TRAIN_FILE": str(tmp_path / "train.parquet"), "VAL_FILE": str(tmp_path / "validation.parquet")}
        for file in files.values():
            Path(file).touch()
        own = {"SAVE_PATH": str(tmp_path / "run"), "TOTAL_STEPS": "9", "MODEL_PATH": str(model)}
        set_variables(own | files | variables)
        recipe = replace(SFT, title="Training", check=check, train=train)
        status = runner.run(recipe, [*arguments])
        out, err = capfd.readouterr()
        assert out == ""
        return status, err

    with mock.patch.dict(os.environ):
        yield start


def save_checkpoint(run: Path, step: int) -> None:
    """Write a checkpoint of one process."""

    def write() -> None:
        (run / f"global_step_{step}").mkdir()
        torch.save({}, run / f"global_step_{step}" / "model_world_size_1_rank_0.pt")
        saving.write_tracker(run, step)

    saving.save(run, step, write)


def test_a_run_is_a_few_lines_and_the_rest_is_in_the_log(run: Run, tmp_path: Path) -> None:
    def train(training: Any) -> None:
        os.write(1, b"a word of verl\n")  # pytest puts something else in the place of sys.stdout
        os.write(2, b"and of Ray\n")
        os.system("echo and of a child")

    status, err = run(train, check=lambda config: ["a year is odd"], LEARNING_RATE="1e-5")
    assert status == 0
    assert "warning: a year is odd" in err
    assert "warning: LEARNING_RATE is set, but no recipe reads it: did you mean LR?" in err
    assert f"full log in {tmp_path}/run/run.log" in err
    assert "starting verl's SFT trainer" in err
    assert "Training finished" in err
    assert "a word of verl" not in err
    log = (tmp_path / "run" / "run.log").read_text()
    assert {"a word of verl", "and of Ray", "and of a child"} <= set(log.splitlines())
    assert (tmp_path / "run" / "config.yaml").exists()


def test_progress_is_printed_as_lines_without_a_terminal(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """stderr of this test is a file. The run continues once the expected line was printed."""
    monkeypatch.setattr("convrec.base.progress.SECONDS", 0.1)
    printed_steps: list[int] = []
    original_print = Progress._print

    def print_and_record(bar: Progress) -> None:
        step = bar.n
        original_print(bar)
        printed_steps.append(step)

    monkeypatch.setattr(Progress, "_print", print_and_record)

    def wait_for_line(step: int) -> None:
        deadline = time.monotonic() + 60
        while step not in printed_steps and time.monotonic() < deadline:
            time.sleep(0.01)

    def train(training: Any) -> None:
        wait_for_line(0)
        trackers = tracking.open_trackers(tmp_path / "run", "project", "experiment", [], config={})
        trackers.log(data={"train/loss": 2.5}, step=3)
        wait_for_line(3)
        trackers.log(data={"train/loss": math.nan}, step=4)
        wait_for_line(4)

    status, err = run(train)
    assert status == 0
    assert re.search(r"^Training:   0% 0/9 \[00:\d\d<\?, \?step/s, starting\]$", err, re.MULTILINE)
    assert re.search(r"^Training:  33% 3/9 \[00:.*, loss 2\.5\]$", err, re.MULTILINE)
    assert re.search(r"^Training:  44% 4/9 \[00:.*, loss nan\]$", err, re.MULTILINE)


LOST = ProcessLost("the training worker 0 is gone (killed, or out of memory)")
OURS = "Out of memory: the kernel's OOM killer killed a process in this run's cgroup"
PERHAPS_OURS = "Out of memory (probably): the kernel's OOM killer killed a process on this machine"


@pytest.mark.parametrize(
    ("error", "kills_of_cgroup", "said"),
    [
        (LOST, (0, 1), OURS),
        (LOST, (None, None), PERHAPS_OURS),
        (RuntimeError("4 prompts could not be sampled or scored"), (0, 1), OURS),
        (RuntimeError("no such column"), (None, None), ""),
        (NoProgress("no progress for 900 s"), (None, None), ""),
        (LOST, (0, 0), ""),
    ],
)
def test_failure_after_an_oom_kill_is_reported_as_out_of_memory(
    run: Run, monkeypatch: pytest.MonkeyPatch, error: Exception, kills_of_cgroup: tuple[Any, Any], said: str
) -> None:
    def train(training: Any) -> None:
        raise error

    before, after = kills_of_cgroup
    counters = [memory.Counters(before, 0, 0.0), memory.Counters(after, 1, 0.0)]  # at the start, and now
    monkeypatch.setattr(memory, "read_counters", lambda *root: counters.pop(0))
    _, err = run(train)
    assert ("Out of memory" in err) == bool(said)
    assert said in err
    assert ("Lower data.max_token_len_per_gpu, TRAIN_BATCH_SIZE or MAX_LENGTH" in err) == bool(said)


def test_secrets_appear_in_neither_log_terminal_nor_config(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """verl prints the settings at the start, a library prints a key, and the traceback has it."""
    monkeypatch.setenv("OF_THE_TEST", "sk-4f9a-secret")
    for number, name in ((1, "stdout"), (2, "stderr")):  # as in a process of its own
        monkeypatch.setattr(sys, name, os.fdopen(number, "w", buffering=1, closefd=False))

    def train(training: Any) -> None:
        pprint(OmegaConf.to_container(training.verl_config, resolve=True))
        print(f"trying {training.verl_config.reward_server.api_key}", file=sys.stderr)
        raise ValueError(f"the server does not know {training.verl_config.reward_server.api_key}")

    status, err = run(train, arguments=["+reward_server.api_key='${oc.env:OF_THE_TEST}'"])
    assert status == 1
    assert "ValueError: the server does not know ***" in err
    log = (tmp_path / "run" / "run.log").read_text()
    assert "'api_key': '***'" in log
    assert "trying ***" in log
    assert "Traceback" in log
    files = [file for file in (tmp_path / "run").rglob("*") if file.is_file()]
    assert [file for file in files if b"4f9a" in file.read_bytes()] == []
    assert "4f9a" not in err


def test_failure_exits_1_with_its_reason_and_logs_the_traceback(run: Run, tmp_path: Path) -> None:
    def train(training: Any) -> None:
        error = RuntimeError("what Ray says about it")
        error.cause = ValueError("line before\nthe worker ran out of memory")  # type: ignore[attr-defined]
        raise error

    status, err = run(train)
    assert status == 1
    assert "the worker ran out of memory" in err
    assert "Traceback" not in err
    assert "Traceback" in (tmp_path / "run" / "run.log").read_text()


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (UserError("data.example", "VAL_FILE: fix it"), 2, "error: VAL_FILE: fix it [data.example]"),
        (saving.StopRequested(4), 130, "stopped on request after step 4; the same command resumes"),
        (KeyboardInterrupt(), 130, "stopped after step 0; the same command resumes"),
        (SystemExit(1), 130, "stopped after step 0; the same command resumes"),
        (NoProgress("no step in an hour"), 75, "no step in an hour"),
        (OSError("no such device"), 1, "OSError: no such device"),
        (RuntimeError("a wrong shape"), 1, "a wrong shape"),
    ],
)
def test_each_end_of_a_run_has_its_exit_status_and_its_line(
    run: Run, tmp_path: Path, error: BaseException, status: int, line: str
) -> None:
    def train(training: Any) -> None:
        raise error

    observed, err = run(train)
    assert observed == status
    assert line in err
    is_failure = status in (1, 75)
    assert ("the same command resumes after step 0" in err) == is_failure
    assert ("Traceback" in (tmp_path / "run" / "run.log").read_text()) == is_failure


def test_an_error_after_a_signal_is_reported_as_a_stop(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheduler's signal also ends other processes of the run, which this one sees as errors."""
    monkeypatch.setattr(supervisor, "_asked", b"\1")

    def train(training: Any) -> None:
        raise RuntimeError("a worker is gone")

    status, err = run(train)
    assert status == 130
    assert "stopped after step 0; the same command resumes" in err
    assert "a worker is gone" not in err


def test_a_file_that_cannot_be_written_before_training_is_a_line(run: Run, tmp_path: Path) -> None:
    (tmp_path / "run" / "config.yaml").mkdir(parents=True)
    (tmp_path / "run" / "config.yaml" / "a file").touch()
    status, err = run(pytest.fail)
    assert status == 1
    assert re.search(r"^failed: IsADirectoryError", err, re.MULTILINE)
    assert not (tmp_path / "run" / RUNNING).exists()


def test_full_disk_is_a_one_line_error_wherever_it_shows(run: Run, tmp_path: Path) -> None:
    def train(training: Any) -> None:
        os.write(1, b"the log is on another disk than what is full\n")
        with open("/dev/full", "w") as full:
            full.write("x")

    status, err = run(train)
    assert status == 1
    assert f"No space left on device. Make room: `df -h {tmp_path / 'run'} /tmp" in err
    assert "Traceback" not in err


def test_an_exceeded_quota_is_reported_like_a_full_disk(run: Run, tmp_path: Path) -> None:
    def train(training: Any) -> None:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), "shard.pt")

    status, err = run(train)
    assert status == 1
    assert "Disk quota exceeded: 'shard.pt'. Make room:" in err
    assert "`quota -s`" in err


def test_changed_validation_set_is_reported_and_resets_the_best(run: Run, tmp_path: Path) -> None:
    def train(training: Any) -> None:
        save_checkpoint(tmp_path / "run", 4)
        saving.note_validation(tmp_path / "run", 4, {"val/loss": 1.0})

    assert run(train)[0] == 0
    _, err = run(lambda config: None)
    assert "best.json" not in err
    (tmp_path / "validation.parquet").write_text("other rows")

    def validate(training: Any) -> None:
        saving.note_validation(tmp_path / "run", 4, {"val/loss": 2.0})

    _, err = run(validate)
    assert f"changed data: {tmp_path}/validation.parquet (data.val_files)" in err
    assert "best.json: step 4 was the best on another validation set" in err
    assert json.loads((tmp_path / "run" / saving.BEST).read_text())["val/loss"] == 2.0


def test_a_stop_says_that_the_same_command_resumes(run: Run, tmp_path: Path) -> None:
    def train(training: Any) -> None:
        save_checkpoint(tmp_path / "run", 4)
        raise KeyboardInterrupt

    status, err = run(train)
    assert status == 130
    assert "stopped after step 4; the same command resumes" in err

    status, err = run(lambda config: None)
    assert status == 0
    assert "resuming after step 4" in err


def test_saved_but_unvalidated_step_is_validated_on_restart(run: Run, tmp_path: Path) -> None:
    def log(**data: float) -> None:
        Path(os.environ["VERL_FILE_LOGGER_PATH"]).write_text(json.dumps({"step": 9, "data": data}) + "\n")

    def train(training: Any) -> None:
        log(**{RL_TRAINED: 9, "loss": 2.5})
        save_checkpoint(tmp_path / "run", 9)

    run(train)
    status, err = run(lambda config: None, TEST_FREQ="4")  # killed before it validated
    assert status == 0
    assert "warning: the run ended after the checkpoint of step 9, before its validation" in err
    run(lambda config: log(**{"val/loss": 1.0}), TEST_FREQ="4")
    status, err = run(pytest.fail, TEST_FREQ="4")
    assert (status, "already has its 9 steps" in err, "warning" in err) == (0, True, False)


def test_finished_run_is_left_alone_and_reports_changed_settings(run: Run, tmp_path: Path) -> None:
    run(lambda config: save_checkpoint(tmp_path / "run", 9))
    before = sorted((tmp_path / "run").rglob("*"))
    status, err = run(pytest.fail, LR="0.5")
    assert status == 0
    assert "already has its 9 steps" in err
    assert "resumes with a changed setting: optim.lr: 5e-5 -> 0.5" in err
    (tmp_path / "train.parquet").write_text("other rows")
    _, err = run(pytest.fail)
    assert f"changed data: {tmp_path}/train.parquet (data.train_files)" in err
    assert sorted((tmp_path / "run").rglob("*")) == before


def test_a_refusal_leaves_no_folder(run: Run, tmp_path: Path) -> None:
    def check(training: Any) -> list[str]:
        raise UserError("data.example", "TRAIN_FILE: fix it")

    status, err = run(pytest.fail, check=check)
    assert (status, err) == (2, "error: TRAIN_FILE: fix it [data.example]\n")
    assert not (tmp_path / "run").exists()
    _, err = run(pytest.fail, check=check, LEARNING_RATE="1e-5")
    assert err.startswith("warning: LEARNING_RATE is set, but no recipe reads it")  # it may explain the error
    assert not (tmp_path / "run").exists()


def test_folder_of_a_running_training_is_refused_and_untouched(run: Run, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / saving.STOP).touch()  # of the run that trains
    with hold(tmp_path / "run"):
        status, err = run(pytest.fail)
    assert status == 2
    assert f"process {os.getpid()} of" in err
    assert (tmp_path / "run" / saving.STOP).exists()

    def train(training: Any) -> None:
        assert (tmp_path / "run" / RUNNING).exists()
        raise RuntimeError("this end, too, frees the folder")

    assert run(train)[0] == 1
    assert not (tmp_path / "run" / RUNNING).exists()


def test_a_stop_request_during_the_start_counts(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop = tmp_path / "run" / saving.STOP
    stop.parent.mkdir()
    stop.touch()  # of an earlier start

    examine = findings.examine

    def touch_and_examine(*args: Any, **kwargs: Any) -> list[Any]:
        assert not stop.exists()
        stop.touch()
        return examine(*args, **kwargs)

    monkeypatch.setattr(findings, "examine", touch_and_examine)
    seen = []
    assert run(lambda config: seen.append(stop.exists()))[0] == 0
    assert seen == [True]


def test_sft_resumes_with_its_first_batch_size(run: Run, tmp_path: Path) -> None:
    """The default is 96 per device: two devices would have 192."""
    seen = []

    def train(training: Any) -> None:
        seen.append(training.train_batch_size)
        save_checkpoint(tmp_path / "run", 4)

    assert run(train)[0] == 0
    assert run(lambda training: seen.append(training.train_batch_size), N_GPUS_PER_NODE="2")[0] == 0
    assert seen == [96, 96]


def test_checkpoints_kept_earlier_are_removed_only_on_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Six exist; with three to keep there are at most five: also the best, and one of a killed run."""
    monkeypatch.delenv("SAVE_KEEP", raising=False)
    for step in range(1, 7):
        save_checkpoint(tmp_path, step)
    with refuses("launch.checkpoints-at-risk", tmp_path, "6 checkpoints", "SAVE_KEEP=all"):
        runner.check_retention(tmp_path, 3, [])
    runner.check_retention(tmp_path, 4, [])
    runner.check_retention(tmp_path, None, [])
    runner.check_retention(tmp_path, 3, ["trainer.max_actor_ckpt_to_keep=3"])
    monkeypatch.setenv("SAVE_KEEP", "3")
    runner.check_retention(tmp_path, 3, [])


def run_python(log: Path, code: str) -> str:
    """Run Python code and return its terminal output; in the context `output` it writes to the log."""
    start = "import pathlib; from recipes.launch import console; "
    start += f"output = console.redirect_output(pathlib.Path({str(log)!r}))"
    return subprocess.run([sys.executable, "-c", start + code], capture_output=True, text=True, check=True).stderr


def test_output_at_interpreter_exit_goes_only_to_the_log(tmp_path: Path) -> None:
    code = """
import atexit, os
atexit.register(os.write, 2, b'the end ')
with output:
    os.write(2, b'the run ')
os.write(2, b'after it ')
"""
    assert run_python(tmp_path / "run.log", code) == "after it "
    assert (tmp_path / "run.log").read_text() == "the run the end "


def test_interrupted_progress_bar_stays_off_the_terminal(tmp_path: Path) -> None:
    code = """
from tqdm import tqdm
held = []
try:
    with output:
        held.append(tqdm(total=3, desc='Training'))
        held[0].update(1)
        raise KeyboardInterrupt
except KeyboardInterrupt:
    held.clear()
"""
    assert run_python(tmp_path / "run.log", code) == ""
    assert "Training" in (tmp_path / "run.log").read_text()
