"""A matrix as jobs, each a real process: a `python` on the PATH plays the recipes, as quickly as they never are.

tests/e2e/test_matrix.py does it with Ray and the recipes themselves.
"""

import itertools
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from omegaconf import DictConfig
from ray.job_submission import JobStatus

from convrec.errors import UserError
from recipes.experiments import cluster_runs
from recipes.experiments.amount import composed, is_finished
from recipes.experiments.cluster_runs import NOT_STARTED, MatrixJobs, Task, fits, tasks_of, train_and_evaluate
from recipes.experiments.matrix_file import Matrix
from recipes.experiments.matrix_runs import MatrixRun, runs_of
from recipes.preflight import cluster_findings
from recipes.preflight import node as preflight_node
from recipes.preflight.cluster_findings import WAITS_VARIABLE

PLAYED = """#!/bin/sh
echo "$@" >> {folder}/commands
case "$4" in
  {{*) out=$(echo "$4" | sed 's/.*"out": "\\([^"]*\\)".*/\\1/'); mkdir -p "$out"; echo '{{}}' > "$out/metrics.json" ;;
  *) case "$SAVE_PATH" in *bad*) echo "error: no such luck"; echo "full log: there"; exit 2 ;; esac
     while [ -e {folder}/wait ]; do sleep 0.02; done
     mkdir -p "$SAVE_PATH"; echo "$TOTAL_STEPS" > "$SAVE_PATH/latest_checkpointed_iteration.txt"
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


class Shell:
    """In the place of Ray's client: jobs are processes of this machine, with the environment that they would have."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.jobs, self.slots = folder, {}, {}
        self.ended: set[str] = set()  # that were told of
        self.most_at_once = 0
        self.not_started: list[str] = []  # tasks whose next job Ray gives up on
        (folder / "python").write_text(PLAYED.format(folder=folder))
        (folder / "python").chmod(0o755)

    def submit_job(self, entrypoint: str, submission_id: str, runtime_env: dict[str, Any], **rest: Any) -> None:
        environment = os.environ | runtime_env["env_vars"] | {"PATH": f"{self.folder}:{os.environ['PATH']}"}
        log = (self.folder / submission_id).open("w")
        if [self.not_started.remove(task) for task in list(self.not_started) if f"-{task}-" in submission_id]:
            entrypoint = "exit 99"
        self.jobs[submission_id] = subprocess.Popen(entrypoint, shell=True, env=environment, stdout=log, stderr=log)
        self.slots[submission_id] = rest.get("entrypoint_num_gpus"), runtime_env["env_vars"].get(WAITS_VARIABLE)
        self.most_at_once = max(self.most_at_once, len(self.jobs) - len(self.ended))

    def get_job_info(self, job: str) -> SimpleNamespace:
        code = self.jobs[job].poll()
        status = JobStatus.RUNNING if code is None else JobStatus.FAILED if code else JobStatus.SUCCEEDED
        self.ended |= {job} if code is not None else set()
        error_type = NOT_STARTED if code == 99 else None
        return SimpleNamespace(
            status=status, driver_exit_code=code, message="", submission_id=job, error_type=error_type
        )

    def list_jobs(self) -> list[SimpleNamespace]:
        return [self.get_job_info(job) for job in self.jobs]

    def get_job_logs(self, job: str) -> str:
        return (self.folder / job).read_text()


number = itertools.count()


def node(gpus: int, cpus: int) -> dict[str, Any]:
    return {"where": f"node {next(number)}", "total": gpus, "free": gpus, "cpus_total": cpus, "cpus_free": cpus}


class Started:
    """A matrix in a folder, and what it said."""

    def __init__(self, folder: Path, runs: list[MatrixRun], configs: dict[str, DictConfig]) -> None:
        self.out, self.client, self.said, self.ended = folder / "out", Shell(folder), [], []
        self.nodes, self.runs, self.configs = [node(2, 32)], runs, configs

    def start(self, most: int = 9) -> list[str]:
        def after_each(run: MatrixRun, is_training: bool) -> None:
            self.ended.append((run.name, is_training))

        evaluate = {"data": "test.parquet", "catalog": "catalog.parquet", "ks": [5]}
        tasks = tasks_of(self.runs, self.configs, evaluate, self.nodes)
        finished = [run for run in self.runs if is_finished(run, self.configs[run.name], self.out)]
        jobs = MatrixJobs(self.client, self.configs, self.out, evaluate)
        return train_and_evaluate(jobs, tasks, finished, self.nodes, most, after_each)


@pytest.fixture(scope="module")
def runs() -> list[MatrixRun]:
    runs = runs_of(Matrix(**yaml.safe_load(MATRIX)))
    return [replace(run, variables={**run.variables, "N_GPUS_PER_NODE": "1"}) for run in runs]


