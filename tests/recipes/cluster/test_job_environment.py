"""The code and variables that a Ray job gets. tests/e2e/test_cluster.py submits to a real cluster."""

import os
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest
from ray._private.runtime_env.packaging import create_package

from convrec.runs import supervisor
from recipes.cluster import job_environment
from recipes.launch import settings
from recipes.launch.recipe import POINTWISE_JUDGE, RANK_GRPO, SFT, Recipe
from tests.recipes.conftest import set_gpus
from tests.user_errors import refuses

SECRETS = ("SWANLAB_API_KEY", "HF_TOKEN", "WANDB_API_KEY", "OPENAI_API_KEY", "RAY_AUTH_TOKEN", "VLLM_API_KEY")
SECRETS += ("SWANLAB_WEBHOOK", "SWANLAB_WEBHOOK_VALUE", "WANDB_PASS", "TORCH_X_PWD", "CLEARML_AUTH")
SECRETS += ("CLEARML_API_SECRET_KEY", "WANDB__EXTRA_HTTP_HEADERS", "VLLM_OTLP_HEADERS", "TQ_BEARER")
SECRETS += ("WANDB_IDENTITY_JWT", "CLEARML_SESSION_COOKIE", "VLLM_S3_SIGNATURE", "SWANLAB_SENTRY_DSN")
pytestmark = pytest.mark.usefixtures("outside")


def variables(recipe: Recipe, given: dict[str, str], *arguments: str) -> dict[str, str]:
    """Return the variables of a job for these variables of the submitter."""
    run = settings.compose_elsewhere(recipe, arguments, environment=given)
    return job_environment.job_environment(recipe, run, given)


def runtime_environment(given: dict[str, str], *arguments: str) -> dict[str, Any]:
    """Return the runtime environment of a Rank-GRPO job."""
    run = settings.compose_elsewhere(RANK_GRPO, arguments, environment=given)
    return job_environment.runtime_environment(RANK_GRPO, run, given, arguments)


def test_given_and_default_paths_are_made_absolute(tmp_path: Path) -> None:
    """Values are stripped, as without a cluster."""
    (tmp_path / "runs").mkdir()
    given = {"TRAIN_FILE": " data/a.parquet", "SAVE_PATH": "~/run ", "MODEL_PATH": "runs", "VAL_FILE": " "}
    assert variables(RANK_GRPO, given) == {
        "TRAIN_FILE": str(tmp_path / "data" / "a.parquet"),
        "VAL_FILE": str(tmp_path / "data" / "reddit_v2" / "validation.parquet"),
        "CATALOG_FILE": str(tmp_path / "data" / "reddit_v2" / "catalog.parquet"),
        "SAVE_PATH": os.path.expanduser("~/run"),
        "MODEL_PATH": str(tmp_path / "runs"),
    }


def test_the_run_folder_has_a_default_outside_the_unpacked_copy(tmp_path: Path) -> None:
    values = variables(SFT, {"MODEL_PATH": " Qwen/Qwen2.5-0.5B-Instruct "})
    assert values["MODEL_PATH"] == "Qwen/Qwen2.5-0.5B-Instruct"
    assert values["SAVE_PATH"] == str(tmp_path / "checkpoints" / "sft" / "Qwen2.5-0.5B-Instruct")
    assert "CATALOG_FILE" not in values  # SFT has none


def test_run_folder_on_cluster_is_named_after_the_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The model is a recipe's default, or named by an override."""
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "config.json").write_text("{}")
    set_gpus(monkeypatch, 0)
    for recipe, arguments in ((POINTWISE_JUDGE, []), (RANK_GRPO, [f"actor_rollout_ref.model.path={mine}"])):
        here = str(settings.compose(recipe.name, arguments).folder)
        assert variables(recipe, {}, *arguments)["SAVE_PATH"] == here
    assert here.endswith("/mine")


