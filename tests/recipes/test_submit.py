"""What of the caller's folder and environment a Ray job gets. tests/e2e/test_cluster.py submits to a real cluster."""

import os
import sys
import threading
import zipfile
from collections.abc import AsyncIterator
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


@pytest.mark.parametrize(
    "argument",
    [
        "data.train_files=data/a.parquet",
        "data.val_files=[/data/a.parquet,b.parquet]",
        "convrec.catalog_file='data/catalog.parquet'",
        "trainer.default_local_dir=runs/a",
        "actor_rollout_ref.model.path=./model",
        "+trainer.rollout_data_dir=dump",
    ],
)
def test_an_override_with_a_relative_path_is_refused(argument: str) -> None:
    with pytest.raises(UserError, match="give an absolute one"):
        submit.refuse_relative_paths("rank_grpo", [argument])


def test_absolute_paths_ids_and_other_overrides_pass() -> None:
    arguments = ["data.train_files=/d/a.parquet", "actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B", "trainer.nnodes=2"]
    arguments += ["data.val_files=null", "convrec.lr_schedule=[[0,1e-6]]", "data.custom_cls.path=pkg://convrec.dataset"]
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
    """In the place of Ray's client: one job, which is over when it is stopped or asked to."""

    def __init__(self, recipe: str = "rank_grpo", status: str = "RUNNING", exit_code: int | None = None) -> None:
        self.info = SimpleNamespace(status=JobStatus(status), driver_exit_code=exit_code)
        self.info.metadata = {"recipe": recipe, "save_path": "/runs/a b"}
        self.submitted: list[str] = []

    def get_job_info(self, job: str) -> SimpleNamespace:
        if job != "job-1":
            raise RuntimeError("404")
        return self.info

    def submit_job(self, entrypoint: str, submission_id: str) -> None:
        self.submitted.append(entrypoint)

    def stop_job(self, job: str) -> None:
        self.info.status = JobStatus.STOPPED

    def get_job_logs(self, job: str) -> str:
        return "step 1\nstep 2\n"

    async def tail_job_logs(self, job: str) -> AsyncIterator[str]:
        yield "step 1\n"  # and the connection breaks


def call(monkeypatch: pytest.MonkeyPatch, jobs: Jobs, *arguments: str) -> int:
    monkeypatch.setattr(submit, "connect", lambda address: jobs)
    monkeypatch.setattr(submit, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(sys, "argv", ["submit", *arguments])
    return submit.main()


@pytest.mark.parametrize(
    ("status", "exit_code", "expected"), [("SUCCEEDED", 0, 0), ("FAILED", 130, 130), ("FAILED", None, 1)]
)
def test_following_prints_each_line_once_and_returns_the_jobs_exit_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], status: str, exit_code: int, expected: int
) -> None:
    assert call(monkeypatch, Jobs(status=status, exit_code=exit_code), "--follow", "job-1") == expected
    assert capsys.readouterr().out == "step 1\nstep 2\n"


def test_ctrl_c_ends_the_following_alone(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    jobs = Jobs()
    ask = jobs.get_job_info

    def interrupted(job: str) -> SimpleNamespace:
        if threading.current_thread() is threading.main_thread() and len(asked) == 1:
            jobs.info.status = JobStatus.SUCCEEDED  # for the thread that prints
            raise KeyboardInterrupt
        asked.append(job)
        return ask(job)

    asked: list[str] = []
    jobs.get_job_info = interrupted  # type: ignore[method-assign]
    assert call(monkeypatch, jobs, "--follow", "job-1") == 130
    assert "job-1 goes on" in capsys.readouterr().err
    assert not jobs.submitted


def test_stop_asks_for_a_checkpoint_where_the_recipe_looks_and_ends_sft_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = Jobs()
    assert call(monkeypatch, jobs, "--stop", "job-1") == 0
    assert jobs.submitted == ["touch '/runs/a b/stop.job-1'"]
    assert jobs.info.status == JobStatus.RUNNING
    assert "save a checkpoint and end" in capsys.readouterr().err
    sft = Jobs("sft")
    assert call(monkeypatch, sft, "--stop", "job-1") == 0
    assert sft.info.status == JobStatus.STOPPED
    assert not sft.submitted
    assert call(monkeypatch, sft, "--stop", "job-1") == 0
    assert "job-1 has ended: STOPPED" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--follow", "--stop"])
def test_a_job_that_is_not_there_or_not_ours_and_no_address(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    jobs = Jobs()
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