@pytest.fixture(scope="module")
def configs(runs: list[MatrixRun]) -> dict[str, DictConfig]:
    return composed(runs, Path("out"))


@pytest.fixture
def matrix(
    tmp_path: Path,
    runs: list[MatrixRun],
    configs: dict[str, DictConfig],
    outside: None,
    monkeypatch: pytest.MonkeyPatch,
) -> Started:
    monkeypatch.setattr(cluster_runs, "POLL_SECONDS", 0.02)
    matrix = Started(tmp_path, runs, configs)
    monkeypatch.setattr(cluster_runs, "say", matrix.said.append)
    return matrix


def test_runs_are_trained_and_evaluated_and_a_failure_stops_what_starts_from_it_alone(matrix: Started) -> None:
    failed, *left_out = matrix.start()
    (job,) = [job for job in matrix.client.jobs if job.endswith("-bad-train-1")]
    log = matrix.out / "logs" / f"{job}.log"
    assert failed == f"bad-train failed: FAILED, exit status 2: error: no such luck\n  log: {log}"
    assert log.read_text() == "error: no such luck\nfull log: there\n"
    assert [line.split()[0] for line in left_out] == ["bad-evaluate", "of_bad-train", "of_bad-evaluate"]
    runs = ["sft", "good-s1", "good-s2"]
    assert sorted(matrix.ended) == sorted((run, is_training) for run in runs for is_training in (True, False))
    assert (matrix.out / "good-s2" / "start").read_text() == f"{matrix.out}/sft\n"
    assert matrix.client.most_at_once == 2  # of two GPU slots, in any case


def test_the_jobs_have_what_they_need(matrix: Started, tmp_path: Path) -> None:
    matrix.start(most=1)
    assert matrix.client.most_at_once == 1
    commands = (tmp_path / "commands").read_text().splitlines()
    assert commands[0] == "-m recipes train sft"
    (evaluation,) = [line for line in commands if '/evaluation/good-s1"' in line]
    assert json.loads(evaluation.removeprefix("-m recipes evaluation-job ")) == {
        "model": f"{matrix.out}/good-s1",
        "out": f"{matrix.out}/evaluation/good-s1",
        "against": f"{matrix.out}/evaluation/sft",
        "data": str(tmp_path / "test.parquet"),  # absolute: the job runs elsewhere
        "catalog": str(tmp_path / "catalog.parquet"),
        "ks": [5],
    }
    slots = {job[len("matrix-12345678-") : -2]: slots for job, slots in matrix.client.slots.items()}
    assert slots["good-s1-evaluate"] == (1, None)  # a process that asks Ray for nothing
    assert slots["sft-train"] == slots["good-s1-train"] == (None, "1")


def test_started_again_it_leaves_finished_runs_alone_and_tries_failed_ones_again(
    matrix: Started, tmp_path: Path
) -> None:
    matrix.client.not_started = ["sft-evaluate"]  # its slots were taken for too long: not failed
    assert matrix.start()[0].startswith("bad-train failed")
    assert any(job.endswith("-sft-evaluate-2") for job in matrix.client.jobs)
    (tmp_path / "commands").unlink()
    (tmp_path / "python").write_text(PLAYED.format(folder=tmp_path).replace("*bad*", "*no*"))
    assert matrix.start() == []
    trained = [line for line in (tmp_path / "commands").read_text().splitlines() if "{" not in line]
    assert trained == ["-m recipes train sft"] * 2  # bad, of_bad
    assert any(job.endswith("-bad-train-2") for job in matrix.client.jobs)


def test_ctrl_c_leaves_the_jobs_and_the_next_start_waits_for_them(matrix: Started, tmp_path: Path) -> None:
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


def test_a_folder_that_is_not_shared_is_said(matrix: Started, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_runs, "SHARED_SECONDS", 0.1)
    (tmp_path / "python").write_text("#!/bin/sh\n")
    failed = matrix.start()[0]
    assert failed.startswith(f"sft-train failed: it ended well, and {matrix.out} here has nothing of it")


# ---- what runs need


SFT = MatrixRun("sft", "sft", "sft", None, {"SEED": "1", "N_GPUS_PER_NODE": "2"})
RANK = MatrixRun("rank", "rank", "rank_grpo", "sft", {"SEED": "1", "N_GPUS_PER_NODE": "2", "N_NODES": "2"})
ROOMY = [node(8, 64), node(8, 64)]


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, DictConfig]:
    return composed([SFT, RANK], tmp_path_factory.mktemp("out"))


