"""A matrix as jobs, each a real process; a `python` on the PATH stands for the recipes and ends at once.

tests/e2e/test_matrix.py runs Ray and the recipes themselves.
"""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from ray.job_submission import JobStatus

from convrec.base.options import parse
from convrec.settings.run import Run
from recipes import matrix as command
from recipes.evaluation.options import EvaluateOptions, format_arguments
from recipes.experiments import cluster_runs
from recipes.experiments.cluster_runs import MatrixJobs
from recipes.experiments.matrix_file import Matrix
from recipes.experiments.matrix_runs import MatrixRun, composed, expand_matrix
from recipes.preflight import cluster_findings
from recipes.preflight import node as preflight_node
from recipes.preflight.cluster_findings import WAITS_VARIABLE
from tests.user_errors import refuses

PLAYED = """#!/bin/sh
echo "$@" >> {folder}/commands
case "$3" in
  evaluate) out=$(echo "$@" | sed 's/.*--out=\\([^ ]*\\).*/\\1/'); mkdir -p "$out"; echo '{{}}' > "$out/metrics.json" ;;
  *) case "$SAVE_PATH" in *bad*) echo "error: no such luck"; echo "full log: there"; exit 2 ;; esac
     while [ -e {folder}/wait ]; do sleep 0.02; done
     mkdir -p "$SAVE_PATH/global_step_$TOTAL_STEPS"; touch "$SAVE_PATH/global_step_$TOTAL_STEPS/complete.json"
     echo "$TOTAL_STEPS" > "$SAVE_PATH/latest_checkpointed_iteration.txt"
     echo "$MODEL_PATH" > "$SAVE_PATH/start" ;;
esac
"""
MATRIX = """
out: out
evaluate: {}
seeds: [1, 2]
variables: {TOTAL_STEPS: 3}
runs:
  sft: {recipe: sft, seeds: [1]}
  good: {start: sft}
  bad: {recipe: sft, start: sft, seeds: [1]}
  of_bad: {recipe: sft, start: bad, seeds: [1]}
"""
EVALUATE = {"data": "test.parquet", "catalog": "catalog.parquet", "ks": [5], "tensor_parallel": 2, "replicas": 3}


