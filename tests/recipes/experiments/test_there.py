"""A matrix as jobs, each a real process: a `python` on the PATH plays the recipes, as quickly as they never are.

tests/e2e/test_matrix.py does it with Ray and the recipes themselves.
"""

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from omegaconf import DictConfig
from ray.job_submission import JobStatus

from convrec.errors import UserError
from recipes.experiments import matrix_jobs, there
from recipes.experiments.amount import composed, work_of
from recipes.experiments.matrix_file import Run, runs_of
from recipes.experiments.matrix_jobs import MatrixJobs
from recipes.experiments.needs import tasks_of, with_devices
from recipes.experiments.schedule import Node

PLAYED = """#!/bin/sh
echo "$@" >> {folder}/commands
case "$3" in
  {{*) out=$(echo "$3" | sed 's/.*"out": "\\([^"]*\\)".*/\\1/'); mkdir -p "$out"; echo '{{}}' > "$out/metrics.json" ;;
  *) case "$SAVE_PATH" in *bad*) echo "error: no such luck"; echo "full log: there"; exit 2 ;; esac
     while [ -e {folder}/wait ]; do sleep 0.02; done
     mkdir -p "$SAVE_PATH"; echo "$TOTAL_STEPS" > "$SAVE_PATH/latest_checkpointed_iteration.txt"
     echo "$MODEL_PATH" > "$SAVE_PATH/start" ;;
esac
"""
MATRIX = """
seeds: [1, 2]
variables: {TOTAL_STEPS: 3}
runs:
  sft: {recipe: sft, seeds: [1]}
  good: {start: sft}
  bad: {recipe: sft, start: sft, seeds: [1]}
  of_bad: {recipe: sft, start: bad, seeds: [1]}
"""


