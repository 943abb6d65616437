"""Is what lies in a run folder the run that these settings ask for?"""

from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from convrec.errors import UserError
from convrec.runs.card import SETTINGS
from convrec.runs.folder import read_config, setting
from convrec.same_request import differences

# a folder that moves, more steps or other devices leave a run what it is
_TRAINS_NOTHING = {"watchdog", "watchdog_seconds"}


def changes(config: DictConfig, run_folder: Path, model_key: str) -> list[str]:
    """Warnings for settings that a run with checkpoints was not started with.

    Raises UserError for another recipe, algorithm or starting model: its checkpoints are those of another run.
    """
    before: dict[str, Any] = read_config(run_folder)
    now: Any = OmegaConf.to_container(config)
    if not before:
        return []
    identity = {"recipe": "run.recipe", "algorithm": "run.algorithm", "model": model_key}
    noted, asked_for = ({name: setting(one, key) for name, key in identity.items()} for one in (before, now))
    if other := differences(noted, asked_for):
        raise UserError(
            f"{run_folder} holds the checkpoints of another run: {'; '.join(other)}. Choose another SAVE_PATH, or move "
            f"the folder away. If it is the same model in another place, remove {run_folder / 'config.yaml'}"
        )
    ours = [f"convrec.{name}" for name in now["convrec"] if name not in _TRAINS_NOTHING]
    keys = [key for key in ("data.train_files", *SETTINGS, *ours) if _has(before, key)]
    trained, goes_on = ({key: setting(one, key) for key in keys} for one in (before, now))
    return [f"{run_folder} goes on with other settings: {text}" for text in differences(trained, goes_on)]


def _has(config: dict[str, Any], key: str) -> bool:
    section, _, name = key.rpartition(".")
    return name in (setting(config, section) or {})
