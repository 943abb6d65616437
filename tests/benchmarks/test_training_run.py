"""The figures of a training run that a benchmark starts, from what the run has written."""

import json
import sys
from pathlib import Path

import pytest

from benchmarks.training_run import make_data_variables, make_run_variables, time_run

# Stands for a run: it writes the steps that it gets, and lives long enough to be looked at.
RUN = """
import os, pathlib, sys, time
folder = pathlib.Path(os.environ["SAVE_PATH"]) / "metrics"
folder.mkdir(parents=True)
(folder / "0001.jsonl").write_text(sys.argv[1])
time.sleep(1)
"""


def test_medians_leave_out_the_steps_that_warm_up_and_the_checkpoint(tmp_path: Path) -> None:
    seconds = [90.0, 80.0, 4.0, 2.0, 3.0]
    steps = [
        {"step": step, "data": {"timing_s/step": value, "timing_s/gen": value / 2, "response_length/mean": 40.0}}
        for step, value in enumerate(seconds, 1)
    ]
    steps[-1]["data"] |= {"timing_s/step": 9.0, "timing_s/save_checkpoint": 6.0}
    variables = make_run_variables(tmp_path / "run", tmp_path / "model", len(steps))
    found = time_run([sys.executable, "-c", RUN, "\n".join(map(json.dumps, steps))], variables, tmp_path / "log")
    assert found["step_seconds"] == {"gen": 1.5, "step": 3.0}
    assert found["step_quartiles"] == [2.0, 3.0, 4.0]  # a quarter of three values: the first one
    assert found["response_tokens"] == 40


def test_a_run_that_fails_ends_the_benchmark_with_its_last_words(tmp_path: Path) -> None:
    variables = make_run_variables(tmp_path / "run", tmp_path / "model", 4)
    with pytest.raises(SystemExit, match=r"run ended with status 3: see .*log\nno such model"):
        time_run([sys.executable, "-c", "print('no such model'); exit(3)"], variables, tmp_path / "log")


def test_no_step_of_a_run_is_validated_or_saved_but_the_last() -> None:
    variables = make_run_variables(Path("run"), Path("model"), 7)
    assert variables["TOTAL_STEPS"] == "7"
    assert int(variables["SAVE_FREQ"]) > 7
    assert variables["TEST_FREQ"] == "-1"


def test_demonstrations_have_tables_of_their_own() -> None:
    assert make_data_variables(Path("data"), "sft_") == {
        "TRAIN_FILE": "data/sft_train.parquet",
        "VAL_FILE": "data/sft_validation.parquet",
        "CATALOG_FILE": "data/catalog.parquet",
    }
