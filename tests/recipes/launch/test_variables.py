"""Each variable reaches the config of every recipe that reads it; wrong values and misspelt names are reported.

Variables of an everyday environment give no warning.
"""

import os
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from recipes.launch import settings
from recipes.launch.recipe import RANK_GRPO, RECIPES, SFT
from recipes.launch.variables import OTHER_NAMES, VARIABLES, find_misspelt_variables, overrides_from_environment
from tests.user_errors import refuses

PARTS = {"relevance": 1.0, "diversity.title": 0.5, "catalog.price (EUR)": -0.1}
# variable -> (text, value in the config), not the default. Paths hold characters of Hydra's grammar.
VALUES: dict[str, tuple[str, Any]] = {
    "MODEL_PATH": ("someone/a-model", "someone/a-model"),
    "TRAIN_FILE": ("/data/it's,a=file[1].parquet", "/data/it's,a=file[1].parquet"),
    "VAL_FILE": ("relative/val.parquet", os.path.abspath("relative/val.parquet")),
    "CATALOG_FILE": ("~/catalog.parquet", os.path.expanduser("~/catalog.parquet")),
    "SAVE_PATH": ("/runs/with space/a\\b\\'c\\\\", "/runs/with space/a\\b\\'c\\\\"),
    "SAVE_FREQ": ("5", 5),
    "TEST_FREQ": ("7", 7),
    "SAVE_KEEP": ("2", 2),
    "N_GPUS_PER_NODE": ("3", 3),
    "N_NODES": ("5", 5),
    "TENSOR_PARALLEL": ("11", 11),
    "GPU_MEMORY_UTILIZATION": ("00.61", 0.61),
    "TRAIN_BATCH_SIZE": ("120", 120),
    "ROLLOUT_N": ("13", 13),
    "LR": ("03e-4", 3e-4),
    "KL_LOSS_COEF": ("0", 0),
    "MU": ("4", 4),
    "REWARD": ("log_decay", "log_decay"),
    "REWARDS": ("relevance: 1, diversity.title: 0.5, catalog.price (EUR): -.1", PARTS),
    "ALGORITHM": ("gspo", "gspo"),
    "REPAIR": ("zero", "zero"),
    "ASK": ("genre,decade", ["genre", "decade"]),
    "MAX_TURNS": ("2", 2),
    "ASK_COST": (".1", 0.1),
    "PRESET": ("reference", "reference"),
    "CONSTRAINED": ("1", True),
    "NUM_ITEMS": ("10", 10),
    "CANDIDATES": ("50", 50),
    "TOTAL_EPOCHS": ("17", 17),
    "TOTAL_STEPS": ("19", 19),
    "MAX_PROMPT_LENGTH": ("333", 333),
    "MAX_RESPONSE_LENGTH": ("444", 444),
    "MAX_LENGTH": ("555", 555),
    "LOGGER": ("console, tensorboard", ["console", "tensorboard", "file"]),
    "WATCHDOG": ("off", "off"),
    "SEED": ("42", 42),
}
GROUPS = {"algorithm_preset": "actor_rollout_ref.actor.policy_loss.loss_mode"}  # a group is seen by what it sets


@pytest.fixture(scope="module")
def with_all_set(node: pytest.MonkeyPatch, defaults: dict[str, DictConfig]) -> dict[str, DictConfig]:
    with pytest.MonkeyPatch.context() as patch:
        for name, (text, _) in VALUES.items():
            patch.setenv(name, text)
        return {recipe: settings.compose(recipe, []).verl_config for recipe in RECIPES}


def test_every_variable_has_a_value_here() -> None:
    assert VALUES.keys() == {variable.name for variable in VARIABLES}


@pytest.mark.parametrize(
    ("name", "recipe", "key"),
    [
        (variable.name, recipe.name, key)
        for variable in VARIABLES
        for recipe in RECIPES.values()
        for key in variable.collect_keys(recipe)
    ],
)  # fmt: skip
def test_variable_reaches_the_config(
    name: str, recipe: str, key: str, defaults: dict[str, DictConfig], with_all_set: dict[str, DictConfig]
) -> None:
    key = GROUPS.get(key, key)
    expected = VALUES[name][1]
    assert OmegaConf.select(with_all_set[recipe], key, throw_on_missing=True) == expected
    assert OmegaConf.select(defaults[recipe], key) != expected, "the value here must not be the default"


@pytest.mark.parametrize(
    ("name", "text", "code", "expected"),
    [
        ("REWARD", "ndcg", "wrong-value", "exp_inf, log_decay, exp_gamma"),
        ("REWARDS", "relevance", "wrong-value", "relevance, diversity"),
        ("REWARDS", "relevance: 1, moon: 1", "wrong-value", "relevance, diversity"),
        ("REWARDS", "relevance: 1, relevance: 2", "wrong-value", "relevance, diversity"),
        ("REWARDS", "{relevance: much}", "wrong-value", "relevance, diversity"),
        ("REWARDS", "catalog.été: 1", "wrong-value", "ASCII"),
        ("SAVE_PATH", "${HOME}/x", "placeholder", "a path"),
        ("MODEL_PATH", "${HOME}/x", "placeholder", "a path"),
        ("ALGORITHM", "ppo", "wrong-value", "rank_grpo, grpo, gspo"),
        ("CONSTRAINED", "yes", "wrong-value", "true or false"),
        ("LOGGER", "console,swanlap", "wrong-value", "swanlab"),
        ("MU", "1.5", "wrong-value", "a positive integer"),
        ("LR", "nan", "wrong-value", "a number of at least 0"),
        ("SAVE_FREQ", "often", "wrong-value", "a positive number of steps"),
        ("SAVE_KEEP", "0", "wrong-value", "a positive integer, or all"),
    ],
)
def test_a_wrong_value_is_named_with_the_expected_kind(name: str, text: str, code: str, expected: str) -> None:
    with refuses(f"variable.{code}", expected) as error:
        overrides_from_environment(RANK_GRPO, {name: text})
    assert str(error.value).startswith(f"{name}={text}: ")


