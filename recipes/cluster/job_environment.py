"""The code and the environment variables of a Ray job, and checks of the overrides that it gets.

The code is uploaded (runtime_env.yaml lists its folders). Data and models are not: their paths become absolute and must
exist on every node. The variables of the recipes and those that match SETTINGS are passed on. Secrets are not: they
belong in the cluster's environment.
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
# Further variables that a job needs: settings of libraries, and of SIGTERM. Never a secret.
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
    """Return Ray's runtime environment for a job: runtime_env.yaml with this folder and the caller's variables.

    A custom rank reward is called once, and its package or module is uploaded too.

    Args:
        recipe: the recipe.
        run: composed from the variables and these arguments.
        environment: the caller's variables.
        arguments: overrides of the command line.

    Raises:
        UserError: an override, a variable or the custom reward cannot be used on a cluster.
    """
    runtime_env = yaml.safe_load(RUNTIME_ENV.read_text())
    runtime_env["working_dir"] = str(HERE)
    runtime_env["env_vars"] |= job_environment(recipe, run, environment)
    if reward := check_for_cluster(recipe, run, arguments):
        _add_sources(runtime_env, user_rewards.find_own_sources(reward))
    return runtime_env


def check_for_cluster(recipe: Recipe, run: Run[Any], arguments: Sequence[str]) -> str:
    """Check that overrides and a custom rank reward can be used on a cluster.

    Returns:
        The custom rank reward; "" without one.

    Raises:
        UserError: one of them cannot be used.
    """
    refuse_relative_paths(recipe, arguments)
    settings = run.settings
    if not isinstance(settings, RankGRPOConfig) or not user_rewards.is_user_reward(settings.reward):
        return ""
    user_rewards.check(settings.reward, settings.num_items)
    return settings.reward


def job_environment(recipe: Recipe, run: Run[Any], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a job, with absolute paths: relative ones would point into the uploaded copy.

    Raises:
        UserError: a path has the home folder of an unknown user.
    """
    keys = {variable.name: variable.collect_keys(recipe) for variable in VARIABLES}
    # variables are stripped, and an empty one is unset, as without a cluster
    values = {name: value.strip() for name, value in environment.items() if name in keys and value.strip()}
    for name, value in environment.items():
        if _is_setting(name) and not secrets.holds_password(value):
            values[name] = _make_absolute(name, value) if _is_path(name, value) else value
    for name in (name for name in PATHS if keys[name]):
        path = values.get(name) or OmegaConf.select(run.verl_config, keys[name][0])
        if name == "SAVE_PATH" and not path:
            path = f"checkpoints/{recipe.name}/{Path(run.settings.model).name}"
        if isinstance(path, str):
            values[name] = _make_absolute(name, path)
    if values.get("MODEL_PATH") and not hub.is_id(values["MODEL_PATH"]):
        values["MODEL_PATH"] = _make_absolute("MODEL_PATH", values["MODEL_PATH"])
    return values


def find_withheld_variables(environment: Mapping[str, str]) -> list[str]:
    """Return a warning for each setting that is not passed to the job because its value holds a password."""
    return [
        f"{name} holds a password and is not passed to the job; if the job needs it, set it before `ray start`"
        for name, value in environment.items()
        if _is_setting(name) and secrets.holds_password(value)
    ]


def _is_setting(name: str) -> bool:
    return bool(SETTINGS.fullmatch(name)) and not secrets.is_secret_name(name)


def _is_path(name: str, value: str) -> bool:
    return bool(PATH_SETTINGS.fullmatch(name)) and not NO_PATH.fullmatch(value) and not secrets.is_url(value)


def _make_absolute(name: str, text: str) -> str:
    if text.startswith("file:"):  # a path of MLflow's; with two slashes it is a URL
        return "file:" + _make_absolute(name, text.removeprefix("file:"))
    expanded = os.path.expanduser(text)
    if expanded.startswith("~"):
        raise UserError("cluster.unknown-user", f"{name}={text}: no such user here: give an absolute path")
    return os.path.abspath(expanded)


def refuse_relative_paths(recipe: Recipe, arguments: Sequence[str]) -> None:
    """Check that overrides have no relative paths, which mean another folder in the job, and no run folder.

    Args:
        recipe: the recipe.
        arguments: overrides that Hydra has already composed.

    Raises:
        UserError: an override has a relative path, or sets the run folder: stop files are written to SAVE_PATH.
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
                raise UserError("cluster.run-folder", f"{argument}: set SAVE_PATH instead, which stop requests use too")
            is_path = key in path_keys or key.endswith((".path", "_dir", "_path", "_file", "_files"))
            if not is_path or not isinstance(value, str) or value in ("", "null"):
                continue
            is_absolute = value.startswith(("/", "${")) or "://" in value
            if not is_absolute and not (HUB_KEYS.fullmatch(key) and hub.is_id(value)):
                raise UserError(
                    "cluster.relative-path",
                    f"{argument}: a relative path is not valid on the cluster: give an absolute one",
                )


def _add_sources(runtime_env: dict[str, Any], sources: Sequence[Path]) -> None:
    """Replace the working directory by a folder of links to the uploaded folders and to these packages and modules.

    Ray's `py_modules` would not do: Ray applies the `excludes` of the working directory to them, which removes a whole
    package, and its job client cannot upload a single file.
    """
    if not sources:
        return
    folder = Path(tempfile.mkdtemp(prefix="convrec-job-"))
    atexit.register(shutil.rmtree, folder)  # removes the links, not their targets
    included = [pattern.removeprefix("!/") for pattern in runtime_env["excludes"] if pattern.startswith("!/")]
    for path in [*(HERE / name for name in included), *sources]:
        (folder / path.name).symlink_to(path.resolve())
    runtime_env["working_dir"] = str(folder)
    runtime_env["excludes"] += [f"!/{source.name}" for source in sources]
