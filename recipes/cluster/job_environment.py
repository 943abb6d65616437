"""What a Ray job gets of the caller's folder and environment, and which overrides mean nothing there.

The code travels (runtime_env.yaml says what), data and models do not: their paths are made absolute here and must exist
on every node. The recipes' variables are handed on, and those of SETTINGS; secrets are not, the cluster's
environment has them.
"""

import atexit
import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf

from convrec.base.errors import UserError
from convrec.base.shipped import ROOT as HERE
from convrec.base.shipped import RUNTIME_ENV
from convrec.checkpoints import hub
from convrec.lists import user_rewards
from convrec.settings import secrets
from convrec.settings.overrides import override_leaves
from convrec.settings.rank_grpo import RankGRPOConfig
from convrec.settings.run import Run
from recipes.launch.recipe import Recipe
from recipes.launch.variables import VARIABLES

PATHS = ("TRAIN_FILE", "VAL_FILE", "CATALOG_FILE", "SAVE_PATH")
RUN_FOLDER = "trainer.default_local_dir"
# What else of the caller's environment a job needs: how libraries, and SIGTERM, behave there. Never a secret.
SETTINGS = re.compile(
    r"(NCCL|GLOO|VLLM|VERL|HF_HUB|HF_DATASETS|TORCH|PYTORCH|SWANLAB|WANDB|TQ)_\w+|HF_HOME|HF_ENDPOINT"
    r"|CLEARML_\w+|TENSORBOARD_DIR|TRANSFORMERS_OFFLINE|MLFLOW_TRACKING_URI|SAVE_ON_TERM|(?i:(https?|all|no)_proxy)"
)
PATH_SETTINGS = re.compile(r"HF_HOME|HF_\w+_CACHE|MLFLOW_TRACKING_URI|\w+_(DIR|FILE|HOME|PATH|ROOT)")
NO_PATH = re.compile(r"databricks|true|false|\d*", re.IGNORECASE)  # VLLM_..._PATH=1 is a switch
HUB_KEYS = re.compile(r"(.*\.)?(model\.\w+|\w*(model|tokenizer)_path)")


def runtime_environment(
    recipe: Recipe, run: Run[Any], environment: Mapping[str, str], arguments: Sequence[str] = ()
) -> dict[str, Any]:
    """runtime_env.yaml with this folder as what is uploaded, and the caller's variables. A rank reward of the user's
    own is tried out, and its package or module uploaded too.

    run: composed of the variables and these arguments. Raises UserError for what cannot be used on a cluster.
    """
    runtime_env = yaml.safe_load(RUNTIME_ENV.read_text())
    runtime_env["working_dir"] = str(HERE)
    runtime_env["env_vars"] |= job_environment(recipe, run, environment)
    if reward := check_for_cluster(recipe, run, arguments):
        _upload_too(runtime_env, user_rewards.own_sources(reward))
    return runtime_env


def check_for_cluster(recipe: Recipe, run: Run[Any], arguments: Sequence[str]) -> str:
    """The rank reward of the user's own, "" without one. Raises UserError for one that does not work, and for an
    override that is of no use on a cluster."""
    refuse_relative_paths(recipe, arguments)
    settings = run.settings
    if not isinstance(settings, RankGRPOConfig) or not user_rewards.is_user_reward(settings.reward):
        return ""
    user_rewards.check(settings.reward, settings.num_items)
    return settings.reward


def job_environment(recipe: Recipe, run: Run[Any], environment: Mapping[str, str]) -> dict[str, str]:
    """The variables as the job must see them: relative paths, defaults too, would point into the unpacked copy.

    Raises UserError for a path of a user that is not known here.
    """
    keys = {variable.name: variable.collect_keys(recipe) for variable in VARIABLES}
    # read without the space around them, and unset where empty
    values = {name: value.strip() for name, value in environment.items() if name in keys and value.strip()}
    for name, value in environment.items():
        if _is_setting(name) and not secrets.holds_password(value):
            values[name] = _absolute(name, value) if _is_path(name, value) else value
    for name in (name for name in PATHS if keys[name]):
        path = values.get(name) or OmegaConf.select(run.verl_config, keys[name][0])
        if name == "SAVE_PATH" and not path:
            path = f"checkpoints/{recipe.name}/{Path(run.settings.model).name}"
        if isinstance(path, str):
            values[name] = _absolute(name, path)
    if values.get("MODEL_PATH") and not hub.is_id(values["MODEL_PATH"]):
        values["MODEL_PATH"] = _absolute("MODEL_PATH", values["MODEL_PATH"])
    return values


def withheld(environment: Mapping[str, str]) -> list[str]:
    """A warning for each setting that stays behind because its value holds a password."""
    return [
        f"{name} holds a password and stays here; set it where `ray start` is called, if the job needs it"
        for name, value in environment.items()
        if _is_setting(name) and secrets.holds_password(value)
    ]


def _is_setting(name: str) -> bool:
    return bool(SETTINGS.fullmatch(name)) and not secrets.is_secret_name(name)


def _is_path(name: str, value: str) -> bool:
    return bool(PATH_SETTINGS.fullmatch(name)) and not NO_PATH.fullmatch(value) and not secrets.is_url(value)


def _absolute(name: str, text: str) -> str:
    if text.startswith("file:"):  # MLflow's; with two slashes it is an address
        return "file:" + _absolute(name, text.removeprefix("file:"))
    expanded = os.path.expanduser(text)
    if expanded.startswith("~"):
        raise UserError(f"{name}={text}: there is no such user here: give an absolute path")
    return os.path.abspath(expanded)


def refuse_relative_paths(recipe: Recipe, arguments: Sequence[str]) -> None:
    """Raise UserError for an override that names a file relative to a folder that the job does not have.

    And for one of the run folder: stop files are put where SAVE_PATH says. arguments: Hydra has composed them.
    """
    path_keys = {
        key
        for variable in VARIABLES
        if variable.name in (*PATHS, "MODEL_PATH")
        for key in variable.collect_keys(recipe)
    }
    for argument in arguments:
        for key, value in override_leaves(argument):
            if key == RUN_FOLDER:
                raise UserError(f"{argument}: set SAVE_PATH instead, which the submitter reads too")
            is_path = key in path_keys or key.endswith((".path", "_dir", "_path", "_file", "_files"))
            if not is_path or not isinstance(value, str) or value in ("", "null"):
                continue
            is_absolute = value.startswith(("/", "${")) or "://" in value
            if not is_absolute and not (HUB_KEYS.fullmatch(key) and hub.is_id(value)):
                raise UserError(f"{argument}: a relative path means nothing on the cluster: give an absolute one")


def _upload_too(runtime_env: dict[str, Any], sources: Sequence[Path]) -> None:
    """Make the working directory a folder of links to what travels and to these packages and modules.

    Not `py_modules`: Ray takes the `excludes` of the working directory to hold there too, which leaves nothing of a
    package, and its job client cannot upload a single file.
    """
    if not sources:
        return
    folder = Path(tempfile.mkdtemp(prefix="convrec-job-"))
    atexit.register(shutil.rmtree, folder)  # removes links, not what they lead to
    included = [pattern.removeprefix("!/") for pattern in runtime_env["excludes"] if pattern.startswith("!/")]
    for path in [*(HERE / name for name in included), *sources]:
        (folder / path.name).symlink_to(path.resolve())
    runtime_env["working_dir"] = str(folder)
    runtime_env["excludes"] += [f"!/{source.name}" for source in sources]
