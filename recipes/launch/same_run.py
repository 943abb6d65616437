"""Is what lies in a run folder the run that these settings ask for, with the data and the model of then?"""

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
    """Warnings for settings and data that a run with checkpoints was not started with. A model and data are the same
    in another place, and others in the same one, where their contents are.

    Raises UserError for another recipe, algorithm or starting model: its checkpoints are those of another run.
    """
    before: dict[str, Any] = read_config(run_folder)
    now: Any = OmegaConf.to_container(config)
    if not before:
        return []
    were, are = (setting(one, "run.contents") or {} for one in (before, now))
    same = {key for key in were if were[key] == are.get(key)}
    changed = [key for key in were if key not in same and setting(before, key) == setting(now, key)]
    identity = {"recipe": "run.recipe", "algorithm": "run.algorithm", "model": model_key(config)}
    noted, asked_for = (
        {name: setting(one, key) for name, key in identity.items() if key not in same} for one in (before, now)
    )
    other = differences(noted, asked_for)
    if model_key(config) in changed:
        other.append(f"the files of the model {model_of(config)} have changed")
    if other:
        raise UserError(
            f"{run_folder} holds the checkpoints of another run: {'; '.join(other)}. Choose another SAVE_PATH, or move "
            f"the folder away. If it is the same model in another place, remove {run_folder / 'config.yaml'}"
        )
    ours = [f"convrec.{name}" for name in now["convrec"] if name not in _TRAINS_NOTHING]
    keys = [key for key in ("data.train_files", *SETTINGS, *ours) if _has(before, key) and key not in same]
    trained, goes_on = ({key: setting(one, key) for key in keys} for one in (before, now))
    return [
        *(f"{run_folder} goes on with other settings: {text}" for text in differences(trained, goes_on)),
        *(f"{run_folder} goes on with other data: {setting(now, key)} has changed since ({key})" for key in changed),
    ]


def _has(config: dict[str, Any], key: str) -> bool:
    section, _, name = key.rpartition(".")
    return name in (setting(config, section) or {})
