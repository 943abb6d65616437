"""Signals to parts of Ray, a training worker and the guard of whole runs, each alone in its namespaces: what is said,
and that nothing is left, neither a process nor a file in /tmp or /dev/shm."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from convrec.runs.folder import latest_step

from .alone import alone
from .conftest import ROOT, descendants, killed_on_error, processes_named

pytestmark = [
    pytest.mark.faults,
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces of its own: root alone may make them"),
]
KILL, STOP, TERM = signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM


@pytest.mark.parametrize(
    ("victim", "number", "status", "seconds", "said"),
    [
        ("gcs_server", KILL, 1, 70, "Ray's gcs_server at 127.0.0.1:"),
        ("guard", KILL, 130, 20, "stopped after step"),  # and then SIGTERM to the run, at once
        ("ray::WorkerDict", STOP, 75, 200, "(ray::WorkerDict) is stopped"),
        ("VLLM::EngineCore", KILL, 1, 40, " gone"),
        ("raylet", KILL, 1, 40, " gone"),  # without a word where Ray's core ends the driver before it can say one
    ],
)
def test_the_end_is_named_and_nothing_is_left(trained, tmp_path, victim, number, status, seconds, said):
    run_folder, report = tmp_path / "run", tmp_path / "left.json"
    environment = os.environ | trained.files | {"PYTHON": sys.executable, "SAVE_PATH": str(run_folder)}
    environment |= {"MODEL_PATH": str(trained.out / "sft"), "TRAIN_BATCH_SIZE": "4", "ROLLOUT_N": "4", "SAVE_FREQ": "1"}
    environment |= {"MAX_PROMPT_LENGTH": "256", "MAX_RESPONSE_LENGTH": "64", "TOTAL_STEPS": "1000", "TEST_FREQ": "-1"}
    environment["TORCHINDUCTOR_CACHE_DIR"] = str(
        tmp_path / "compiled"
    )  # else torch makes one in /tmp when it is imported
    command = ["bash", str(ROOT / "run_rank_grpo.sh"), "trainer.val_before_train=false", "convrec.watchdog_seconds=20"]
    with (tmp_path / "said").open("w+") as terminal:
        run = subprocess.Popen(
            alone(command, tmp_path.parent, report), env=environment, stderr=terminal, start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )  # fmt: skip
        with killed_on_error(run):
            wait_for_steps(run, run_folder, 2, Path(terminal.name))
            begun = time.monotonic()
            if victim == "guard":
                guard = next(p for p in descendants(run) if is_guard(p))
                supervisor = next(p for p in descendants(run) if "train" in words_of(p))
                guard.kill()
                supervisor.send_signal(TERM)
            else:
                processes_named(run, victim)[0].send_signal(number)
            assert run.wait(400) == status, Path(terminal.name).read_text()[-3000:]
    took, left = time.monotonic() - begun, json.loads(report.read_text())
    lines = Path(terminal.name).read_text()
    print(f"{victim}: status {run.returncode}, {took:.1f} s until nothing was left; {lines[-500:]}")
    assert left == {"processes": [], "tmp": [], "shm": []}
    assert said in lines
    assert took < seconds


def wait_for_steps(run: subprocess.Popen, run_folder: Path, steps: int, terminal: Path) -> None:
    deadline = time.monotonic() + 600
    while latest_step(run_folder) < steps:
        assert run.poll() is None, terminal.read_text()[-3000:]
        assert time.monotonic() < deadline
        time.sleep(0.1)


def words_of(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def is_guard(process: psutil.Process) -> bool:
    return any(word.endswith("guard_process.py") for word in words_of(process))
