"""Signals to parts of Ray, a training worker and the guard of whole runs: what is said, and that nothing is left."""

import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from convrec.runs.folder import latest_step

from .conftest import descendants, killed_on_error, processes_named, wait_for
from .test_deaths import begin, shared_memory_of

pytestmark = pytest.mark.faults
KILL, STOP, TERM = signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM


@pytest.mark.parametrize(
    ("victim", "number", "status", "seconds", "said"),
    [
        ("gcs_server", KILL, 1, 70, "Ray's gcs_server at 127.0.0.1:"),
        ("raylet", KILL, 1, 40, " gone"),  # without a word where Ray's core ends the driver before it can say one
        ("ray::WorkerDict", STOP, 75, 200, "(ray::WorkerDict) is stopped"),
        ("guard", KILL, 130, 20, "stopped after step"),  # and then SIGTERM to the run, at once
    ],
)
def test_the_end_is_named_and_nothing_is_left(trained, own_data, tmp_path, victim, number, status, seconds, said):
    run_folder = tmp_path / "run"
    run = begin(trained, own_data, run_folder, "convrec.watchdog_seconds=20")
    with killed_on_error(run):
        wait_for(run, lambda: latest_step(run_folder) >= 2)
        processes = [psutil.Process(run.pid), *descendants(run)]
        folder = Path(next(p for p in processes if p.name() == "gcs_server").environ()["CONVREC_RUN_TMP"])
        guard = psutil.Process(int((folder / "guard.pid").read_text().split()[0]))
        time.sleep(1)  # the guard has seen what vLLM has mapped
        segments = set().union(*(shared_memory_of(process) for process in processes))
        semaphores = {name for name in os.listdir("/dev/shm") if any(f"-{p.pid}-" in name for p in processes)}
        begun = time.monotonic()
        (guard if victim == "guard" else processes_named(run, victim)[0]).send_signal(number)
        if victim == "guard":
            run.send_signal(TERM)
        _, stderr = run.communicate(timeout=300)
        took = time.monotonic() - begun
    print(
        f"{victim} {number.name}: status {run.returncode} after {took:.1f} s; {len(semaphores)} semaphores;",
        stderr[-400:],
    )
    assert run.returncode == status, stderr[-3000:]
    assert said in stderr
    assert took < seconds
    _, left = psutil.wait_procs([*processes, guard], timeout=60)
    assert not left
    assert not folder.exists()
    assert not (segments | semaphores) & set(os.listdir("/dev/shm"))