class Shell:
    """A fake of Ray's client: jobs are processes of this machine, with the environment that they would have."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.jobs, self.slots = folder, {}, {}
        self.ended: set[str] = set()  # jobs whose end get_job_info has reported
        self.most_at_once = 0
        (folder / "python").write_text(PLAYED.format(folder=folder))
        (folder / "python").chmod(0o755)

    def submit_job(self, entrypoint: str, submission_id: str, runtime_env: dict[str, Any], **rest: Any) -> None:
        environment = os.environ | runtime_env["env_vars"] | {"PATH": f"{self.folder}:{os.environ['PATH']}"}
        log = (self.folder / submission_id).open("w")
        self.jobs[submission_id] = subprocess.Popen(entrypoint, shell=True, env=environment, stdout=log, stderr=log)
        self.slots[submission_id] = rest.get("entrypoint_num_gpus"), runtime_env["env_vars"].get(WAITS_VARIABLE)
        self.most_at_once = max(self.most_at_once, len(self.jobs) - len(self.ended))

    def get_job_info(self, job: str) -> SimpleNamespace:
        code = self.jobs[job].poll()
        status = JobStatus.RUNNING if code is None else JobStatus.FAILED if code else JobStatus.SUCCEEDED
        self.ended |= {job} if code is not None else set()
        return SimpleNamespace(status=status, driver_exit_code=code, message="", submission_id=job)

    def list_jobs(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(submission_id=job) for job in (None, *self.jobs)]

    def get_job_logs(self, job: str) -> str:
        return (self.folder / job).read_text()


class Started:
    """A matrix in a folder, with the lines that it printed."""

    def __init__(self, folder: Path, runs: list[MatrixRun], trainings: dict[str, Run[Any]]) -> None:
        self.out, self.client, self.lines = folder / "out", Shell(folder), []
        self.runs = runs
        self.trainings = trainings
        self.evaluated: list[str] = []

    def start(self, parallel: int = 2) -> list[str]:
        jobs = MatrixJobs(self.client, self.trainings, self.out, EVALUATE)
        return command.train_and_evaluate(
            self.runs, jobs.train_and_evaluate, parallel, lambda run: self.evaluated.append(run.name)
        )


@pytest.fixture(scope="module")
def runs() -> list[MatrixRun]:
    return expand_matrix(Matrix(**yaml.safe_load(MATRIX)))


@pytest.fixture(scope="module")
def trainings(runs: list[MatrixRun]) -> dict[str, Run[Any]]:
    return composed(runs, Path("out"))


@pytest.fixture
def matrix(
    tmp_path: Path,
    runs: list[MatrixRun],
    trainings: dict[str, Run[Any]],
    outside: None,
    monkeypatch: pytest.MonkeyPatch,
) -> Started:
    monkeypatch.setattr(cluster_runs, "POLL_SECONDS", 0.02)
    matrix = Started(tmp_path, runs, trainings)
    monkeypatch.setattr(cluster_runs, "say", matrix.lines.append)
    return matrix


def test_failed_run_stops_only_the_runs_that_start_from_it(matrix: Started) -> None:
    failure, skipped = matrix.start()
    (job,) = [job for job in matrix.client.jobs if job.endswith("-bad-train-1")]
    log = matrix.out / "logs" / f"{job}.log"
    assert failure.startswith("bad failed: ")
    assert failure.endswith(f"exit status 2: error: no such luck\n  log: {log}")
    assert log.read_text() == "error: no such luck\nfull log: there\n"
    assert skipped == "of_bad was not started because bad failed"
    assert sorted(matrix.evaluated) == ["good-s1", "good-s2", "sft"]
    assert (matrix.out / "good-s2" / "start").read_text() == f"{matrix.out}/sft\n"
    assert matrix.client.most_at_once == 2


def test_jobs_have_their_arguments_and_slots(matrix: Started, tmp_path: Path) -> None:
    matrix.start(parallel=1)
    assert matrix.client.most_at_once == 1
    commands = (tmp_path / "commands").read_text().splitlines()
    assert commands[0] == "-m recipes train sft"
    (evaluation,) = [line for line in commands if f"--out={matrix.out}/evaluation/good-s1" in line]
    options = parse(EvaluateOptions, evaluation.split()[3:])
    assert (options.model, options.against) == (f"{matrix.out}/good-s1", f"{matrix.out}/evaluation/sft")
    assert options.data == str(tmp_path / "test.parquet")  # absolute: the job runs in another folder
    assert (options.ks, options.tensor_parallel, options.replicas, options.overwrite) == ([5], 2, 3, True)
    slots = {job[len("matrix-12345678-") : -2]: slots for job, slots in matrix.client.slots.items()}
    assert slots["good-s1-evaluate"] == (6, None)  # 2 GPUs x 3 replicas for the job's own process
    assert slots["sft-train"] == slots["good-s1-train"] == (None, "1")


def test_restart_skips_finished_runs_and_retries_failed_ones(matrix: Started, tmp_path: Path) -> None:
    assert matrix.start()[0].startswith("bad failed")
    (tmp_path / "commands").unlink()
    (tmp_path / "python").write_text(PLAYED.format(folder=tmp_path).replace("*bad*", "*no*"))
    assert matrix.start() == []
    trained = [line for line in (tmp_path / "commands").read_text().splitlines() if "train" in line]
    assert trained == ["-m recipes train sft"] * 2  # bad, of_bad
    assert any(job.endswith("-bad-train-2") for job in matrix.client.jobs)


def test_ctrl_c_leaves_the_jobs_and_next_start_waits_for_them(matrix: Started, tmp_path: Path) -> None:
    matrix.runs = [replace(run, start=None) for run in matrix.runs if run.name.startswith("good")]
    (tmp_path / "wait").touch()

    def act_after_two_lines(part: str, act: Callable[[], None]) -> None:
        while sum(part in line for line in matrix.lines) < 2:
            time.sleep(0.01)
        act()

    def interrupt() -> None:
        signal.raise_signal(signal.SIGINT)

    threading.Thread(target=act_after_two_lines, args=("submitted", interrupt)).start()
    with pytest.raises(KeyboardInterrupt):
        matrix.start()
    jobs = list(matrix.client.jobs)
    assert {job[len("matrix-12345678-") :] for job in jobs} == {"good-s1-train-1", "good-s2-train-1"}
    assert sorted(matrix.lines[-2:]) == [f"{job} is still running; to stop it: ray job stop {job}" for job in jobs]
    assert [matrix.client.get_job_info(job).status for job in jobs] == [JobStatus.RUNNING] * 2

    threading.Thread(target=act_after_two_lines, args=("is already running", (tmp_path / "wait").unlink)).start()
    assert matrix.start() == []
    assert sum("train" in job for job in matrix.client.jobs) == 2
    assert sorted(matrix.evaluated) == ["good-s1", "good-s2"]


def test_out_must_be_shared_with_the_cluster(matrix: Started, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_runs, "SHARED_SECONDS", 0.1)
    (tmp_path / "python").write_text("#!/bin/sh\n")
    jobs = MatrixJobs(matrix.client, matrix.trainings, matrix.out, EVALUATE)
    with refuses("matrix.out-not-shared", matrix.out):
        list(jobs.train_and_evaluate(matrix.runs[0]))


def test_relative_paths_are_refused_before_submission(runs: list[MatrixRun], tmp_path: Path) -> None:
    run = replace(runs[0], overrides=["data.train_files=[here/a.parquet]"])
    with refuses("cluster.relative-path", "sft: ", "here/a.parquet"):
        composed([run], tmp_path, on_cluster=True)


def test_matrix_training_waits_while_another_job_holds_its_slots(
    trainings: dict[str, Run[Any]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    free = preflight_node.NodeSlots("a node", gpus=2, free_gpus=2, cpus=8, free_cpus=8)
    seen = [replace(free, free_gpus=0), replace(free, free_cpus=0), free]
    monkeypatch.setattr(cluster_findings, "WAIT_SECONDS", 0)
    for environment, expected in (({}, seen[0]), ({WAITS_VARIABLE: "1"}, free)):
        states = iter(seen)
        monkeypatch.setattr(preflight_node, "collect_slots", lambda states=states: [next(states)])
        assert cluster_findings.wait_for_slots(trainings["sft"], environment) == [expected]
    assert capsys.readouterr().out.startswith("waiting: another job holds them; ")
    too_small = [replace(free, gpus=0, free_gpus=0)]  # slots that the cluster does not have are not waited for
    monkeypatch.setattr(preflight_node, "collect_slots", lambda: too_small)
    assert cluster_findings.wait_for_slots(trainings["sft"], {WAITS_VARIABLE: "1"}) == too_small


def test_the_evaluation_of_a_job_has_the_options_of_the_file() -> None:
    options = {"model": "m", "out": "o", "data": "d", "catalog": "c", "delimiter": "- ", "replicas": "auto"}
    options |= {"constrained": True, "limit": None, "fuzzy_cutoff": 91.5, "slices": [], "ks": [5, 10]}
    options["chat_template_kwargs"] = {"enable_thinking": True}
    parsed = asdict(parse(EvaluateOptions, format_arguments(options)))
    assert {name: parsed[name] for name in options} == options
