"""Check that a run folder holds the run of these settings, with the same data and the same starting model."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

import yaml

from convrec.base.errors import UserError
from convrec.base.files import file_hash
from convrec.base.kinds import to_yaml_scalar
from convrec.base.same_request import differences, digest
from convrec.checkpoints import hub
from convrec.checkpoints.files import fingerprint
from convrec.runs.folder import read_config, setting
from convrec.settings.run import Run
from convrec.settings.training import TrainingConfig
from recipes.launch.settings import to_yaml

# Settings that may change when a run is resumed: its place, its trackers, its watchdog and its devices.
_UNRELATED_TO_TRAINING = (
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
    """Hash the model and the data of a run.

    Returns:
        Key of the config -> digest of the files that it names, or the id of a model of the Hub, which is not hashed.

    Raises:
        OSError: a file cannot be read.
    """
    model = run.settings.model
    is_folder = hub.is_folder(model)
    digests = {run.model_key: fingerprint(Path(model).expanduser()) if is_folder else model}
    for key, files in run.files.items():
        digests[key] = digest([file_hash(file) for file in files])
    return digests


def compare_with_folder(run: Run[TrainingConfig], run_folder: Path) -> list[str]:
    """Compare a run with the config in its folder.

    Models and data files are compared by their contents, not by their paths.

    Returns:
        A warning for each setting and each data file that has changed.

    Raises:
        UserError: the folder's checkpoints have another recipe, algorithm or starting model.
    """
    before: dict[str, Any] = read_config(run_folder)
    if not before:
        return []
    now: Any = yaml.safe_load(to_yaml(run.verl_config))  # as a config that was read from a file
    contents_before = setting(before, "run.contents") or {}
    contents_now = setting(now, "run.contents") or {}
    same = {key for key, digest_ in contents_before.items() if digest_ == contents_now.get(key)}
    changed = [key for key in contents_before if key not in same and setting(before, key) == setting(now, key)]
    _refuse_another_run(run, run_folder, before, now, same, changed)
    return [
        *(f"{run_folder} resumes with a changed setting: {text}" for text in _find_changes(before, now, same)),
        *(f"{run_folder} resumes with changed data: {setting(now, key)} ({key})" for key in changed),
    ]


def _find_changes(before: dict[str, Any], now: dict[str, Any], same: Collection[str]) -> list[str]:
    """Return `KEY: BEFORE -> NOW` for each changed setting, ours or verl's.

    Args:
        before: config of the checkpoints' run.
        now: config of the new start.
        same: keys whose files have unchanged contents.
    """
    values_before = _flatten(before)
    values_now = _flatten(now)
    # a key in only one of them was added or removed by another version of convrec or verl
    keys = sorted(values_before.keys() & values_now.keys())
    return [
        f"{key}: {to_yaml_scalar(values_before[key])} -> {to_yaml_scalar(values_now[key])}"
        for key in keys
        if key not in same and _affects_training(key) and values_before[key] != values_now[key]
    ]


def _flatten(section: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of a nested config by their dotted keys; a list is a value."""
    values: dict[str, Any] = {}
    for name, value in section.items():
        key = f"{prefix}{name}"
        if isinstance(value, dict):
            values |= _flatten(value, f"{key}.")
        else:
            values[key] = value
    return values


def _affects_training(key: str) -> bool:
    return not any(key == other or key.startswith(f"{other}.") for other in _UNRELATED_TO_TRAINING)


def _refuse_another_run(
    run: Run[TrainingConfig],
    run_folder: Path,
    before: dict[str, Any],
    now: dict[str, Any],
    same: Collection[str],
    changed: Collection[str],
) -> None:
    """Raise UserError if the folder's checkpoints have another recipe, algorithm or starting model.

    Args:
        run: the new start.
        run_folder: the folder with the checkpoints.
        before: config of the checkpoints' run.
        now: config of the new start, as plain values.
        same: keys whose files have unchanged contents.
        changed: keys whose files have changed contents at the same path.
    """
    keys = {"recipe": "run.recipe", "algorithm": "run.algorithm", "model": run.model_key}
    keys = {name: key for name, key in keys.items() if key not in same}
    changes = differences(
        {name: setting(before, key) for name, key in keys.items()},
        {name: setting(now, key) for name, key in keys.items()},
    )
    if run.model_key in changed:
        changes.append(f"the files of the model {run.settings.model} have changed")
    if changes:
        raise UserError(
            "launch.another-run",
            f"{run_folder} holds the checkpoints of another run: {'; '.join(changes)}. Choose another SAVE_PATH, or "
            f"move the folder away. If the model was only moved, remove {run_folder / 'config.yaml'}",
        )
