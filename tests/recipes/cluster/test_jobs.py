"""A job submitted, followed, asked to stop and stopped. tests/e2e/test_cluster.py does it on a real cluster."""

import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
from ray.job_submission import JobStatus

from convrec.errors import UserError
from recipes import doctor, submit
from recipes.cluster import client
from recipes.cluster import jobs as cluster_jobs
from recipes.launch.recipe import RANK_GRPO

pytestmark = pytest.mark.usefixtures("outside")


def test_a_cluster_that_does_not_answer_is_an_error_of_the_user(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["submit", "rank_grpo"])
    assert submit.main() == 2
    error = capsys.readouterr().err
    assert "RAY_ADDRESS=http://127.0.0.1:9: no answer" in error
    assert "http://head:8265" in error


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("convrec.num_items=0", "convrec.num_items=0 (NUM_ITEMS): expected a positive integer"),
        ("trainer.total_stepz=3", "trainer.total_stepz: no such setting; did you mean trainer.total_epochs"),
        ("convrec.reward=no_module:f", "convrec.reward=no_module:f: importing no_module raised ModuleNotFoundError"),
    ],
)
@pytest.mark.parametrize("command", ["submit", "doctor"])
def test_a_wrong_setting_is_refused_before_the_cluster_is_asked(
    command: str, override: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [command, "rank_grpo", override])
    assert {"submit": submit.main, "doctor": doctor.main}[command]() != 0
    printed = capsys.readouterr()
    assert said in printed.out + printed.err
    assert "no answer" not in printed.out + printed.err


def test_a_misspelt_variable_would_not_travel_and_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRAINFILE", "train.parquet")
    monkeypatch.setattr(sys, "argv", ["submit", "rank_grpo"])
    assert submit.main() == 2
    assert "warning: TRAINFILE is set, but no recipe reads it: did you mean TRAIN_FILE?" in capsys.readouterr().err


def answer_of_cluster(monkeypatch: pytest.MonkeyPatch, status: int, body: bytes) -> str:
    """What `connect` raises about a server that gives this answer to everything."""

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
        with pytest.raises(UserError) as error:
            cluster_jobs.connect(address)
    finally:
        server.shutdown()
        server.server_close()
    return str(error.value)


@pytest.mark.parametrize("status", [401, 403])
def test_a_missing_token_is_known_by_the_status(monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    assert "asks for a token" in answer_of_cluster(monkeypatch, status, b"no")


def test_another_error_is_not_called_a_missing_token(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "no answer" in answer_of_cluster(monkeypatch, 500, b"token 401 403")
    address = "http://token401.invalid:8265"
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(UserError, match="no answer"):
        cluster_jobs.connect(address)


def test_a_wrong_value_stops_before_the_cluster_is_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LR", "fast")
    monkeypatch.setattr(sys, "argv", ["submit", "rank_grpo", "--detach"])
    assert submit.main() == 2
    assert "LR=fast" in capsys.readouterr().err


class Jobs:
    """In the place of Ray's client: one job, which ends when it is stopped or its stop file is there.

    What is submitted besides is run in a shell, as Ray does. `on` is called with the name of every call of ours.
    """

    def __init__(
        self, save_path: Path, recipe: str = "rank_grpo", status: str = "RUNNING", exit_code: int | None = None
    ) -> None:
        self.info = SimpleNamespace(status=JobStatus(status), driver_exit_code=exit_code, message="")
        self.info.submission_id = "job-1"
        self.info.metadata = {"recipe": recipe, "save_path": str(save_path)}
        self.others: dict[str, SimpleNamespace] = {}
        self.stop_file = save_path / "stop.job-1"
        self.on: Callable[[str], None] = lambda call: None

    def call(self, name: str) -> None:
        if threading.current_thread() is threading.main_thread():
            self.on(name)

    def get_job_info(self, job: str) -> SimpleNamespace:
        self.call("info")
        if job == "job-1" and self.stop_file.exists():
            self.info.status, self.info.driver_exit_code = JobStatus.FAILED, 130
        if job != "job-1" and job not in self.others:
            raise RuntimeError(f"Request failed with status code 404: Job {job} does not exist.")
        return self.others.get(job, self.info)

    def list_jobs(self) -> list[SimpleNamespace]:
        return [self.info, *self.others.values()]

    def submit_job(self, entrypoint: str, submission_id: str, **rest: object) -> None:
        self.call("submit")
        done = subprocess.run(entrypoint, shell=True, capture_output=True, text=True, check=False)
        status = JobStatus.FAILED if done.returncode else JobStatus.SUCCEEDED
        self.others[submission_id] = SimpleNamespace(
            status=status, message=done.stderr, submission_id=submission_id, driver_exit_code=done.returncode
        )

    def stop_job(self, job: str) -> None:
        self.call("stop")
        self.others.get(job, self.info).status = JobStatus.STOPPED

    def get_job_logs(self, job: str) -> str:
        return "step 1\nstep 2\n"

    async def tail_job_logs(self, job: str) -> AsyncIterator[str]:
        yield "step 1\n"  # and the connection breaks


@pytest.fixture
def jobs(tmp_path: Path) -> Jobs:
    return Jobs(tmp_path / "runs" / "a b")


def be_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (client, cluster_jobs):
        monkeypatch.setattr(module, "POLL_SECONDS", 0.01)


def call(monkeypatch: pytest.MonkeyPatch, jobs: Jobs, *arguments: str) -> int:
    monkeypatch.setattr(cluster_jobs, "connect", lambda address: jobs)
    be_quick(monkeypatch)
    monkeypatch.setattr(sys, "argv", ["submit", *arguments])
    return submit.main()


def interrupt_at(*calls: str) -> Callable[[str], None]:
    """Ctrl-C at the first call of the first name, then at the next of the second, ..."""
    left = list(calls)

    def on(name: str) -> None:
        if left and name == left[0]:
            left.pop(0)
            signal.raise_signal(signal.SIGINT)

    return on


@pytest.mark.parametrize(
    ("status", "exit_code", "expected"), [("SUCCEEDED", 0, 0), ("FAILED", 130, 130), ("FAILED", None, 1)]
)
def test_following_prints_each_line_once_and_returns_the_jobs_exit_status(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    status: str,
    exit_code: int,
    expected: int,
) -> None:
    jobs = Jobs(tmp_path, status=status, exit_code=exit_code)
    assert call(monkeypatch, jobs, "--follow", "job-1") == expected
    assert capsys.readouterr().out == "step 1\nstep 2\n"


def test_ctrl_c_ends_the_following_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], jobs: Jobs
) -> None:
    asked: list[str] = []

    def on(name: str) -> None:
        asked.append(name)
        if len(asked) == 2:  # the first call is of client_of
            signal.raise_signal(signal.SIGINT)

    jobs.on = on
    assert call(monkeypatch, jobs, "--follow", "job-1") == 130
    assert "job-1 goes on" in capsys.readouterr().err
    assert jobs.info.status == JobStatus.RUNNING
    assert not jobs.others


