"""Real signals to real runs, at moments at which they used to end them with a traceback, an abort or without a word."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from .conftest import ROOT, descendants, killed_on_error


def ray_is_starting(run: subprocess.Popen, run_folder: Path) -> bool:
    """Its handler of SIGTERM aborts the process until `ray.init` returns."""
    return any(process.name() == "raylet" for process in descendants(run))


def first_step_is_logged(run: subprocess.Popen, run_folder: Path) -> bool:
    return any(path.stat().st_size for path in run_folder.glob("metrics/*.jsonl"))


@pytest.mark.parametrize(
    ("script", "model", "number", "moment"),
    [
        ("run_rank_grpo.sh", "sft", signal.SIGTERM, ray_is_starting),
        ("run_sft.sh", "model", signal.SIGUSR1, first_step_is_logged),
    ],
)
def test_a_signal_ends_a_run_with_one_line_and_nothing_is_left(trained, tmp_path, script, model, number, moment):
    run_folder = tmp_path / "run"
    environment = {name: value for name, value in os.environ.items() if name not in ("SLURM_JOB_ID", "SAVE_ON_TERM")}
    environment |= {"PYTHON": sys.executable, "SAVE_PATH": str(run_folder), "MODEL_PATH": str(trained.out / model)}
    environment |= trained.files | {"TRAIN_BATCH_SIZE": "4", "TOTAL_STEPS": "1000", "TEST_FREQ": "-1"}
    environment |= {"MAX_PROMPT_LENGTH": "256", "MAX_RESPONSE_LENGTH": "64"}
    if model == "model":
        environment["TRAIN_FILE"] = str(trained.out / "data" / "sft_train.parquet")
        environment["VAL_FILE"] = str(trained.out / "data" / "sft_validation.parquet")
    run = subprocess.Popen(
        ["bash", str(ROOT / script)], env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    with killed_on_error(run):
        deadline = time.monotonic() + 200
        while not moment(run, run_folder):
            assert run.poll() is None, run.communicate()[1][-3000:]
            assert time.monotonic() < deadline
            time.sleep(0.05)
        processes = descendants(run)
        folders = {process.environ().get("CONVREC_RUN_TMP") for process in processes} - {None}
        run.send_signal(number)
        _, error = run.communicate(timeout=60)
    assert run.returncode == 130
    after_start = error[error.index("starting ") :].splitlines()[1:]
    assert after_start[-1] == "stopped after step 0; the same command resumes"
    assert not [line for line in after_start[:-1] if line.strip() and "step" not in line]  # the progress bar
    _, left = psutil.wait_procs(processes, timeout=5)
    assert not left
    assert not (run_folder / "running").exists()
    assert folders
    assert not [folder for folder in folders if os.path.exists(folder)]
