"""What of the caller's folder and environment a Ray job gets. tests/e2e/test_cluster.py submits to a real cluster."""

import os
import signal
import subprocess
import sys
import threading
import zipfile
from collections.abc import AsyncIterator, Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
from ray._private.runtime_env.packaging import create_package
from ray.job_submission import JobStatus

from convrec.errors import UserError
from recipes import submit
from recipes.variables import VARIABLES

SECRETS = ("SWANLAB_API_KEY", "HF_TOKEN", "WANDB_API_KEY", "OPENAI_API_KEY", "RAY_AUTH_TOKEN", "VLLM_API_KEY")


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for variable in VARIABLES:
        monkeypatch.delenv(variable.name, raising=False)
    monkeypatch.setenv("RAY_ADDRESS", "http://127.0.0.1:9")  # nobody listens there
    monkeypatch.chdir(tmp_path)


def test_paths_are_made_absolute_where_they_are_given_and_so_are_the_defaults(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    given = {"TRAIN_FILE": "data/a.parquet", "SAVE_PATH": "~/run", "MODEL_PATH": "runs"}
    assert submit.job_environment("rank_grpo", given) == {
        "TRAIN_FILE": str(tmp_path / "data" / "a.parquet"),
        "VAL_FILE": str(tmp_path / "data" / "reddit_v2" / "validation.parquet"),
        "CATALOG_FILE": str(tmp_path / "data" / "reddit_v2" / "catalog.parquet"),
        "SAVE_PATH": os.path.expanduser("~/run"),
        "MODEL_PATH": str(tmp_path / "runs"),
    }


def test_the_run_folder_has_a_default_outside_the_unpacked_copy(tmp_path: Path) -> None:
    values = submit.job_environment("sft", {"MODEL_PATH": "Qwen/Qwen2.5-0.5B-Instruct"})
    assert values["MODEL_PATH"] == "Qwen/Qwen2.5-0.5B-Instruct"
    assert values["SAVE_PATH"] == str(tmp_path / "checkpoints" / "sft" / "Qwen2.5-0.5B-Instruct")
    assert "CATALOG_FILE" not in values  # SFT has none


def test_settings_of_libraries_travel_and_secrets_stay_behind() -> None:
    settings = {"NCCL_DEBUG": "INFO", "HF_HOME": "/models", "HF_HUB_OFFLINE": "1", "SWANLAB_MODE": "local"}
    others = {"PATH": "/bin", "EDITOR": "vi", "RAY_ADDRESS": "http://head:8265"}
    values = submit.job_environment("rank_grpo", {**settings, **others, **dict.fromkeys(SECRETS, "a-secret")})
    assert settings.items() <= values.items()
    assert not values.keys() & others.keys()
    assert "a-secret" not in values.values()


def test_how_libraries_reach_the_network_travels_unless_it_holds_a_password() -> None:
    settings = {"HF_ENDPOINT": "https://mirror", "https_proxy": "http://proxy:3128", "NO_PROXY": "10.0.0.0/8,.local"}
    settings |= {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "TQ_LOGGING_LEVEL": "INFO"}
    settings |= {"MLFLOW_TRACKING_URI": "http://mlflow:5000"}
    holds_password = {"http_proxy": "http://me:secret@proxy:3128", "HTTPS_PROXY": "me:secret@proxy:3128"}
    values = submit.job_environment("rank_grpo", settings | holds_password)
    assert settings.items() <= values.items()
    assert not values.keys() & holds_password.keys()
    assert submit.withheld(settings | holds_password) == ["http_proxy", "HTTPS_PROXY"]


def test_settings_that_are_paths_are_made_absolute_and_switches_are_left_alone(tmp_path: Path) -> None:
    relative = {"HF_HOME": "./hf", "SWANLAB_LOG_DIR": "logs", "HF_HUB_CACHE": "hub", "MLFLOW_TRACKING_URI": "mlruns"}
    values = submit.job_environment("rank_grpo", relative | {"VLLM_DISABLE_COMPILE_CACHE": "1", "VLLM_SOME_PATH": "1"})
    folders = ("hf", "logs", "hub", "mlruns")
    assert [values[name] for name in relative] == [str(tmp_path / folder) for folder in folders]
    assert (values["VLLM_DISABLE_COMPILE_CACHE"], values["VLLM_SOME_PATH"]) == ("1", "1")


@pytest.mark.parametrize("name", ["MODEL_PATH", "SAVE_PATH", "HF_HOME"])
def test_a_home_that_nobody_has_is_an_error_of_the_user(name: str) -> None:
    with pytest.raises(UserError, match=f"{name}=~nobody-of-this-name/x: there is no such user"):
        submit.job_environment("rank_grpo", {name: "~nobody-of-this-name/x"})


@pytest.mark.parametrize(
    "argument",
    [
        "data.train_files=data/a.parquet",
        "data.val_files=[/data/a.parquet,b.parquet]",
        "convrec.catalog_file='data/catalog.parquet'",
        "actor_rollout_ref.model.path=./model",
        "actor_rollout_ref.model.path=here/model",
        "++actor_rollout_ref.model.tokenizer_path=./tokenizer",
        "reward.custom_reward_function.path=./x.py",
        "reward.custom_reward_function.path=my/x.py",
        "data.custom_cls.path='x.py'",
        "+reward={custom_reward_function:{path:./x.py}}",
        "+trainer.rollout_data_dir=dump",
    ],
)
def test_an_override_with_a_relative_path_is_refused(argument: str, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()  # so that here/model is no Hub id
    with pytest.raises(UserError, match="give an absolute one"):
        submit.refuse_relative_paths("rank_grpo", [argument])


@pytest.mark.parametrize(
    "argument",
    ["trainer.default_local_dir='/runs/a b'", "++trainer.default_local_dir=/runs/a", "~trainer.default_local_dir"],
)
def test_the_run_folder_is_given_by_its_variable_alone(argument: str) -> None:
    with pytest.raises(UserError, match="set SAVE_PATH instead"):
        submit.refuse_relative_paths("rank_grpo", [argument])


def test_an_override_that_hydra_cannot_read_stops_here() -> None:
    with pytest.raises(UserError, match=r"data\.train_files=~/a\.parquet: "):
        submit.refuse_relative_paths("rank_grpo", ["data.train_files=~/a.parquet"])


def test_absolute_paths_ids_and_other_overrides_pass() -> None:
    arguments = ["data.train_files=/d/a.parquet", "actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B", "trainer.nnodes=2"]
    arguments += ["data.val_files=null", "convrec.lr_schedule=[[0,1e-6]]", "data.custom_cls.path=pkg://convrec.dataset"]
    arguments += ["actor_rollout_ref.model.tokenizer_path=Qwen/Qwen2.5-0.5B", "+scale=lora"]
    arguments += ["reward.custom_reward_function.path=/x.py", "data.train_files='/d/a b.parquet'"]
    submit.refuse_relative_paths("rank_grpo", arguments)


def test_the_package_is_the_code_and_small(tmp_path: Path) -> None:
    """Packed by Ray itself, from a folder that also holds what a working copy collects."""
    folder, target = tmp_path / "copy", tmp_path / "package.zip"
    for name in ("convrec", "reward", "data_prep", "recipes", "conf"):
        os.makedirs(folder / name)
        for path in (submit.HERE / name).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                copy = folder / path.relative_to(submit.HERE)
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_bytes(path.read_bytes())
    for name in ("data", ".venv/lib", "checkpoints/a", "outputs", ".git", "runs", "models", "convrec/__pycache__"):
        os.makedirs(folder / name)
        (folder / name / "big.bin").write_bytes(os.urandom(3 * 2**20))
    (folder / "notes.parquet").write_bytes(b"x")
    (folder / ".env").write_text("OPENAI_API_KEY=a-secret")
    excludes = submit.runtime_environment("rank_grpo", {})["excludes"]
    create_package(str(folder), target, include_gitignore=True, excludes=excludes)
    names = zipfile.ZipFile(target).namelist()
    assert target.stat().st_size < 2 * 2**20
    assert {name.split("/")[0] for name in names if not name.endswith("/")} == {
        "convrec", "reward", "data_prep", "recipes", "conf"
    }  # fmt: skip
    assert "conf/host/cpu.yaml" in names
    assert "data_prep/films.csv" in names
    assert not [name for name in names if "big.bin" in name or "parquet" in name]


def test_the_job_knows_what_a_worker_needs() -> None:
    runtime_env = submit.runtime_environment("rank_grpo", {"LR": "2e-6"})
    assert runtime_env["working_dir"] == str(submit.HERE)
    assert runtime_env["env_vars"]["LR"] == "2e-6"
    assert runtime_env["env_vars"]["VERL_USE_EXTERNAL_MODULES"] == "convrec.verl_plugin"


def test_a_cluster_that_does_not_answer_is_an_error_of_the_user(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["submit", "rank_grpo"])
    assert submit.main() == 2
    error = capsys.readouterr().err
    assert "RAY_ADDRESS=http://127.0.0.1:9: no answer" in error
    assert "http://head:8265" in error


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
            submit.connect(address)
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
        submit.connect(address)


def test_a_wrong_value_stops_before_the_cluster_is_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LR", "fast")
    monkeypatch.setattr(sys, "argv", ["submit", "rank_grpo", "--detach"])
    assert submit.main() == 2
    assert "LR=fast" in capsys.readouterr().err


def test_a_judges_job_runs_its_module() -> None:
    assert submit.MODULES == {
        "judge_pointwise": ("recipes.judge.train", "pointwise"),
        "judge_pairwise": ("recipes.judge.train", "pairwise"),
    }


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


def call(monkeypatch: pytest.MonkeyPatch, jobs: Jobs, *arguments: str) -> int:
    monkeypatch.setattr(submit, "connect", lambda address: jobs)
    monkeypatch.setattr(submit, "POLL_SECONDS", 0.01)
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
    monkeypatch.setattr(submit, "POLL_SECONDS", 0.01)
    return submit.follow(jobs, "job-1")


def test_ctrl_c_asks_for_a_checkpoint_in_a_run_folder_that_is_not_there_yet(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], jobs: Jobs
) -> None:
    jobs.on = interrupt_at("info")
    assert follow(monkeypatch, jobs) == 130
    assert jobs.stop_file.exists()
    assert jobs.info.status == JobStatus.FAILED  # by itself
    assert submit.ASKED in capsys.readouterr().err


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
    monkeypatch.setattr(submit, "say", told.append)
    first, second = interrupt_at("info"), interrupt_at("info")
    jobs.on = lambda name: (second if told else first)(name)
    assert follow(monkeypatch, jobs) == 130
    assert "could not be asked" in told[0]
    assert submit.ASKED not in told
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
    monkeypatch.setattr(submit, "NETWORK_SECONDS", 0.05)
    with pytest.raises(UserError, match=r"reset by peer.*goes on without us.*--follow job-1"):
        follow(monkeypatch, jobs)


def test_stop_asks_for_a_checkpoint_where_the_recipe_looks_and_ends_sft_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], jobs: Jobs
) -> None:
    assert call(monkeypatch, jobs, "--stop", "job-1") == 0
    assert jobs.stop_file.exists()
    assert jobs.info.status == JobStatus.RUNNING  # it looks at the end of its step
    assert "save a checkpoint and end" in capsys.readouterr().err
    sft = Jobs(jobs.stop_file.parent / "sft", "sft")
    assert call(monkeypatch, sft, "--stop", "job-1") == 0
    assert sft.info.status == JobStatus.STOPPED
    assert not sft.others
    assert call(monkeypatch, sft, "--stop", "job-1") == 0
    assert "job-1 has ended: STOPPED" in capsys.readouterr().err


def diagnose(monkeypatch: pytest.MonkeyPatch, jobs: Jobs) -> SimpleNamespace:
    """The doctor's job, which never ends by itself."""
    put = jobs.submit_job

    def start(entrypoint: str, submission_id: str, **rest: object) -> None:
        put("true", submission_id)
        jobs.others[submission_id].status = JobStatus.RUNNING

    jobs.submit_job = start  # type: ignore[method-assign]
    monkeypatch.setattr(submit, "connect", lambda address: jobs)
    monkeypatch.setattr(submit, "POLL_SECONDS", 0.01)
    status = submit.diagnose_there("rank_grpo", [], as_json=False)
    (info,) = jobs.others.values()
    return SimpleNamespace(returned=status, job=info.status)


def test_a_doctor_that_does_not_end_is_stopped(monkeypatch: pytest.MonkeyPatch, jobs: Jobs) -> None:
    monkeypatch.setattr(submit, "DOCTOR_SECONDS", 0.05)
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
