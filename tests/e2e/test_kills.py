"""Signals to parts of Ray, a training worker and the guard of whole runs, each alone in its namespaces: what is said,
that no process and no file in /tmp or /dev/shm is left, and that nothing could be reached by others."""

import os
import signal
import sys
import time

import psutil
import pytest

from convrec.runs.folder import latest_step

from .alone import alone
from .conftest import FAULTS, ROOT, descendants, processes_named

pytestmark = FAULTS
KILL, STOP, TERM = signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM


@pytest.mark.parametrize(
    ("victim", "number", "status", "seconds", "said"),
    [
        ("gcs_server", KILL, 1, 70, "Ray's gcs_server at 127.0.0.1:"),
        ("guard", KILL, 130, 20, "stopped after step"),  # and then SIGTERM to the run, at once
        ("ray::WorkerDict", STOP, 75, 200, "(ray::WorkerDict"),  # and its method, " is stopped"
        ("VLLM::EngineCore", KILL, 1, 40, " gone"),
        ("fork_server", KILL, 1, 40, " gone"),
        ("raylet", KILL, 1, 40, " gone"),  # without a word where Ray's core ends the driver before it can say one
    ],
)
def test_the_end_is_named_and_nothing_is_left(trained, tmp_path, victim, number, status, seconds, said):
    run_folder = tmp_path / "run"
    environment = os.environ | trained.files | {"PYTHON": sys.executable, "SAVE_PATH": str(run_folder)}
    environment |= {"MODEL_PATH": str(trained.out / "sft"), "TRAIN_BATCH_SIZE": "4", "ROLLOUT_N": "4", "SAVE_FREQ": "1"}
    environment |= {"MAX_PROMPT_LENGTH": "256", "MAX_RESPONSE_LENGTH": "64", "TOTAL_STEPS": "1000", "TEST_FREQ": "-1"}
    environment |= {"SAVE_ON_TERM": "0"}  # at once, before the guard is there again
    command = ["bash", str(ROOT / "run_rank_grpo.sh"), "trainer.val_before_train=false", "convrec.watchdog_seconds=20"]
    with alone(command, environment, tmp_path, grace=30) as run:
        run.wait_for(lambda: latest_step(run_folder) >= 2)
        begun = time.monotonic()
        if victim in ("guard", "fork_server"):
            next(p for p in descendants(run.process) if is_running(victim, p)).kill()
        else:
            processes_named(run, victim)[0].send_signal(number)
        if victim == "guard":
            os.kill(run.pid, TERM)
        assert run.end(400) == status, run.said()[-3000:]
    took = time.monotonic() - begun
    print(f"{victim}: {took:.1f} s until nothing was left; {run.said()[-500:]}")
    assert said in run.said()
    assert took < seconds


def words_of(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def is_running(module: str, process: psutil.Process) -> bool:
    endings = {"guard": "guard_process.py", "fork_server": "convrec.cpu.fork_server"}
    return any(word.endswith(endings[module]) for word in words_of(process))
