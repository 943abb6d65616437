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
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf

from convrec.errors import UserError
from convrec.lists import user_rewards
from recipes.launch import settings
from recipes.launch.recipe import Recipe
from recipes.launch.variables import VARIABLES

HERE = Path(__file__).resolve().parents[2]
PATHS = {  # variable -> key in conf/<recipe>.yaml with its default
    "TRAIN_FILE": "data.train_files",
    "VAL_FILE": "data.val_files",
    "CATALOG_FILE": "convrec.catalog_file",
    "SAVE_PATH": "trainer.default_local_dir",
}
# What else of the caller's environment a job needs: how libraries, and SIGTERM, behave there. Never what looks like a
# secret.
SETTINGS = re.compile(
    r"(NCCL|GLOO|VLLM|VERL|HF_HUB|HF_DATASETS|TORCH|PYTORCH|SWANLAB|WANDB|TQ)_\w+|HF_HOME|HF_ENDPOINT"
    r"|CLEARML_\w+|TENSORBOARD_DIR|TRANSFORMERS_OFFLINE|MLFLOW_TRACKING_URI|SAVE_ON_TERM|(?i:(https?|all|no)_proxy)"
)
SECRETS = re.compile(
    r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL|WEBHOOK|(^|_)(PASS|PASSWD|PASSPHRASE|PWD|AUTH|AUTHORIZATION)(_|$)",
    re.IGNORECASE,
)
# http://user:password@proxy:3128, https://host/send?access_token=...
PASSWORD_IN_URL = re.compile(r":\S*@|[?&][^=&\s]*(key|token|secret|passw|auth|sig)[^=&\s]*=", re.IGNORECASE)
PATH_SETTINGS = re.compile(r"HF_HOME|HF_\w+_CACHE|MLFLOW_TRACKING_URI|\w+_(DIR|FILE|HOME|PATH|ROOT)")
NO_PATH = re.compile(r"\w+://.*|databricks|true|false|\d*", re.IGNORECASE)  # VLLM_..._PATH=1 is a switch
HUB_KEYS = re.compile(r"(.*\.)?(model\.\w+|\w*(model|tokenizer)_path)")


def job_environment(recipe: Recipe, environment: Mapping[str, str], arguments: Sequence[str] = ()) -> dict[str, str]:
    """The variables as the job must see them: relative paths, defaults too, would point into the unpacked copy.

    arguments: overrides of the command line, which may name the model that the run folder is called after.
    Raises UserError for a path of a user that is not known here.
    """
    defaults = yaml.safe_load((settings.CONF / f"{recipe.name}.yaml").read_text())
    ours = {variable.name for variable in VARIABLES}  # read without the space around them, and unset where empty
    values = {name: value.strip() for name, value in environment.items() if name in ours and value.strip()}
    for name, value in environment.items():
        if _is_setting(name) and not PASSWORD_IN_URL.search(value):
            is_path = PATH_SETTINGS.fullmatch(name) and not NO_PATH.fullmatch(value)
            values[name] = _absolute(name, value) if is_path else value
    known = {variable.name for variable in VARIABLES if variable.keys_of(recipe)}
    for name, key in PATHS.items():
        section, entry = key.split(".")
        default = defaults.get(section, {}).get(entry)
        if name == "SAVE_PATH" and not values.get(name):
            config = settings.compose_files(recipe, arguments, environment=environment)
            model = OmegaConf.select(config, recipe.requirements.model_key)
            default = f"checkpoints/{recipe.name}/{Path(model).name}"
        if name in known and (values.get(name) or default):
            values[name] = _absolute(name, values.get(name) or default)
    if values.get("MODEL_PATH") and not _is_hub_id(values["MODEL_PATH"]):
        values["MODEL_PATH"] = _absolute("MODEL_PATH", values["MODEL_PATH"])
    return values


def withheld(environment: Mapping[str, str]) -> list[str]:
    """Settings that stay behind because their value holds a password."""
    return [name for name, value in environment.items() if _is_setting(name) and PASSWORD_IN_URL.search(value)]


def _is_setting(name: str) -> bool:
    return bool(SETTINGS.fullmatch(name)) and not SECRETS.search(name)


def _absolute(name: str, text: str) -> str:
    if text.startswith("file:"):  # MLflow's; with two slashes it is an address
        return "file:" + _absolute(name, text.removeprefix("file:"))
    expanded = os.path.expanduser(text)
    if expanded.startswith("~"):
        raise UserError(f"{name}={text}: there is no such user here: give an absolute path")
    return os.path.abspath(expanded)


def _is_hub_id(text: str) -> bool:
    """organisation/name, and nothing here goes by that name."""
    return text.count("/") == 1 and text[0] not in "./~" and not Path(text.split("/")[0]).is_dir()


def refuse_relative_paths(recipe: Recipe, arguments: Sequence[str]) -> None:
    """Raise UserError for an override that names a file relative to a folder that the job does not have.

    And for one of the run folder: stop files are put where SAVE_PATH says.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    path_keys = {
        key for variable in VARIABLES if variable.name in (*PATHS, "MODEL_PATH") for key in variable.keys_of(recipe)
    }
    parser = OverridesParser.create()
    for argument in arguments:
        try:
            override = parser.parse_override(argument)
        except HydraException as error:
            raise UserError(f"{argument}: {str(error).splitlines()[0]}") from error
        for key, value in _leaves(override.key_or_group, override.value()):
            if key == PATHS["SAVE_PATH"]:
                raise UserError(f"{argument}: set SAVE_PATH instead, which the submitter reads too")
            is_path = key in path_keys or key.endswith((".path", "_dir", "_path", "_file", "_files"))
            if not is_path or not isinstance(value, str) or value in ("", "null"):
                continue
            is_absolute = value.startswith(("/", "${")) or "://" in value
            if not is_absolute and not (HUB_KEYS.fullmatch(key) and _is_hub_id(value)):
                raise UserError(f"{argument}: a relative path means nothing on the cluster: give an absolute one")


def _leaves(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of everything an override sets."""
    from hydra.core.override_parser.types import ChoiceSweep

    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _leaves(f"{key}.{name}", inner)
    elif isinstance(value, (list, ChoiceSweep)):
        for inner in value if isinstance(value, list) else value.list:
            yield from _leaves(key, inner)
    else:
        yield key, value


def runtime_environment(
    recipe: Recipe, environment: Mapping[str, str], reward: str = "", arguments: Sequence[str] = ()
) -> dict[str, Any]:
    """runtime_env.yaml with this folder as what is uploaded, and the caller's variables.

    reward: `convrec.reward`; the package or module of one of the user's own is uploaded too.
    """
    runtime_env = yaml.safe_load((HERE / "runtime_env.yaml").read_text())
    runtime_env["working_dir"] = str(HERE)
    runtime_env["env_vars"] = {**(runtime_env.get("env_vars") or {}), **job_environment(recipe, environment, arguments)}
    if user_rewards.is_user_reward(reward):
        _upload_too(runtime_env, user_rewards.own_sources(reward))
    return runtime_env


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
