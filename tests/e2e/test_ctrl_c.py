"""A small run that is interrupted in a step and finished by the same command: no step is lost or repeated."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from convrec.runs import supervisor
from convrec.runs.folder import latest_step, read_metrics
from data_prep.sample import write_sample
from recipes.tiny_model import make_tiny_model, read_texts

from .conftest import ROOT, killed_on_error, trained_steps, wait_for

END_SECONDS = 60
ENDLESS = 1_000_000


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Of SFT of a tiny model that saves nothing unasked."""
    data = write_sample(tmp_path / "data", counts={"train": 16, "validation": 4, "test": 4})
    texts = read_texts([data / "train.parquet", data / "sft_train.parquet"])
    make_tiny_model(
        tmp_path / "model", texts, hidden_size=64, num_layers=1, num_heads=2, num_kv_heads=1, intermediate_size=64
    )
    outside = {name: value for name, value in os.environ.items() if name != supervisor.SAVE_VARIABLE}
    files = {"TRAIN_FILE": "data/sft_train.parquet", "VAL_FILE": "data/sft_validation.parquet"}
    files |= {"MODEL_PATH": "model", "SAVE_PATH": "run"}
    often = {"SAVE_FREQ": str(ENDLESS), "TEST_FREQ": str(ENDLESS), "TOTAL_EPOCHS": str(ENDLESS)}
    more = {"TRAIN_BATCH_SIZE": "4", "PYTHON": sys.executable}
    return outside | {name: str(tmp_path / path) for name, path in files.items()} | often | more


@contextmanager
def started(environment: dict[str, str], steps: int) -> Iterator[subprocess.Popen]:
    """The run, up to so many steps."""
    process = subprocess.Popen(
        ["bash", str(ROOT / "run_sft.sh")],
        env=environment | {"TOTAL_STEPS": str(steps)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # a background job of a script has Ctrl-C ignored, and would hand that on
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    with killed_on_error(process):
        yield process


def test_an_interrupted_run_saves_its_step_and_resumes_after_it(environment: dict[str, str], tmp_path: Path) -> None:
    run = tmp_path / "run"
    with started(environment, ENDLESS) as process:
        wait_for(process, lambda: trained_steps(run), seconds=200)
        os.killpg(process.pid, signal.SIGINT)  # Ctrl-C is a signal to the foreground group
        _, error = process.communicate(timeout=END_SECONDS)
    assert process.returncode == 130
    step = latest_step(run)
    assert step == max(trained_steps(run))  # the one that it was in: it has logged no other
    lines = [line for line in error.splitlines() if "step/s" not in line and "s/step" not in line]
    assert lines[-2:] == [supervisor.SAVES, f"stopped on request after step {step}; the same command resumes"]

    with started(environment, step + 2) as process:
        _, error = process.communicate(timeout=200)
    assert process.returncode == 0, error
    assert f"trainer.total_training_steps: {ENDLESS} -> {step + 2}" in error
    assert f"resuming after step {step}" in error
    assert [row["step"] for row in read_metrics(run)] == list(range(1, step + 3))
    assert latest_step(run) == step + 2
