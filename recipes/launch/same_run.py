"""Is what lies in a run folder the run that these settings ask for, with the data and the model of then?"""

from collections.abc import Collection
from pathlib import Path
from typing import Any

import yaml

from convrec.base.errors import UserError
from convrec.base.files import file_hash
from convrec.base.kinds import shown
from convrec.base.same_request import differences, digest
from convrec.checkpoints import hub
from convrec.checkpoints.files import fingerprint
from convrec.runs.folder import read_config, setting
from convrec.settings.run import Run
from convrec.settings.training import TrainingConfig
from recipes.launch.settings import as_yaml

# Where a run is, by what and how long it is watched, and on how many devices it trains leave it what it is.
_TRAINS_NOTHING = (
    "convrec.watchdog",
    "convrec.watchdog_seconds",
    "ray_kwargs",
    "run",
    "trainer.default_local_dir",
    "trainer.experiment_name",
    "trainer.logger",
    "trainer.n_gpus_per_node",
    "trainer.nnodes",
    "trainer.project_name",
)


def digest_contents(run: Run[TrainingConfig]) -> dict[str, str]:
    """Return key of the config -> digest of the files that it names; of a model of the Hub its id."""
    model = run.settings.model
    is_folder = hub.is_folder(model)
    digests = {run.model_key: fingerprint(Path(model).expanduser()) if is_folder else model}
    for key, files in run.files.items():
        digests[key] = digest([file_hash(file) for file in files])
    return digests


def compare_with_folder(run: Run[TrainingConfig], run_folder: Path) -> list[str]:
    """Compare a run with what its folder holds, where that has checkpoints.

    A model and data are the same in another place, and others in the same place, where their contents are.

    Returns:
        A warning for each setting, and for data, that the run was not started with.

    Raises:
        UserError: another recipe, algorithm or starting model; the checkpoints are those of another run.
    """
    before: dict[str, Any] = read_config(run_folder)
    if not before:
        return []
    now: Any = yaml.safe_load(as_yaml(run.verl_config))  # as it will be read from the file
    contents_before = setting(before, "run.contents") or {}
    contents_now = setting(now, "run.contents") or {}
    same = {key for key, digest_ in contents_before.items() if digest_ == contents_now.get(key)}
    changed = [key for key in contents_before if key not in same and setting(before, key) == setting(now, key)]
    _refuse_another_run(run, run_folder, before, now, same, changed)
    return [
        *(f"{run_folder} resumes with another setting: {text}" for text in _changed_settings(before, now, same)),
        *(f"{run_folder} resumes with other data: {setting(now, key)} has changed since ({key})" for key in changed),
    ]


def _changed_settings(before: dict[str, Any], now: dict[str, Any], same: Collection[str]) -> list[str]:
    """Return `KEY: BEFORE -> NOW` for each setting, ours or verl's, that the run was started with and has changed.

    Args:
        before: config of the run that the checkpoints are of.
        now: config of the run that is asked for.
        same: keys whose files have the same contents as then.
    """
    values_before = _values_by_key(before)
    values_now = _values_by_key(now)
    # what only one of them has came, or went, with another version of this program or of verl
    keys = sorted(values_before.keys() & values_now.keys())
    return [
        f"{key}: {shown(values_before[key])} -> {shown(values_now[key])}"
        for key in keys
        if key not in same and _trains_something(key) and values_before[key] != values_now[key]
    ]


def _values_by_key(section: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of a nested config by their dotted keys; a list is a value."""
    values: dict[str, Any] = {}
    for name, value in section.items():
        key = f"{prefix}{name}"
        if isinstance(value, dict):
            values |= _values_by_key(value, f"{key}.")
        else:
            values[key] = value
    return values


def _trains_something(key: str) -> bool:
    return not any(key == other or key.startswith(f"{other}.") for other in _TRAINS_NOTHING)


def _refuse_another_run(
    run: Run[TrainingConfig],
    run_folder: Path,
    before: dict[str, Any],
    now: dict[str, Any],
    same: Collection[str],
    changed: Collection[str],
) -> None:
    """Raise UserError where the folder holds checkpoints of another recipe, algorithm or starting model.

    Args:
        run: that is asked for.
        run_folder: with the checkpoints.
        before: config of the run that they are of.
        now: its config as plain values.
        same: keys whose files have the same contents as then.
        changed: keys that name the same place as then, with other contents.
    """
    keys = {"recipe": "run.recipe", "algorithm": "run.algorithm", "model": run.model_key}
    compared = {name: key for name, key in keys.items() if key not in same}
    other = differences(
        {name: setting(before, key) for name, key in compared.items()},
        {name: setting(now, key) for name, key in compared.items()},
    )
    if run.model_key in changed:
        other.append(f"the files of the model {run.settings.model} have changed")
    if other:
        raise UserError(
            f"{run_folder} holds the checkpoints of another run: {'; '.join(other)}. Choose another SAVE_PATH, or move "
            f"the folder away. If it is the same model in another place, remove {run_folder / 'config.yaml'}"
        )
