"""verl's settings that the variables set or that checks compute with: what each may be. The rest is verl's to check."""

from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from convrec import kinds
from convrec.errors import UserError
from convrec.kinds import (
    FRACTION,
    INTEGER,
    NON_NEGATIVE_NUMBER,
    PATH,
    POSITIVE_INTEGER,
    Kind,
)
from recipes.launch.recipe import Recipe
from recipes.launch.variables import TRACKERS, VARIABLES

VERL_TRACKERS = (*TRACKERS, "vemlp_wandb", "rl_insight")


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


LOGGER = Kind(
    f"one or several of {', '.join(VERL_TRACKERS)}",
    lambda value: all(isinstance(name, str) and name in VERL_TRACKERS for name in _listed(value)),
)
FILES = Kind("a path or several", lambda value: all(PATH.fits(path) for path in _listed(value)))
SEED = Kind("an integer from 0 to 2147483647", lambda value: INTEGER.fits(value) and 0 <= value < 2**31)
SAVE_FREQ = Kind(  # verl's RL saves nothing, the last step included, where it is not positive
    "a positive number of steps; one above the run's steps saves the last step alone", POSITIVE_INTEGER.fits
)
RESUME_MODE = Kind(
    "auto; SAVE_PATH decides what is resumed: another one starts anew, with MODEL_PATH=RUN/global_step_N from a step",
    lambda value: value == "auto",
)

EVERY: Mapping[str, Kind] = {
    "trainer.nnodes": POSITIVE_INTEGER,
    "trainer.n_gpus_per_node": POSITIVE_INTEGER,
    "trainer.total_epochs": POSITIVE_INTEGER,
    "trainer.total_training_steps": POSITIVE_INTEGER.or_null(),
    "trainer.save_freq": SAVE_FREQ,
    "trainer.test_freq": INTEGER,
    "trainer.default_local_dir": PATH.or_null(),
    "trainer.logger": LOGGER,
    "trainer.resume_mode": RESUME_MODE,
    "data.train_files": FILES.or_null(),
    "data.val_files": FILES.or_null(),
    "data.seed": SEED,
}
SFT: Mapping[str, Kind] = {
    "model.path": PATH,
    "trainer.max_ckpt_to_keep": POSITIVE_INTEGER.or_null(),
    "trainer.seed": SEED,
    "data.train_batch_size": POSITIVE_INTEGER.or_null(),
    "data.max_length": POSITIVE_INTEGER,
    "data.max_token_len_per_gpu": POSITIVE_INTEGER,
    "optim.lr": NON_NEGATIVE_NUMBER,
    "optim.lr_warmup_steps_ratio": NON_NEGATIVE_NUMBER,
}
RL: Mapping[str, Kind] = {
    "actor_rollout_ref.model.path": PATH,
    "trainer.max_actor_ckpt_to_keep": POSITIVE_INTEGER.or_null(),
    "data.train_batch_size": POSITIVE_INTEGER,
    "data.max_prompt_length": POSITIVE_INTEGER,
    "data.max_response_length": POSITIVE_INTEGER,
    "actor_rollout_ref.actor.optim.lr": NON_NEGATIVE_NUMBER,
    "actor_rollout_ref.actor.kl_loss_coef": NON_NEGATIVE_NUMBER,
    "actor_rollout_ref.actor.ppo_epochs": POSITIVE_INTEGER,
    "actor_rollout_ref.actor.ppo_mini_batch_size": POSITIVE_INTEGER,
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu": POSITIVE_INTEGER,
    "actor_rollout_ref.rollout.n": POSITIVE_INTEGER,
    "actor_rollout_ref.rollout.tensor_model_parallel_size": POSITIVE_INTEGER,
    "actor_rollout_ref.rollout.gpu_memory_utilization": FRACTION,
}


def kinds_of(recipe: Recipe) -> Mapping[str, Kind]:
    """Key -> what it may be, in this recipe."""
    return {**EVERY, **(SFT if "sft" in recipe.variables else RL)}


def check(config: DictConfig, recipe: Recipe) -> None:
    """Raise UserError, with the key, its variable, its value and what is expected, for a value of another kind."""
    variables = {key: variable.name for variable in VARIABLES for key in variable.keys_of(recipe)}
    for key, kind in kinds_of(recipe).items():
        value = _value(config, key)
        if not kind.fits(value):
            variable = f" ({variables[key]})" if key in variables else ""
            raise UserError(f"{key}={kinds.shown(value)}{variable}: expected {kind.wanted}")


def _value(config: DictConfig, key: str) -> Any:
    section = key.partition(".")[0]
    try:
        if not OmegaConf.is_dict(config[section]):
            value = kinds.shown(config[section])
            raise UserError(f"{section}={value}: it is a section: set what is below it, {key} say")
        value = OmegaConf.select(config, key)
    except OmegaConfBaseException as error:  # ${NAME} of something that is no setting
        raise UserError(f"{key}: {str(error).splitlines()[0]}") from error
    return OmegaConf.to_container(value) if OmegaConf.is_config(value) else value
