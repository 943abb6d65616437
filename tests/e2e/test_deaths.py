"""A run whose processes are killed: it ends by itself, says why, leaves nothing behind, and the same command resumes.

One of the runs is asynchronous: it resumes what was trained synchronously, and the other way round.

While it lives, nothing of it listens beyond this machine's loopback.
"""

import contextlib
import ipaddress
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from convrec.runs import latest_step, read_metrics

from .conftest import ROOT, descendants, killed_on_error

BOUND = 120  # seconds; 5-25 were seen, on busy cores


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory) -> Path:
    """One for all, so that each start resumes what was killed before it."""
    return tmp_path_factory.mktemp("deaths") / "run"


@pytest.mark.parametrize(
    ("victim", "algorithm", "overrides", "status", "reason"),
    [
        ("VLLM::EngineCore", "grpo", [], 1, "is gone (killed, or out of memory)"),
        # asynchronously; the driver may still notice what else is gone, or be ended by Ray at once
        ("raylet", "rank_grpo", ["+scale=separate_async_cpu"], 1, " is gone "),
        ("the driver", "rank_grpo", [], -signal.SIGKILL, "its process is gone without a word"),
    ],
)
def test_a_killed_process_ends_the_run_with_a_reason_and_nothing_is_left(
    demo, run_folder, victim, algorithm, overrides, status, reason
):
    environment = {**os.environ, "PYTHON": sys.executable, "SAVE_PATH": str(run_folder), **demo.files}
    environment |= {"MODEL_PATH": str(demo.out / "sft"), "TRAIN_BATCH_SIZE": "4", "ROLLOUT_N": "4", "SAVE_FREQ": "1"}
    environment |= {"MAX_PROMPT_LENGTH": "256", "MAX_RESPONSE_LENGTH": "64", "TOTAL_STEPS": "1000", "SAVE_KEEP": "2"}
    environment |= {"TOTAL_EPOCHS": "1000", "TEST_FREQ": "-1", "ALGORITHM": algorithm}
    begun_at = latest_step(run_folder)
    run = subprocess.Popen(
        ["bash", str(ROOT / "run_rank_grpo.sh"), "trainer.val_before_train=false", *overrides],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with killed_on_error(run):
        deadline = time.monotonic() + 600
        while latest_step(run_folder) < begun_at + 2:
            assert run.poll() is None, run.communicate()[1][-3000:]
            assert time.monotonic() < deadline
            time.sleep(0.2)
        processes = [psutil.Process(run.pid), *descendants(run)]
        folders = {process.environ().get("CONVREC_RUN_TMP") for process in processes if process.name() == "gcs_server"}
        (folder,) = folders
        segments = set().union(*(shared_memory_of(process) for process in processes))
        assert not reachable_from_elsewhere(processes)
        start = time.monotonic()
        (run if victim == "the driver" else next(p for p in processes if p.name() == victim)).kill()
        _, stderr = run.communicate(timeout=BOUND)
    _, left = psutil.wait_procs(processes, timeout=max(1.0, BOUND - (time.monotonic() - start)))
    assert not left, [process.cmdline() for process in left]
    assert run.returncode == status, stderr
    assert reason in stderr
    assert "the same command resumes" in stderr
    assert f"resuming after step {begun_at}" in stderr or not begun_at
    assert not os.path.exists(folder)
    assert not segments & set(os.listdir("/dev/shm"))
    loss = {"grpo": "actor/pg_loss", "rank_grpo": "actor/policy_loss"}[algorithm]
    assert any(loss in row for row in read_metrics(run_folder) if row["step"] > begun_at)


def reachable_from_elsewhere(processes: list[psutil.Process]) -> list[tuple[str, str, int]]:
    """(process, address, port) of everything that listens on more than the loopback."""
    found = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            listening = [c.laddr for c in process.net_connections("inet") if c.status == psutil.CONN_LISTEN]
            found += [
                (process.name(), address.ip, address.port)
                for address in listening
                if not ipaddress.ip_address(address.ip.removeprefix("::ffff:")).is_loopback
            ]
    return found


def shared_memory_of(process: psutil.Process) -> set[str]:
    """Names in /dev/shm that it maps."""
    with contextlib.suppress(psutil.Error):
        paths = {m.path for m in process.memory_maps() if m.path.startswith("/dev/shm/")}
        return {path.removeprefix("/dev/shm/") for path in paths if not path.endswith("(deleted)")}
    return set()
