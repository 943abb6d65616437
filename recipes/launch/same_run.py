"""Is what lies in a run folder the run that these settings ask for, with the data and the model of then?"""

from collections.abc import Collection
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from convrec.checkpoints import hub
from convrec.checkpoints.files import fingerprint
from convrec.errors import UserError
from convrec.files import file_hash
from convrec.runs.card import SETTINGS
from convrec.runs.folder import listed, read_config, setting
from convrec.same_request import differences, digest
from recipes.planning.work import FILE_KEYS, model_key, model_of

# a folder that moves, more steps or other devices leave a run what it is
_TRAINS_NOTHING = {"watchdog", "watchdog_seconds"}


def contents(config: DictConfig) -> dict[str, str]:
    """Key of the config -> digest of the files it names, for `run.contents`; of a model of the Hub its id."""
    model = model_of(config)
    found = {model_key(config): model if not hub.is_folder(model) else fingerprint(Path(model).expanduser())}
    for key in FILE_KEYS:
        if files := listed(OmegaConf.select(config, key)):
            found[key] = digest([file_hash(file) for file in files])
    return found


def changes(config: DictConfig, run_folder: Path) -> list[str]:
    """Compare a run with what its folder holds, where that has checkpoints.

    A model and data are the same in another place, and others in the same place, where their contents are.

    Returns:
        Warnings for settings and data that the run was not started with.

    Raises:
        UserError: another recipe, algorithm or starting model; the checkpoints are those of another run.
    """
    before: dict[str, Any] = read_config(run_folder)
    now: Any = OmegaConf.to_container(config)
    if not before:
        return []
    contents_before = setting(before, "run.contents") or {}
    contents_now = setting(now, "run.contents") or {}
    same = {key for key, digest_ in contents_before.items() if digest_ == contents_now.get(key)}
    changed = [key for key in contents_before if key not in same and setting(before, key) == setting(now, key)]
    _refuse_another_run(config, run_folder, before, now, same, changed)

    ours = [f"convrec.{name}" for name in now["convrec"] if name not in _TRAINS_NOTHING]
    keys = [key for key in ("data.train_files", *SETTINGS, *ours) if _has(before, key) and key not in same]
    settings_before = {key: setting(before, key) for key in keys}
    settings_now = {key: setting(now, key) for key in keys}
    return [
        *(f"{run_folder} goes on with other settings: {text}" for text in differences(settings_before, settings_now)),
        *(f"{run_folder} goes on with other data: {setting(now, key)} has changed since ({key})" for key in changed),
    ]


def _refuse_another_run(
    config: DictConfig,
    run_folder: Path,
    before: dict[str, Any],
    now: dict[str, Any],
    same: Collection[str],
    changed: Collection[str],
) -> None:
    """Raise UserError where the folder holds checkpoints of another recipe, algorithm or starting model.

    Args:
        config: of the run that is asked for.
        run_folder: with the checkpoints.
        before: config of the run that they are of.
        now: `config` as plain values.
        same: keys whose files have the same contents as then.
        changed: keys that name the same place as then, with other contents.
    """
    keys = {"recipe": "run.recipe", "algorithm": "run.algorithm", "model": model_key(config)}
    compared = {name: key for name, key in keys.items() if key not in same}
    other = differences(
        {name: setting(before, key) for name, key in compared.items()},
        {name: setting(now, key) for name, key in compared.items()},
    )
    if model_key(config) in changed:
        other.append(f"the files of the model {model_of(config)} have changed")
    if other:
        raise UserError(
            f"{run_folder} holds the checkpoints of another run: {'; '.join(other)}. Choose another SAVE_PATH, or move "
            f"the folder away. If it is the same model in another place, remove {run_folder / 'config.yaml'}"
        )


def _has(config: dict[str, Any], key: str) -> bool:
    section, _, name = key.rpartition(".")
    return name in (setting(config, section) or {})
