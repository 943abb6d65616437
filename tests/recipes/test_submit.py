"""What of the caller's folder and environment a Ray job gets. tests/e2e/test_cluster.py submits to a real cluster."""

import os
import sys
import zipfile
from pathlib import Path

import pytest
from ray._private.runtime_env.packaging import create_package

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


def test_an_unknown_recipe_is_told_the_known_ones(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["submit", "ppo"])
    assert submit.main() == 2
    assert "sft,rank_grpo" in capsys.readouterr().err