def follow(monkeypatch: pytest.MonkeyPatch, jobs: Jobs) -> int:
    be_quick(monkeypatch)
    return cluster_jobs.follow(jobs, "job-1")


def test_ctrl_c_asks_for_a_checkpoint_in_a_run_folder_that_is_not_there_yet(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], jobs: Jobs
) -> None:
    jobs.on = interrupt_at("info")
    assert follow(monkeypatch, jobs) == 130
    assert jobs.stop_file.exists()
    assert jobs.info.status == JobStatus.FAILED  # by itself
    assert cluster_jobs.ASKED in capsys.readouterr().err


def test_a_second_ctrl_c_while_the_job_is_being_asked_ends_it(monkeypatch: pytest.MonkeyPatch, jobs: Jobs) -> None:
    jobs.on = interrupt_at("info", "submit")
    assert follow(monkeypatch, jobs) == 130
    assert jobs.info.status == JobStatus.STOPPED
    assert not jobs.stop_file.exists()


def test_a_third_ctrl_c_leaves_with_a_word(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], jobs: Jobs
) -> None:
    jobs.on = interrupt_at("info", "submit", "stop")
    assert follow(monkeypatch, jobs) == 130
    assert "ray job status job-1" in capsys.readouterr().err


def test_a_stop_file_that_cannot_be_made_is_said_and_the_next_ctrl_c_ends_the_job(
    monkeypatch: pytest.MonkeyPatch, jobs: Jobs, tmp_path: Path
) -> None:
    (tmp_path / "runs").write_text("a file where the folder should be")
    told: list[str] = []
    monkeypatch.setattr(cluster_jobs, "say", told.append)
    first, second = interrupt_at("info"), interrupt_at("info")
    jobs.on = lambda name: (second if told else first)(name)
    assert follow(monkeypatch, jobs) == 130
    assert "could not be asked" in told[0]
    assert cluster_jobs.ASKED not in told
    assert jobs.info.status == JobStatus.STOPPED


