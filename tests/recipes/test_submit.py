"""What of the caller's environment a Ray job gets, and whose status a submitted recipe has."""

import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from recipes import submit
from recipes.variables import VARIABLES


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for variable in VARIABLES:
        monkeypatch.delenv(variable.name, raising=False)
    monkeypatch.setenv("RAY_ADDRESS", "http://head:8265")
    monkeypatch.chdir(tmp_path)


def test_paths_are_made_absolute_where_they_are_given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    for name, value in {"TRAIN_FILE": "data/a.parquet", "SAVE_PATH": "~/run", "MODEL_PATH": "runs"}.items():
        monkeypatch.setenv(name, value)
    assert submit.job_environment() == {
        "TRAIN_FILE": str(tmp_path / "data" / "a.parquet"),
        "SAVE_PATH": os.path.expanduser("~/run"),
        "MODEL_PATH": str(tmp_path / "runs"),
    }


def test_a_hugging_face_id_stays_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODEL_PATH", "Qwen/Qwen2.5-0.5B-Instruct")
    assert submit.job_environment() == {"MODEL_PATH": "Qwen/Qwen2.5-0.5B-Instruct"}


def test_secrets_stay_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SWANLAB_API_KEY", "HF_TOKEN", "WANDB_API_KEY", "OPENAI_API_KEY", "RAY_AUTH_TOKEN"):
        monkeypatch.setenv(name, "a-secret")
    assert submit.job_environment() == {}


@pytest.mark.parametrize(("outcome", "status"), [("SUCCEEDED", 0), ("FAILED", 1), ("STOPPED", 1)])
def test_the_jobs_status_is_the_commands(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], outcome: str, status: int
) -> None:
    from ray import job_submission

    submitted: dict[str, Any] = {}

    class Client:
        def __init__(self, address: str) -> None:
            submitted["address"] = address

        def submit_job(self, **job: Any) -> str:
            submitted.update(job)
            return "job_1"

        async def tail_job_logs(self, job: str) -> AsyncIterator[str]:
            yield "step 1\n"
            yield "step 2\n"

        def get_job_info(self, job: str) -> SimpleNamespace:
            return SimpleNamespace(status=job_submission.JobStatus(outcome))

    monkeypatch.setattr(job_submission, "JobSubmissionClient", Client)
    monkeypatch.setenv("LR", "2e-6")
    monkeypatch.setattr(sys, "argv", ["submit", "rank_grpo", "convrec.lr_schedule=[[0, 1e-6]]"])
    assert submit.main() == status
    out, err = capsys.readouterr()
    assert out == "step 1\nstep 2\n"
    assert outcome in err
    assert submitted["address"] == "http://head:8265"
    assert submitted["entrypoint"] == "python -m recipes.rank_grpo 'convrec.lr_schedule=[[0, 1e-6]]'"
    environment = submitted["runtime_env"]["env_vars"]
    assert environment["LR"] == "2e-6"
    assert environment["VERL_USE_EXTERNAL_MODULES"] == "convrec.verl_plugin"
    assert "/data/" in submitted["runtime_env"]["excludes"]
    assert "RAY_ADDRESS" not in environment


def test_a_judges_job_runs_its_module() -> None:
    assert submit.MODULES == {
        "judge_pointwise": ("recipes.judge.train", "pointwise"),
        "judge_pairwise": ("recipes.judge.train", "pairwise"),
    }


def test_an_unknown_recipe_is_told_the_known_ones(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["submit", "ppo"])
    assert submit.main() == 2
    assert "sft,rank_grpo" in capsys.readouterr().err