def test_settings_of_libraries_travel_and_secrets_stay_behind() -> None:
    wanted = {"NCCL_DEBUG": "INFO", "HF_HOME": "/models", "HF_HUB_OFFLINE": "1", "SWANLAB_MODE": "local"}
    wanted |= {"HF_ENDPOINT": "https://mirror", "https_proxy": "http://proxy:3128", "NO_PROXY": "10.0.0.0/8,.local"}
    wanted |= {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "TQ_LOGGING_LEVEL": "INFO"}
    wanted |= {"MLFLOW_TRACKING_URI": "http://mlflow:5000", "LR": "2e-6"}
    wanted[supervisor.SAVE_VARIABLE] = "1"  # how the job takes SIGTERM
    others = {"PATH": "/bin", "EDITOR": "vi", "RAY_ADDRESS": "http://head:8265"}
    holds_password = {"http_proxy": "http://me:secret@proxy:3128", "HTTPS_PROXY": "me:secret@proxy:3128"}
    holds_password |= {"SWANLAB_API_HOST": "https://host/?access_token=secret"}
    holds_password |= {"VLLM_OTLP": "Authorization=Bearer a-secret", "WANDB_BASE_URL": "https://host/?pass=secret"}
    holds_password |= {"CLEARML_WEB_HOST": "https://host/?pwd=a", "SWANLAB_WEB_HOST": "https://host/?code=a"}
    given = wanted | others | holds_password | dict.fromkeys(SECRETS, "a-secret")
    values = variables(RANK_GRPO, given)
    assert wanted.items() <= values.items()
    assert not values.keys() & (others | holds_password).keys()
    assert "a-secret" not in values.values()
    assert [warning.split()[0] for warning in job_environment.find_withheld_variables(given)] == list(holds_password)


def test_path_settings_are_made_absolute_and_switches_kept(tmp_path: Path) -> None:
    folders = {"HF_HOME": "./hf", "SWANLAB_LOG_DIR": "logs", "HF_HUB_CACHE": "hub", "TENSORBOARD_DIR": "board"}
    others = {"VLLM_DISABLE_COMPILE_CACHE": "1", "VLLM_SOME_PATH": "1", "CLEARML_WEB_HOST": "http://clearml:8080"}
    values = variables(RANK_GRPO, folders | others | {"MLFLOW_TRACKING_URI": "mlruns"})
    assert values.items() >= {name: str(tmp_path / folder) for name, folder in folders.items()}.items()
    assert values.items() >= others.items()
    assert values["MLFLOW_TRACKING_URI"] == str(tmp_path / "mlruns")
    database = "mysql+pymysql://host/database"
    assert variables(SFT, {"MLFLOW_TRACKING_URI": database})["MLFLOW_TRACKING_URI"] == database
    file = variables(SFT, {"MLFLOW_TRACKING_URI": "file:./runs"})["MLFLOW_TRACKING_URI"]
    assert file == f"file:{tmp_path / 'runs'}"


@pytest.mark.parametrize("name", ["MODEL_PATH", "SAVE_PATH", "HF_HOME"])
def test_the_home_of_an_unknown_user_is_refused(name: str) -> None:
    with refuses("cluster.unknown-user", f"{name}=~nobody-of-this-name/x"):
        variables(RANK_GRPO, {name: "~nobody-of-this-name/x"})


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
    (tmp_path / "here").mkdir()  # so that here/model is not an id of the Hub
    with refuses("cluster.relative-path", argument):
        job_environment.refuse_relative_paths(RANK_GRPO, [argument])


@pytest.mark.parametrize(
    ("argument", "code", "value"),
    [
        ("trainer.default_local_dir='/runs/a b'", "cluster.run-folder", "SAVE_PATH"),
        ("++trainer.default_local_dir=/runs/a", "cluster.run-folder", "SAVE_PATH"),
        ("+reward.api_key=a-secret", "settings.secret", "reward.api_key"),
        ("data.train_files=~/a.parquet", "settings.wrong-override", "data.train_files=~/a.parquet"),
    ],
)
def test_an_override_that_is_no_use_on_a_cluster_is_refused(argument: str, code: str, value: str) -> None:
    with refuses(code, value):
        runtime_environment({}, argument)