@pytest.mark.parametrize(("reached", "said"), [(True, "is stopped"), (False, "was not submitted")])
def test_ctrl_c_while_submitting(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], jobs: Jobs, reached: bool, said: str
) -> None:
    put = jobs.submit_job

    def interrupted(entrypoint: str, submission_id: str, **rest: object) -> None:
        if reached:
            put("true", submission_id)
            jobs.others[submission_id].status = JobStatus.RUNNING
        signal.raise_signal(signal.SIGINT)

    jobs.submit_job = interrupted  # type: ignore[method-assign]
    assert call(monkeypatch, jobs, "rank_grpo") == 130
    assert said in capsys.readouterr().err
    assert [info.status for info in jobs.others.values()] == [JobStatus.STOPPED] * reached


def test_ctrl_c_anywhere_else_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], jobs: Jobs
) -> None:
    jobs.on = interrupt_at("info")  # of client_of, before anything is followed
    assert call(monkeypatch, jobs, "--stop", "job-1") == 130
    assert "interrupted" in capsys.readouterr().err


def test_a_network_error_is_waited_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], jobs: Jobs
) -> None:
    def break_down(name: str) -> None:
        calls.append(name)
        if len(calls) in (2, 3):
            raise ConnectionError("reset by peer")
        if len(calls) == 5:
            jobs.info.status = JobStatus.SUCCEEDED

    calls: list[str] = []
    jobs.on = break_down
    assert follow(monkeypatch, jobs) == 0
    assert capsys.readouterr().out == "step 1\nstep 2\n"


def test_a_cluster_that_stays_away_leaves_the_job_alone_and_says_how_to_come_back(
    monkeypatch: pytest.MonkeyPatch, jobs: Jobs
) -> None:
    def break_down(name: str) -> None:
        raise ConnectionError("reset by peer")

    jobs.on = break_down
    monkeypatch.setattr(client, "NETWORK_SECONDS", 0.05)
    with pytest.raises(UserError, match=r"reset by peer.*goes on without us.*--follow job-1"):
        follow(monkeypatch, jobs)


def test_stop_asks_for_a_checkpoint(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], jobs: Jobs
) -> None:
    assert call(monkeypatch, jobs, "--stop", "job-1") == 0
    assert jobs.stop_file.exists()
    assert jobs.info.status == JobStatus.RUNNING  # it looks at the end of its step
    assert "save a checkpoint and end" in capsys.readouterr().err
    assert call(monkeypatch, jobs, "--stop", "job-1") == 0
    assert "job-1 has ended: FAILED" in capsys.readouterr().err  # with exit status 130


def diagnose(monkeypatch: pytest.MonkeyPatch, jobs: Jobs) -> SimpleNamespace:
    """The doctor's job, which never ends by itself."""
    put = jobs.submit_job

    def start(entrypoint: str, submission_id: str, **rest: object) -> None:
        put("true", submission_id)
        jobs.others[submission_id].status = JobStatus.RUNNING

    jobs.submit_job = start  # type: ignore[method-assign]
    monkeypatch.setattr(cluster_jobs, "connect", lambda address: jobs)
    be_quick(monkeypatch)
    status = cluster_jobs.diagnose_there(RANK_GRPO, [], as_json=False)
    (info,) = jobs.others.values()
    return SimpleNamespace(returned=status, job=info.status)


def test_a_doctor_that_does_not_end_is_stopped(monkeypatch: pytest.MonkeyPatch, jobs: Jobs) -> None:
    monkeypatch.setattr(cluster_jobs, "DOCTOR_SECONDS", 0.05)
    with pytest.raises(UserError, match="the doctor has not ended"):
        diagnose(monkeypatch, jobs)
    (info,) = jobs.others.values()
    assert info.status == JobStatus.STOPPED


def test_ctrl_c_takes_the_doctors_job_along(monkeypatch: pytest.MonkeyPatch, jobs: Jobs) -> None:
    jobs.on = interrupt_at("info")
    assert diagnose(monkeypatch, jobs) == SimpleNamespace(returned=130, job=JobStatus.STOPPED)


@pytest.mark.parametrize("option", ["--follow", "--stop"])
def test_a_job_that_is_not_there_or_not_ours_and_no_address(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], jobs: Jobs, option: str
) -> None:
    assert call(monkeypatch, jobs, option, "job-2") == 2
    assert "job-2: no such job on http://127.0.0.1:9" in capsys.readouterr().err
    jobs.info.metadata = None
    assert call(monkeypatch, jobs, option, "job-1") == 2
    assert "no training of ours" in capsys.readouterr().err
    monkeypatch.delenv("RAY_ADDRESS")
    assert call(monkeypatch, jobs, option, "job-1") == 2
    assert "RAY_ADDRESS is not set" in capsys.readouterr().err


def test_an_unknown_recipe_is_told_the_known_ones(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["submit", "ppo"])
    assert submit.main() == 2
    assert "sft,rank_grpo" in capsys.readouterr().err
