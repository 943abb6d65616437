"""Is what lies in a run folder the run that these settings ask for?"""

from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from convrec.errors import UserError
from convrec.runs.folder import read_config, recipe_of, setting

# what a run is trained by, besides `convrec`; a place that moves, more steps or other devices leave a run what it is
_TRAINED_BY = (
    "data.train_files",
    "data.train_batch_size",
    "data.max_length",
    "data.max_prompt_length",
    "data.max_response_length",
    "data.seed",
    "optim.lr",
    "actor_rollout_ref.actor.optim.lr",
    "actor_rollout_ref.actor.ppo_epochs",
    "actor_rollout_ref.actor.kl_loss_coef",
    "actor_rollout_ref.rollout.n",
)
_TRAINS_NOTHING = {"watchdog", "watchdog_seconds"}


def changes(config: DictConfig, run_folder: Path, model_key: str) -> list[str]:
    """Warnings for settings that a run with checkpoints was not started with.

    Raises UserError for another recipe, algorithm or starting model: its checkpoints are those of another run.
    """
    before: dict[str, Any] = read_config(run_folder)
    now: Any = OmegaConf.to_container(config)
    if not before:
        return []
    is_noted = "run" in before  # version 0.1 did not name the algorithm
    of_another: dict[str, tuple[Any, Any]] = {
        "recipe": (recipe_of(before), setting(now, "run.recipe")),
        "algorithm": (setting(before, "run.algorithm"), setting(now, "run.algorithm")) if is_noted else (None, None),
        "model": (setting(before, model_key), setting(now, model_key)),
    }
    if other := [f"{name} {was}, not {is_now}" for name, (was, is_now) in of_another.items() if was != is_now]:
        raise UserError(
            f"{run_folder} holds the checkpoints of another run: {'; '.join(other)}. Choose another SAVE_PATH, or move "
            f"the folder away. If it is the same model in another place, remove {run_folder / 'config.yaml'}"
        )
    ours = [f"convrec.{name}" for name in now["convrec"] if name not in _TRAINS_NOTHING]
    return [
        f"{run_folder} was started with {key}={was} and goes on with {setting(now, key)}"
        for key in [*_TRAINED_BY, *ours]
        if _has(before, key) and (was := setting(before, key)) != setting(now, key)
    ]


def _has(config: dict[str, Any], key: str) -> bool:
    section, _, name = key.rpartition(".")
    return name in (setting(config, section) or {})
