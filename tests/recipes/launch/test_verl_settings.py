"""What verl's settings may be is checked once a config is composed, before anything computes with it: one line."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from convrec.errors import UserError
from recipes.launch import verl_settings
from recipes.launch.recipe import RECIPES
from recipes.launch.settings import compose_files
from recipes.launch.variables import VARIABLES

NO_VARIABLES: Mapping[str, str] = {}


@pytest.fixture(scope="module")
def composed() -> dict[str, DictConfig]:
    names = ("sft", "rank_grpo", "judge_pairwise")
    return {name: compose_files(RECIPES[name], [], environment=NO_VARIABLES) for name in names}


@pytest.fixture
def refused(composed: dict[str, DictConfig]) -> Callable[..., str]:
    def message(recipe: str, key: str, value: Any) -> str:
        config = deepcopy(composed[recipe])
        OmegaConf.update(config, key, value, force_add=True)
        with pytest.raises(UserError) as error:
            verl_settings.check(config, RECIPES[recipe])
        assert "\n" not in str(error.value)
        return str(error.value)

    return message


@pytest.mark.parametrize("recipe", ["rank_grpo", "judge_pairwise"])
@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("actor_rollout_ref.actor.optim.lr", "abc", "=abc (LR): expected a number of at least 0"),
        ("actor_rollout_ref.actor.optim.lr", -1, "=-1 (LR): expected a number of at least 0"),
        ("actor_rollout_ref.actor.kl_loss_coef", "abc", "=abc (KL_LOSS_COEF): expected a number of at least 0"),
        ("actor_rollout_ref.actor.ppo_epochs", 0, "=0 (MU): expected a positive integer"),
        ("actor_rollout_ref.actor.ppo_mini_batch_size", 0, "=0: expected a positive integer"),
        ("actor_rollout_ref.rollout.n", 2.5, "=2.5 (ROLLOUT_N): expected a positive integer"),
        ("actor_rollout_ref.rollout.tensor_model_parallel_size", 0, "=0 (TENSOR_PARALLEL): expected a positive"),
        ("trainer.max_actor_ckpt_to_keep", -1, "=-1 (SAVE_KEEP): expected a positive integer, or null"),
        ("data.train_batch_size", "abc", "=abc (TRAIN_BATCH_SIZE): expected a positive integer"),
        ("data.train_batch_size", -4, "=-4 (TRAIN_BATCH_SIZE): expected a positive integer"),
        ("data.max_prompt_length", "abc", "=abc (MAX_PROMPT_LENGTH): expected a positive integer"),
    ],
)
def test_a_value_of_another_kind_in_rl(
    refused: Callable[..., str], recipe: str, key: str, value: Any, said: str
) -> None:
    assert refused(recipe, key, value).startswith(key + said)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("optim.lr", "abc", "=abc (LR): expected a number of at least 0"),
        ("trainer.max_ckpt_to_keep", -1, "=-1 (SAVE_KEEP): expected a positive integer, or null"),
        ("trainer.max_ckpt_to_keep", 0, "=0 (SAVE_KEEP): expected a positive integer, or null"),
        ("data.max_length", "abc", "=abc (MAX_LENGTH): expected a positive integer"),
        ("data.train_batch_size", 0, "=0 (TRAIN_BATCH_SIZE): expected a positive integer, or null"),
        # of every recipe
        ("data.seed", "abc", "=abc (SEED): expected an integer from 0 to 2147483647"),
        ("trainer.total_training_steps", -3, "=-3 (TOTAL_STEPS): expected a positive integer, or null"),
        ("trainer.total_epochs", "abc", "=abc (TOTAL_EPOCHS): expected a positive integer"),
        ("trainer.save_freq", True, "=true (SAVE_FREQ): expected a positive number of steps"),
        ("trainer.nnodes", 0, "=0 (N_NODES): expected a positive integer"),
        ("trainer.n_gpus_per_node", 0, "=0 (N_GPUS_PER_NODE): expected a positive integer"),
        ("trainer.logger", None, "=null (LOGGER): expected one or several of console, file"),
        ("trainer.logger", ["tensorbord"], "=['tensorbord'] (LOGGER): expected one or several of console, file"),
        ("trainer.resume_mode", "disable", "=disable: expected auto; SAVE_PATH decides what is resumed"),
        ("trainer.default_local_dir", "${NOWHERE}/x", ": Interpolation key 'NOWHERE' not found"),
        ("trainer", 5, "=5: it is a section: set what is below it, trainer.nnodes say"),
    ],
)
def test_a_value_of_another_kind_in_sft(refused: Callable[..., str], key: str, value: Any, said: str) -> None:
    assert refused("sft", key, value).startswith(key + said)


def test_composing_checks_before_anything_uses_a_value() -> None:
    for override, said in (
        ("trainer.total_epochs=abc", r"trainer\.total_epochs=abc \(TOTAL_EPOCHS\): expected"),
        ("data=null", "settings: Config group override"),
        ("convrec.catalog_file=${NOWHERE}", "convrec: Interpolation key 'NOWHERE' not found"),
    ):
        with pytest.raises(UserError, match=said):
            compose_files(RECIPES["rank_grpo"], [override], environment=NO_VARIABLES)


def test_what_verl_takes_passes(composed: dict[str, DictConfig]) -> None:
    for key, value in (("trainer.logger", "tensorboard"), ("trainer.test_freq", -1), ("optim.lr", 0)):
        config = deepcopy(composed["sft"])
        OmegaConf.update(config, key, value)
        verl_settings.check(config, RECIPES["sft"])


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_every_key_of_a_variable_is_checked(recipe: Any) -> None:
    keys = {key for variable in VARIABLES for key in variable.keys_of(recipe)} - {"algorithm_preset"}
    assert {key for key in keys if not key.startswith("convrec.")} <= set(verl_settings.kinds_of(recipe))
