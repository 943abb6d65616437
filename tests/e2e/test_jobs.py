"""A Ray cluster of one node: a job whose shell is killed, and commands that come without the cluster's token."""

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from convrec.runs import supervisor
from convrec.runs.folder import latest_step
from recipes.preflight.ray_token import DEFAULT_FILE

from .conftest import ROOT, Demo, trained_steps
from .two_nodes import Cluster

pytestmark = pytest.mark.faults

END_SECONDS = 120.0
NO_TOKEN = (
    f"the cluster asks for a token, and RAY_AUTH_MODE=token is not set here: copy the head node's {DEFAULT_FILE} to "
    "this machine, then export RAY_AUTH_MODE=token"
)


@pytest.fixture(scope="module")
def cluster(trained: Demo, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    data = trained.out / "data"
    files = {"TRAIN_FILE": str(data / "sft_train.parquet"), "VAL_FILE": str(data / "sft_validation.parquet")}
    cluster = Cluster(tmp_path_factory.mktemp("jobs"), trained, files)
    try:
        cluster.start_head()
        yield cluster
    finally:
        cluster.stop()


def wait_until(happened: Callable[[], object], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def count_used_gpus(cluster: Cluster) -> float:
    """Of the cluster's one slot, as `ray status` says."""
    status = cluster.ray("status", "--address", cluster.address)
    found = re.search(r"([\d.]+)/1\.0 GPU", status)
    assert found, status
    return float(found[1])


def processes_of_run(cluster: Cluster, run_folder: Path, job: subprocess.Popen) -> list[psutil.Process]:
    """Whatever of the cluster trains into this folder: the driver, Ray's workers of the job, the guard.

    Not what has submitted the job and follows it: psutil would take its exit status.
    """
    follower = psutil.Process(job.pid)
    following = {follower, *follower.children(recursive=True)}
    found = []
    for process in set(cluster.processes()) - following:
        try:
            is_of_run = process.environ().get("SAVE_PATH") == str(run_folder)
        except psutil.Error:  # it has ended
            continue
        if is_of_run:
            found.append(process)
    return found


def find_shell(processes: list[psutil.Process]) -> psutil.Process:
    """The process that Ray has started for the job's entrypoint; another shell watches that one."""
    (shell,) = [p for p in processes if p.cmdline()[:2] == ["/bin/sh", "-c"] and " -m recipes " in p.cmdline()[2]]
    return shell


def test_a_job_with_a_killed_shell_frees_its_slots(cluster: Cluster) -> None:
    run_folder = cluster.folder / "run"
    job = cluster.start_script(
        "run_sft.sh",
        MODEL_PATH=str(cluster.trained.out / "model"),
        SAVE_PATH=str(run_folder),
        TRAIN_BATCH_SIZE="4",
        TOTAL_STEPS="1000000",
        TOTAL_EPOCHS="1000000",
        SAVE_FREQ="1000000",
        TEST_FREQ="1000000",
    )
    try:
        wait_until(lambda: trained_steps(run_folder) or job.poll() is not None, 400)
        assert job.poll() is None, job.communicate()
        assert count_used_gpus(cluster) == 1.0
        processes = processes_of_run(cluster, run_folder, job)
        assert any(word.startswith("ray::SFTWorker") for process in processes for word in process.cmdline())
        find_shell(processes).kill()
        _, left = psutil.wait_procs(processes, timeout=END_SECONDS)
        assert not left, [process.cmdline() for process in left]
        wait_until(lambda: count_used_gpus(cluster) == 0.0, END_SECONDS)
        _, error = job.communicate(timeout=END_SECONDS)
    finally:
        job.kill()
    assert latest_step(run_folder) == max(trained_steps(run_folder))
    assert not (run_folder / "running").exists()
    assert job.returncode == 1, error
    # who follows a job reads no further when its shell has ended
    (log,) = cluster.ray_folder.glob("session_latest/logs/job-driver-sft-*.log")
    step = latest_step(run_folder)
    stopped = f"stopped on request after step {step}; the same command resumes"
    assert [line for line in log.read_text().splitlines() if line in (supervisor.PARENT_IS_GONE, supervisor.SAVES)] == [
        supervisor.PARENT_IS_GONE,
        supervisor.SAVES,
    ]
    assert log.read_text().rstrip().endswith(stopped)


@pytest.fixture
def outside(cluster: Cluster, tmp_path: Path) -> dict[str, str]:
    """The environment of a machine that has not got the token."""
    environment = {name: value for name, value in cluster.environment.items() if not name.startswith("RAY_AUTH_")}
    return environment | cluster.files | {"HOME": str(tmp_path), "PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}


@pytest.mark.parametrize(
    ("command", "has_http_address"),
    [
        (["bash", "run_sft.sh"], True),
        ([sys.executable, "-m", "recipes", "submit", "--follow", "a-job"], True),
        ([sys.executable, "-m", "recipes", "doctor", "sft"], True),
        ([sys.executable, "-m", "recipes", "doctor", "sft"], False),
    ],
    ids=["run", "follow", "doctor", "doctor of a node"],
)
def test_a_command_without_the_token_says_what_is_missing(
    cluster: Cluster, outside: dict[str, str], command: list[str], has_http_address: bool
) -> None:
    address = cluster.job_address if has_http_address else cluster.address
    outside |= {"RAY_ADDRESS": address, "MODEL_PATH": str(cluster.trained.out / "model")}
    outside |= {"SAVE_PATH": str(cluster.folder / "refused")}
    done = subprocess.run(command, env=outside, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode != 0
    assert f"RAY_ADDRESS={address}: {NO_TOKEN}" in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert not (cluster.folder / "refused").exists()


@pytest.mark.parametrize(
    ("mode", "token"),
    [("disabled", ""), ("token", ""), ("token", "0" * 64)],
    ids=["no mode", "no token", "another token"],
)
def test_what_ray_says_without_the_token_is_in_the_manual(
    cluster: Cluster, outside: dict[str, str], mode: str, token: str
) -> None:
    """Of `ray start` on a further node, and of `ray job submit`: Ray's own errors, which nobody else can explain."""
    page = (ROOT / "docs" / "how-to" / "troubleshooting.md").read_text(encoding="utf-8")
    texts = re.findall(r"^\| `(?:InvalidAuthToken|Token auth|Unauthorized|Forbidden)[^`]*`", page, re.MULTILINE)
    named = [text.strip("| `") for text in texts]
    assert len(named) >= 4
    outside |= {"RAY_AUTH_MODE": mode} | ({"RAY_AUTH_TOKEN": token} if token else {})
    joined = cluster.try_ray(outside, "start", *cluster.other_arguments())
    submitted = cluster.try_ray(outside, "job", "submit", "--address", cluster.job_address, "--", "true")
    for done in (joined, submitted):
        assert done.returncode != 0
        said = done.stdout + done.stderr
        assert any(text in said for text in named), said[-2000:]