def test_a_run_is_two_tasks_after_those_of_its_start(settings: Mapping[str, DictConfig]) -> None:
    """Rank-GRPO on 2 x 2 GPUs: 3 CPU slots for each, and 4 for TransferQueue (3) and what is placed."""
    rank = [Task(RANK, "train", ("sft-train",), 4, 2 * 2 * 3 + 4), Task(RANK, "evaluate", ("rank-train",), 2)]
    assert tasks_of([SFT, RANK], settings, {"tensor_parallel": 2}, ROOMY) == [
        Task(SFT, "train", (), 2, 2),
        Task(SFT, "evaluate", ("sft-train",), 2),
        rank[0],
        replace(rank[1], after=("rank-train", "sft-evaluate")),
    ]
    # a start that is not among the runs is not waited for
    assert tasks_of([RANK], settings, {"tensor_parallel": 2}, ROOMY) == [replace(rank[0], after=()), rank[1]]


@pytest.mark.parametrize(("replicas", "gpus"), [(3, 6), ("auto", 2)])
def test_an_evaluation_takes_the_gpus_of_its_replicas(
    settings: Mapping[str, DictConfig], replicas: int | str, gpus: int
) -> None:
    *_, evaluation = tasks_of([SFT], settings, {"tensor_parallel": 2, "replicas": replicas}, ROOMY)
    assert evaluation.gpus == gpus


@pytest.mark.parametrize(
    ("run", "evaluate", "nodes", "message"),
    [
        (RANK, {}, [node(8, 64)], "rank: cluster: N_NODES=2 with N_GPUS_PER_NODE=2"),
        (RANK, {}, [node(8, 6), node(8, 6)], "rank: cluster: .* 16 of CPUs in all"),
        (SFT, {"tensor_parallel": 16}, ROOMY, "evaluate: it needs 16 GPU slots of one node; the nodes have up to 8"),
        (SFT, {}, [node(0, 64)], "evaluate: it needs 1 GPU slots"),
        (replace(SFT, variables={}), {}, ROOMY, "sft: set N_GPUS_PER_NODE .*: nodes have up to 8 GPUs"),
        (replace(SFT, overrides=["data.train_files=[here/a.parquet]"]), {}, ROOMY, "a relative path means nothing"),
    ],
)
def test_what_cannot_run_there_is_refused_before_anything_is_submitted(
    settings: Mapping[str, DictConfig],
    monkeypatch: pytest.MonkeyPatch,
    run: MatrixRun,
    evaluate: dict[str, int],
    nodes: list[dict[str, Any]],
    message: str,
) -> None:
    monkeypatch.delenv("N_GPUS_PER_NODE", raising=False)
    with pytest.raises(UserError, match=message):
        tasks_of([run], settings, evaluate, nodes)


def test_where_nobody_says_how_many_gpus_a_run_takes_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outside: None
) -> None:
    unsaid = replace(SFT, variables={"SEED": "1"})
    for said, gpus in (("", 1), ("4", 4)):
        monkeypatch.setenv("N_GPUS_PER_NODE", said)
        nodes = [node(gpus, 8), node(0, 8)]
        assert tasks_of([unsaid], composed([unsaid], tmp_path), {}, nodes)[0].gpus == gpus


def test_there_is_room_as_long_as_all_slots_together_are_enough() -> None:
    """4 + 4 GPU slots, 20 of CPUs. A large task waits, and a later small one goes ahead of it."""
    nodes = [node(4, 10), node(4, 10)]
    two, four, eight = (Task(SFT, "train", (), gpus, 5) for gpus in (2, 4, 8))
    assert fits(eight, [], nodes)
    assert fits(two, [four, two], nodes)
    assert not fits(four, [four, two], nodes)
    assert not fits(replace(two, gpus=0), [two] * 4, nodes)  # 25 CPU slots


def test_a_training_of_a_matrix_waits_while_another_job_holds_its_slots(
    settings: Mapping[str, DictConfig], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    busy, free = node(2, 8), node(2, 8)
    seen = [busy | {"free": 1}, busy | {"cpus_free": 0}, free]
    monkeypatch.setattr(cluster_findings, "WAIT_SECONDS", 0)
    for environment, found in (({}, seen[0]), ({WAITS_VARIABLE: "1"}, free)):
        left = iter(seen)
        monkeypatch.setattr(preflight_node, "slots_of_cluster", lambda left=left: [next(left)])
        assert cluster_findings.slots_for(settings["sft"], environment) == [found]
    assert capsys.readouterr().out.startswith("waiting: another job holds them; ")
    too_small = [node(1, 8) | {"free": 0}]  # what the cluster lacks is not waited for
    monkeypatch.setattr(preflight_node, "slots_of_cluster", lambda: too_small)
    assert cluster_findings.slots_for(settings["sft"], {WAITS_VARIABLE: "1"}) == too_small