def test_absolute_paths_ids_and_other_overrides_pass() -> None:
    arguments = ["data.train_files=/d/a.parquet", "actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B", "trainer.nnodes=2"]
    arguments += ["data.val_files=null", "convrec.lr_schedule=[[0,1e-6]]", "+scale=lora"]
    arguments += ["data.custom_cls.path=pkg://convrec.training.dataset"]
    arguments += ["actor_rollout_ref.model.tokenizer_path=Qwen/Qwen2.5-0.5B"]
    arguments += ["reward.custom_reward_function.path=/x.py", "data.train_files='/d/a b.parquet'"]
    job_environment.refuse_relative_paths(RANK_GRPO, arguments)


def list_upload(runtime_env: dict[str, Any], target: Path) -> list[str]:
    """Return the files that Ray packs for this runtime environment."""
    folder, excludes = runtime_env["working_dir"], runtime_env["excludes"]
    create_package(folder, target, include_gitignore=True, excludes=excludes)
    return [name for name in zipfile.ZipFile(target).namelist() if not name.endswith("/")]


def test_the_package_is_the_code_and_small(tmp_path: Path) -> None:
    """Ray itself packs a folder that also has data, models and caches, as a working copy has."""
    folder, target = tmp_path / "copy", tmp_path / "package.zip"
    code = ("convrec", "reward", "data_prep", "recipes", "conf")
    for name in code:
        shutil.copytree(job_environment.HERE / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("data", ".venv/lib", "checkpoints/a", "outputs", ".git", "runs", "models", "convrec/__pycache__"):
        os.makedirs(folder / name)
        (folder / name / "big.bin").write_bytes(os.urandom(3 * 2**20))
    (folder / "notes.parquet").write_bytes(b"x")
    (folder / ".env").write_text("OPENAI_API_KEY=a-secret")
    names = list_upload(runtime_environment({}) | {"working_dir": str(folder)}, target)
    assert target.stat().st_size < 3 * 2**20
    assert {name.split("/")[0] for name in names} == set(code)
    assert {"conf/host/cpu.yaml", "data_prep/sample_data/films.csv"} <= set(names)
    assert not [name for name in names if "big.bin" in name or "parquet" in name]


MODULE = "def halves(relevance, items):\n    return [rel / 2 for rel in relevance]\n"


@pytest.mark.parametrize(
    ("files", "reward", "travels"),
    [
        (["job_rewards.py", "job_other.py", "big.bin"], "job_rewards:halves", ["job_rewards.py"]),
        (
            ["job_package/__init__.py", "job_package/deep/rank.py", "job_package/data/table.csv", "job_other.py"],
            "job_package.deep.rank:halves",
            ["job_package/__init__.py", "job_package/data/table.csv", "job_package/deep/rank.py"],
        ),
    ],
)
def test_a_custom_rank_reward_is_uploaded_with_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: list[str], reward: str, travels: list[str]
) -> None:
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    plain = list_upload(runtime_environment({}), tmp_path / "plain.zip")
    names = list_upload(runtime_environment({}, f"convrec.reward={reward}"), tmp_path / "with.zip")
    assert sorted(set(names) - set(plain)) == travels
    assert set(plain) - set(names) == set()
    assert "conf/host/cpu.yaml" in plain


def test_a_built_in_rank_reward_changes_nothing() -> None:
    plain = runtime_environment({})
    assert runtime_environment({}, "convrec.reward=log_decay") == plain
    assert plain["working_dir"] == str(job_environment.HERE)
    assert plain["env_vars"]["VERL_USE_EXTERNAL_MODULES"] == "convrec.cpu.platform"
