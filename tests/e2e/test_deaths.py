"""A run whose processes are killed: it ends by itself, says why, leaves nothing behind, and its checkpoint is there."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from convrec import saving
from convrec.runs import latest_step

from .conftest import ROOT, descendants

BOUND = 120  # seconds; 5-20 were seen, on busy cores


@pytest.mark.parametrize(
    ("victim", "status", "reason"),
    [
        ("VLLM::EngineCore", 1, "is gone (killed, or out of memory)"),
        ("the driver", -signal.SIGKILL, "its process is gone without a word"),
    ],
)
def test_a_killed_process_ends_the_run_with_a_reason_and_nothing_is_left(demo, tmp_path, victim, status, reason):
    environment = {**os.environ, "PYTHON": sys.executable, "SAVE_PATH": str(tmp_path / "run"), **demo.files}
    environment |= {"MODEL_PATH": str(demo.out / "sft"), "TRAIN_BATCH_SIZE": "4", "ROLLOUT_N": "4", "SAVE_FREQ": "1"}
    environment |= {"MAX_PROMPT_LENGTH": "256", "MAX_RESPONSE_LENGTH": "64", "TOTAL_STEPS": "1000", "SAVE_KEEP": "2"}
    environment |= {"TOTAL_EPOCHS": "1000", "TEST_FREQ": "-1"}
    run = subprocess.Popen(
        ["bash", str(ROOT / "run_rank_grpo.sh"), "trainer.val_before_train=false"],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 600
    while latest_step(tmp_path / "run") < 2:
        assert run.poll() is None, run.communicate()[1][-3000:]
        assert time.monotonic() < deadline
        time.sleep(0.2)
    processes = descendants(run)
    folders = {process.environ().get("CONVREC_RUN_TMP") for process in processes if process.name() == "gcs_server"}
    (folder,) = folders
    segments = {name for process in processes if process.name() == victim for name in shared_memory_of(process)}
    start = time.monotonic()
    (run if victim == "the driver" else next(p for p in processes if p.name() == victim)).kill()
    _, stderr = run.communicate(timeout=BOUND)
    _, left = psutil.wait_procs(processes, timeout=max(1.0, BOUND - (time.monotonic() - start)))
    assert not left, [process.cmdline() for process in left]
    assert run.returncode == status, stderr
    assert reason in stderr
    assert "the same command resumes" in stderr
    assert not os.path.exists(folder)
    assert not segments & set(os.listdir("/dev/shm"))
    assert saving.choose_resume_step(tmp_path / "run") == [] or latest_step(tmp_path / "run") >= 2


def shared_memory_of(process: psutil.Process) -> set[str]:
    return {m.path.removeprefix("/dev/shm/") for m in process.memory_maps() if m.path.startswith("/dev/shm/psm_")}
