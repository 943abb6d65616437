"""Submit, follow, and stop a job of a fake cluster. tests/e2e/test_cluster.py does it on a real one."""

import contextlib
import json
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import ray
from ray.job_submission import JobStatus

from recipes import doctor, submit
from recipes.cluster import jobs as cluster_jobs
from recipes.launch.recipe import RANK_GRPO
from tests.user_errors import refuses

Printed = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch
Call = Callable[..., int]
pytestmark = pytest.mark.usefixtures("outside")


MISSPELT = "warning: TRAINFILE is set, but no recipe reads it: did you mean TRAIN_FILE?"
WRONG = [  # overrides, variables, the text that the error contains
    (["convrec.num_items=0"], {}, "convrec.num_items=0"),
    (["trainer.total_stepz=3"], {}, "trainer.total_stepz"),
    (["convrec.reward=no_module:f"], {}, "convrec.reward=no_module:f"),
    ([], {"LR": "fast"}, "LR=fast"),
]


@pytest.mark.parametrize(("arguments", "variables", "value"), WRONG)
@pytest.mark.parametrize("command", [submit, doctor])
def test_a_wrong_setting_is_refused_before_the_cluster_is_called(
    call: Call,
    monkeypatch: Patch,
    capsys: Printed,
    command: ModuleType,
    arguments: list[str],
    variables: dict[str, str],
    value: str,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert call("rank_grpo", *arguments, command=command) != 0
    printed = capsys.readouterr()
    assert value in printed.out + printed.err
    assert "no answer" not in printed.out + printed.err


def test_unknown_recipe_and_unreachable_cluster_are_errors(call: Call, monkeypatch: Patch, capsys: Printed) -> None:
    monkeypatch.setenv("TRAINFILE", "train.parquet")
    assert (call("ppo"), call("rank_grpo", "--detach")) == (2, 2)
    printed = capsys.readouterr().err
    for text in ("sft, rank_grpo", MISSPELT, "no answer", "http://head:8265", "[cluster.no-answer]"):
        assert text in printed


@contextlib.contextmanager
def serve_answer(monkeypatch: Patch, status: int, body: bytes) -> Iterator[str]:
    """Start a dashboard with one answer to every request; yield its address, which is RAY_ADDRESS."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setenv("RAY_ADDRESS", address)  # wins over the argument in Ray's client
    try:
        yield address
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("status", "body", "code"),
    [
        (401, b"no", "cluster.refused-token"),
        (403, b"no", "cluster.refused-token"),
        (500, b"token 401 403", "cluster.no-answer"),
    ],
)
def test_a_missing_token_is_recognised_by_the_status(monkeypatch: Patch, status: int, body: bytes, code: str) -> None:
    with serve_answer(monkeypatch, status, body) as address, refuses(code, address):
        cluster_jobs.connect(address)


@pytest.mark.parametrize(("mode", "is_open"), [("disabled", True), ("token", False)])
def test_a_cluster_that_is_open_to_everybody_is_warned_about(
    monkeypatch: Patch, capsys: Printed, mode: str, is_open: bool
) -> None:
    body = {"version": "4", "ray_version": ray.__version__, "authentication_mode": mode}
    with serve_answer(monkeypatch, 200, json.dumps(body).encode()) as address:
        cluster_jobs.warn_if_open(cluster_jobs.connect(address), address)
    assert ("the cluster asks for no token" in capsys.readouterr().err) is is_open


class Jobs:
    """A fake of Ray's client with one job, which ends when it is stopped or its stop file exists.

    Other jobs are run in a shell, as Ray does. `on` is called with the name of every call.
    """

    def __init__(self, save_path: Path, status: str = "RUNNING", exit_code: int | None = None) -> None:
        self.info = SimpleNamespace(status=JobStatus(status), driver_exit_code=exit_code, message="")
        self.info.submission_id = "job-1"
        self.info.metadata = {"recipe": "rank_grpo", "save_path": str(save_path)}
        self.others: dict[str, SimpleNamespace] = {}
        self.stop_file = save_path / "stop.job-1"
        self.on: Callable[[str], None] = lambda call: None
        self.log = "step 1\nstep 2\n"

    def _do_request(self, method: str, path: str) -> Any:
        assert (method, path) == ("GET", "/api/authentication_mode")
        return SimpleNamespace(json=lambda: {"authentication_mode": "token"})

    def get_job_info(self, job: str) -> SimpleNamespace:
        self.on("info")
        if job == "job-1" and self.stop_file.exists():
            self.info.status, self.info.driver_exit_code = JobStatus.FAILED, 130
        if job != "job-1" and job not in self.others:
            raise RuntimeError(f"Request failed with status code 404: Job {job} does not exist.")
        return self.others.get(job, self.info)

    def list_jobs(self) -> list[SimpleNamespace]:
        return [self.info, *self.others.values()]

    def submit_job(self, entrypoint: str, submission_id: str, **rest: object) -> None:
        self.on("submit")
        done = subprocess.run(entrypoint, shell=True, capture_output=True, text=True, check=False)
        status = JobStatus.FAILED if done.returncode else JobStatus.SUCCEEDED
        self.others[submission_id] = SimpleNamespace(
            status=status, message=done.stderr, submission_id=submission_id, driver_exit_code=done.returncode
        )

    def stop_job(self, job: str) -> None:
        self.on("stop")
        self.others.get(job, self.info).status = JobStatus.STOPPED

    def get_job_logs(self, job: str) -> str:
        self.on("log")
        return self.log


@pytest.fixture
def call() -> Call:
    """Run `convrec submit`, or another command, with these arguments."""

    def run(*arguments: str, command: ModuleType = submit) -> int:
        return command.main(list(arguments))

    return run


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: Patch) -> Jobs:
    monkeypatch.setattr(cluster_jobs, "POLL_SECONDS", 0.01)
    jobs = Jobs(tmp_path / "runs" / "a b")
    monkeypatch.setattr(cluster_jobs, "connect", lambda address: jobs)
    return jobs


def follow(jobs: Jobs) -> int:
    """Follow the job as after its submission."""
    return cluster_jobs.follow(jobs, "job-1", [cluster_jobs.report_stop_request, cluster_jobs.stop_now])


def interrupt_at(*calls: str) -> Callable[[str], None]:
    """Raise Ctrl-C at the first call of the first name, then at the next call of the second, and so on."""
    left = list(calls)

    def on(name: str) -> None:
        if left and name == left[0]:
            left.pop(0)
            signal.raise_signal(signal.SIGINT)

    return on


@pytest.mark.parametrize(
    ("status", "exit_code", "expected"), [("SUCCEEDED", 0, 0), ("FAILED", 130, 130), ("FAILED", None, 1)]
)
def test_follow_prints_each_line_once_and_returns_exit_status(
    call: Call, capsys: Printed, jobs: Jobs, status: str, exit_code: int, expected: int
) -> None:
    jobs.info.status, jobs.info.driver_exit_code = JobStatus(status), exit_code
    assert call("--follow", "job-1") == expected
    assert capsys.readouterr().out == "step 1\nstep 2\n"


def test_log_is_printed_as_it_grows_despite_network_failures(capsys: Printed, jobs: Jobs) -> None:
    calls: list[str] = []

    def grow(name: str) -> None:
        calls.append(name)
        jobs.log = "".join(f"step {number}\n" for number in range(len(calls)))
        if len(calls) == 12:
            jobs.info.status = JobStatus.SUCCEEDED
        if len(calls) % 3 == 2:
            raise ConnectionError("reset by peer")

    jobs.on = grow
    assert follow(jobs) == 0
    assert capsys.readouterr().out == jobs.log


@pytest.mark.parametrize("when", ["info", "log"])
def test_ctrl_c_only_stops_following(call: Call, capsys: Printed, jobs: Jobs, when: str) -> None:
    calls: list[str] = []

    def on(name: str) -> None:
        calls.append(name)
        if name == when and len(calls) > 1:  # connect_to_job makes the first call
            signal.raise_signal(signal.SIGINT)

    jobs.on = on
    assert call("--follow", "job-1") == 130
    assert "stopped following job-1" in capsys.readouterr().err
    assert jobs.info.status == JobStatus.RUNNING
    assert not jobs.others


@pytest.mark.parametrize(
    ("interrupts", "status", "output"),
    [
        (["info"], JobStatus.FAILED, cluster_jobs.STOP_REQUESTED),  # it ends by itself, with status 130
        (["log"], JobStatus.FAILED, cluster_jobs.STOP_REQUESTED),
        (["info", "submit"], JobStatus.STOPPED, "job-1: STOPPED"),  # the second one while the job is being asked
        (["info", "submit", "stop"], JobStatus.RUNNING, "ray job status job-1"),  # the third leaves
    ],
)
def test_ctrl_c_asks_for_a_checkpoint_then_stops_then_detaches(
    capsys: Printed, jobs: Jobs, interrupts: list[str], status: JobStatus, output: str
) -> None:
    """The run folder, in which the stop file is created, does not exist yet."""
    jobs.on = interrupt_at(*interrupts)
    assert follow(jobs) == 130
    assert jobs.info.status == status
    assert jobs.stop_file.exists() == (status == JobStatus.FAILED)
    assert output in capsys.readouterr().err


def test_failed_stop_file_is_reported_and_next_ctrl_c_stops_job(capsys: Printed, jobs: Jobs, tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file where the folder should be")
    printed = ""
    first = interrupt_at("info")
    second = interrupt_at("info")

    def interrupt_again_once_told(name: str) -> None:
        nonlocal printed
        printed += capsys.readouterr().err
        (second if printed else first)(name)

    jobs.on = interrupt_again_once_told
    assert follow(jobs) == 130
    assert printed.startswith("could not ask the job")
    assert str(jobs.stop_file) in printed
    assert cluster_jobs.STOP_REQUESTED not in printed
    assert jobs.info.status == JobStatus.STOPPED


def interrupt_submission(jobs: Jobs, reached: bool) -> None:
    """Raise Ctrl-C while a job is submitted. reached: the cluster has it, and it runs."""
    put = jobs.submit_job

    def submit_and_interrupt(entrypoint: str, submission_id: str, **rest: object) -> None:
        if reached:
            put("true", submission_id)
            jobs.others[submission_id].status = JobStatus.RUNNING
        signal.raise_signal(signal.SIGINT)

    jobs.submit_job = submit_and_interrupt  # type: ignore[method-assign]


@pytest.mark.parametrize(("reached", "result"), [(True, "was stopped"), (False, "was not submitted")])
def test_ctrl_c_while_submitting(call: Call, capsys: Printed, jobs: Jobs, reached: bool, result: str) -> None:
    interrupt_submission(jobs, reached)
    assert call("rank_grpo") == 130
    assert result in capsys.readouterr().err
    assert [info.status for info in jobs.others.values()] == [JobStatus.STOPPED] * reached


def test_ctrl_c_anywhere_else_is_no_traceback(call: Call, capsys: Printed, jobs: Jobs) -> None:
    jobs.on = interrupt_at("info")  # in connect_to_job, before the job is followed
    assert call("--stop", "job-1") == 130
    assert "interrupted" in capsys.readouterr().err


def test_lost_cluster_leaves_job_running_and_tells_how_to_follow(monkeypatch: Patch, jobs: Jobs) -> None:
    def break_down(name: str) -> None:
        raise ConnectionError("reset by peer")

    jobs.on = break_down
    monkeypatch.setattr(cluster_jobs, "NETWORK_SECONDS", 0.05)
    with refuses("cluster.unreachable", "reset by peer", "--follow job-1"):
        follow(jobs)


def test_stop_asks_for_a_checkpoint(call: Call, capsys: Printed, jobs: Jobs) -> None:
    assert call("--stop", "job-1") == 0
    assert jobs.stop_file.exists()
    assert jobs.info.status == JobStatus.RUNNING  # it looks for the file at the end of its step
    assert "save a checkpoint and end" in capsys.readouterr().err
    assert call("--stop", "job-1") == 0
    assert "job-1 has ended: FAILED" in capsys.readouterr().err  # with exit status 130


@pytest.mark.parametrize(
    ("ends", "log", "printed"), [(0, 'a warning\n{"ok": true}\n', '{"ok": true}\n'), (1, "", "why\n")]
)
def test_remote_doctor_prints_its_findings_or_why_it_has_none(
    capsys: Printed, jobs: Jobs, ends: int, log: str, printed: str
) -> None:
    put = jobs.submit_job
    jobs.submit_job = lambda submission_id, **_: put(f"echo -n why >&2; exit {ends}", submission_id)  # type: ignore
    jobs.log = log
    assert cluster_jobs.diagnose_there(RANK_GRPO, [], as_json=True) == ends
    assert capsys.readouterr().out == printed


def test_a_doctor_that_does_not_end_is_stopped(jobs: Jobs, monkeypatch: Patch) -> None:
    put = jobs.submit_job

    def start(submission_id: str, **_: object) -> None:
        put("true", submission_id)
        jobs.others[submission_id].status = JobStatus.RUNNING

    jobs.submit_job = start  # type: ignore
    monkeypatch.setattr(cluster_jobs, "DOCTOR_SECONDS", 0.05)
    with refuses("cluster.doctor-timeout"):
        cluster_jobs.diagnose_there(RANK_GRPO, [], as_json=False)
    assert [info.status for info in jobs.others.values()] == [JobStatus.STOPPED]


def test_ctrl_c_stops_the_doctors_job(jobs: Jobs) -> None:
    interrupt_submission(jobs, reached=True)
    assert cluster_jobs.diagnose_there(RANK_GRPO, [], as_json=False) == 130
    assert [info.status for info in jobs.others.values()] == [JobStatus.STOPPED]


@pytest.mark.parametrize("option", ["--follow", "--stop"])
def test_an_unknown_job_a_foreign_job_and_a_missing_address(
    call: Call, monkeypatch: Patch, capsys: Printed, jobs: Jobs, option: str
) -> None:
    assert call(option, "job-2") == 2
    error = capsys.readouterr().err
    assert "job-2: the cluster at http://127.0.0.1:9" in error
    assert "[cluster.unknown-job]" in error
    jobs.info.metadata = None
    assert call(option, "job-1") == 2
    assert "[cluster.foreign-job]" in capsys.readouterr().err
    monkeypatch.delenv("RAY_ADDRESS")
    assert call(option, "job-1") == 2
    assert "[cluster.no-address]" in capsys.readouterr().err