def test_null_may_be_written_in_the_variables_own_word() -> None:
    assert overrides_from_environment(RANK_GRPO, {"SAVE_KEEP": "all"}) == ["trainer.max_actor_ckpt_to_keep=null"]
    assert overrides_from_environment(RANK_GRPO, {"TOTAL_STEPS": "null"}) == ["trainer.total_training_steps=null"]


def test_empty_variable_is_unset_and_other_recipes_are_ignored() -> None:
    assert overrides_from_environment(SFT, {"LR": " ", "MU": "2"}) == []


NAMES = [variable.name for variable in VARIABLES]

# Variables of common training environments whose names are most similar to ours.
USUAL = """
CACHE_DIR CONFIG_FILE CONTAINER_ID CUDA_DEVICE_ORDER DATA_DIR DEBUG ENV_FILE GOPATH GROUP_RANK HF_HOME LOCAL_WORLD_SIZE
LOGNAME LOG_DIR LOG_FILE LOG_LEVEL MANPATH MASTER_PORT MODE MODEL_CACHE MODEL_SERVER_PORT MODEL_SERVICE_HOST MODULEPATH
MODULEPATH_ROOT MODULESHOME NAME NODE_NAME NODE_RANK NPROC_PER_NODE PATH PBS_NODEFILE PID_FILE PYTHONHASHSEED
RAY_AUTH_MODE RAY_TMPDIR RUNNER_TEMP SKYPILOT_NUM_GPUS_PER_NODE SKYPILOT_NUM_NODES SLURM_GPUS_ON_NODE
SLURM_GPUS_PER_NODE SLURM_MEM_PER_NODE SLURM_NNODES SLURM_TASKS_PER_NODE TMUX TOKENIZERS_PARALLELISM
TORCHINDUCTOR_CACHE_DIR TRANSFORMERS_CACHE TRITON_CACHE_DIR VERSION VLLM_CACHE_ROOT WANDB_DIR WORLD_SIZE
"""


def test_a_usual_environment_gives_no_warning() -> None:
    assert find_misspelt_variables(dict.fromkeys(USUAL.split(), "x")) == []


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("TRAINFILE", "TRAIN_FILE"),
        ("train_file", "TRAIN_FILE"),
        ("TRIAN_FILE", "TRAIN_FILE"),
        ("TRAIN_FILES", "TRAIN_FILE"),
        ("VAL_FLIE", "VAL_FILE"),
        ("MODELPATH", "MODEL_PATH"),
        ("MODEL", "MODEL_PATH"),
        ("SAVE_PTAH", "SAVE_PATH"),
        ("LEARNING_RATE", "LR"),
        ("lr", "LR"),
        ("NNODES", "N_NODES"),
        ("N_GPUS", "N_GPUS_PER_NODE"),
        ("N_GPU_PER_NODE", "N_GPUS_PER_NODE"),
        ("BATCH_SIZE", "TRAIN_BATCH_SIZE"),
        ("NUM_EPOCHS", "TOTAL_EPOCHS"),
        ("TOTAL_STEP", "TOTAL_STEPS"),
        ("ROLLOUTN", "ROLLOUT_N"),
        ("RWARDS", "REWARDS"),
        ("ALGORITM", "ALGORITHM"),
        ("RAY_ADRESS", "RAY_ADDRESS"),
        ("MAX_RESPONCE_LENGTH", "MAX_RESPONSE_LENGTH"),
    ],
)
def test_a_name_like_ours_is_warned_about_with_ours(name: str, meant: str) -> None:
    assert find_misspelt_variables({name: "x", "PATH": "/bin"}) == [
        f"{name} is set, but no recipe reads it: did you mean {meant}?"
    ]


def test_ours_and_empty_ones_are_not_misspelt() -> None:
    assert find_misspelt_variables(dict.fromkeys(NAMES, "x")) == []
    assert find_misspelt_variables({"TRAINFILE": ""}) == []


def test_a_set_variable_is_not_suggested() -> None:
    assert find_misspelt_variables({"MODEL": "of another program", "MODEL_PATH": "ours"}) == []
    assert len(find_misspelt_variables({"MODEL": "ours?", "MODEL_PATH": ""})) == 1


def test_foreign_variable_names_are_distinct_and_map_to_ours() -> None:
    names = [name for others in OTHER_NAMES.values() for name in others]
    assert len(set(names)) == len(names)
    assert not set(names) & set(NAMES)
    assert set(OTHER_NAMES) <= set(NAMES)