class Shell:
    """In the place of Ray's client: jobs are processes of this machine, with the environment that they would have."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.jobs, self.slots = folder, {}, {}
        (folder / "python").write_text(PLAYED.format(folder=folder))
        (folder / "python").chmod(0o755)

    def submit_job(self, entrypoint: str, submission_id: str, runtime_env: dict[str, Any], **rest: Any) -> None:
        if submission_id in self.jobs:
            raise RuntimeError(f"Job with submission_id {submission_id} already exists.")
        environment = os.environ | runtime_env["env_vars"] | {"PATH": f"{self.folder}:{os.environ['PATH']}"}
        log = (self.folder / submission_id).open("w")
        self.jobs[submission_id] = subprocess.Popen(entrypoint, shell=True, env=environment, stdout=log, stderr=log)
        self.slots[submission_id] = rest.get("entrypoint_num_gpus")

    def get_job_info(self, job: str) -> SimpleNamespace:
        code = self.jobs[job].poll()
        status = JobStatus.RUNNING if code is None else JobStatus.FAILED if code else JobStatus.SUCCEEDED
        return SimpleNamespace(status=status, driver_exit_code=code, message="", submission_id=job)

    def list_jobs(self) -> list[SimpleNamespace]:
        return [self.get_job_info(job) for job in self.jobs]

    def get_job_logs(self, job: str) -> str:
        return (self.folder / job).read_text()


class Matrix:
    """A matrix in a folder, and what it said."""

    def __init__(self, folder: Path, runs: list[Run], configs: dict[str, DictConfig]) -> None:
        self.out, self.client, self.said, self.ended = folder / "out", Shell(folder), [], []
        self.nodes, self.runs, self.configs = [Node(2, 32)], runs, configs

    def start(self) -> list[str]:
        def after_each(run: Run, is_training: bool) -> None:
            self.ended.append((run.name, is_training))

        evaluate = {"data": "test.parquet", "catalog": "catalog.parquet", "ks": [5]}
        tasks = tasks_of(self.runs, self.configs, evaluate, self.nodes)
        works = work_of(self.runs, self.configs, self.out)
        rewards = there.check(self.runs, self.configs)
        jobs = MatrixJobs(self.client, self.runs, self.out, evaluate, rewards, self.said.append)
        return there.train_and_evaluate(jobs, there.schedule_of(tasks, works, self.nodes, None), after_each)


@pytest.fixture(scope="module")
def runs() -> list[Run]:
    return with_devices(runs_of(yaml.safe_load(MATRIX)), [Node(1, 32)])


@pytest.fixture(scope="module")
def configs(runs: list[Run]) -> dict[str, DictConfig]:
    return composed(runs, Path("out"))


@pytest.fixture
def matrix(
    tmp_path: Path, runs: list[Run], configs: dict[str, DictConfig], outside: None, monkeypatch: pytest.MonkeyPatch
) -> Matrix:
    monkeypatch.setattr(there, "POLL_SECONDS", 0.02)
    return Matrix(tmp_path, runs, configs)


def test_runs_are_trained_and_evaluated_and_a_failure_stops_what_starts_from_it_alone(matrix: Matrix) -> None:
    failed, *left_out = matrix.start()
    (job,) = [job for job in matrix.client.jobs if job.endswith("-bad-train-1")]
    log = matrix.out / "logs" / f"{job}.log"
    assert failed == f"bad-train failed: FAILED, exit status 2: error: no such luck\n  log: {log}"
    assert log.read_text() == "error: no such luck\nfull log: there\n"
    assert [line.split()[0] for line in left_out] == ["bad-evaluate", "of_bad-train", "of_bad-evaluate"]
    runs = ["sft", "good-s1", "good-s2"]
    assert sorted(matrix.ended) == sorted((run, is_training) for run in runs for is_training in (True, False))
    assert (matrix.out / "good-s2" / "start").read_text() == f"{matrix.out}/sft\n"


def test_the_jobs_have_what_they_need(matrix: Matrix, tmp_path: Path) -> None:
    matrix.start()
    commands = (tmp_path / "commands").read_text().splitlines()
    assert commands[0] == "-m recipes.sft"
    (evaluation,) = [line for line in commands if '/evaluation/good-s1"' in line]
    module, text = evaluation.removeprefix("-m ").split(" ", 1)
    assert module == "recipes.experiments.evaluation_job"
    assert json.loads(text) == {
        "model": f"{matrix.out}/good-s1",
        "out": f"{matrix.out}/evaluation/good-s1",
        "against": f"{matrix.out}/evaluation/sft",
        "data": str(tmp_path / "test.parquet"),  # absolute: the job runs elsewhere
        "catalog": str(tmp_path / "catalog.parquet"),
        "ks": [5],
    }
    slots = {job[len("matrix-12345678-") : -2]: slots for job, slots in matrix.client.slots.items()}
    assert slots["good-s1-evaluate"] == 1  # a process that asks Ray for nothing
    assert slots["sft-train"] is slots["good-s1-train"] is None


def test_started_again_it_leaves_finished_runs_alone_and_tries_failed_ones_again(
    matrix: Matrix, tmp_path: Path
) -> None:
    matrix.start()
    (tmp_path / "commands").unlink()
    (tmp_path / "python").write_text(PLAYED.format(folder=tmp_path).replace("*bad*", "*no*"))
    assert matrix.start() == []
    trained = [line for line in (tmp_path / "commands").read_text().splitlines() if "{" not in line]
    assert trained == ["-m recipes.sft"] * 2  # bad, of_bad
    assert any(job.endswith("-bad-train-2") for job in matrix.client.jobs)


def test_ctrl_c_leaves_the_jobs_and_the_next_start_waits_for_them(matrix: Matrix, tmp_path: Path) -> None:
    (tmp_path / "wait").touch()

    def when_said(part: str, act: Callable[[], None]) -> None:
        while not any(part in line for line in matrix.said):
            time.sleep(0.01)
        act()

    threading.Thread(target=when_said, args=("sft-train: ", lambda: signal.raise_signal(signal.SIGINT))).start()
    with pytest.raises(KeyboardInterrupt):
        matrix.start()
    (job,) = matrix.client.jobs
    assert matrix.said[-1] == f"{job} goes on; to end it: ray job stop {job}"
    assert matrix.client.get_job_info(job).status == JobStatus.RUNNING

    threading.Thread(target=when_said, args=("runs already", (tmp_path / "wait").unlink)).start()
    matrix.start()
    assert f"sft-train runs already: {job}" in matrix.said
    assert sum("sft-train" in name for name in matrix.client.jobs) == 1
    assert ("sft", True) in matrix.ended


def test_two_starts_at_once_share_a_job(matrix: Matrix, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second sees no job yet, and Ray refuses its id."""
    matrix.start()
    jobs = set(matrix.client.jobs)
    monkeypatch.setattr(matrix.client, "list_jobs", list)
    matrix.start()
    assert set(matrix.client.jobs) == jobs
    assert any("sft-evaluate was submitted by another start of this matrix" in line for line in matrix.said)


def test_a_folder_that_is_not_shared_is_said(matrix: Matrix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix_jobs, "SHARED_SECONDS", 0.1)
    (tmp_path / "python").write_text("#!/bin/sh\n")
    failed = matrix.start()[0]
    assert failed.startswith(f"sft-train failed: it ended well, and {matrix.out} here has nothing of it")


def test_a_path_that_means_nothing_there_is_refused(runs: list[Run], configs: dict[str, DictConfig]) -> None:
    relative = replace(runs[0], overrides=["data.train_files=[here/a.parquet]"])
    with pytest.raises(UserError, match="a relative path means nothing on the cluster"):
        there.check([relative], configs)
