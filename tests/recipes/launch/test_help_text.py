"""The help of a training command has its variables with the defaults of a run without settings."""

import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from convrec.runs.folder import setting
from recipes import cli
from recipes.launch.help_text import describe_defaults, format_training_help
from recipes.launch.recipe import RECIPES
from recipes.launch.settings import compose_files
from recipes.launch.variables import VARIABLES

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("name", RECIPES)
def test_help_lists_every_variable_of_a_recipe_with_its_default(name: str) -> None:
    recipe = RECIPES[name]
    lines = {line.split()[0]: line for line in format_training_help(recipe).splitlines() if line.startswith("  ")}
    assert {v.name for v in VARIABLES if v.collect_keys(recipe)} == {word for word in lines if word.isupper()}
    assert " / " not in lines["SAVE_FREQ"]
    assert {"sft": " 100 ", "rank_grpo": " 200 "}.get(name, " 20 ") in lines["SAVE_FREQ"]


@pytest.mark.parametrize("name", RECIPES)
def test_the_command_prints_the_help_of_its_recipe(name: str, capsys) -> None:
    cli.print_training_help(RECIPES[name].command)
    assert capsys.readouterr().out == format_training_help(RECIPES[name]) + "\n"


@pytest.mark.parametrize(
    ("recipe", "defaults"),
    [
        ("sft", {"LR": "5e-5", "SAVE_KEEP": "all", "TRAIN_BATCH_SIZE": "96 per device", "LOGGER": "console, file"}),
        ("rank_grpo", {"ALGORITHM": "rank_grpo", "TRAIN_BATCH_SIZE": "48", "REWARDS": "only REWARD"}),
        ("judge_pairwise", {"TENSOR_PARALLEL": "N_GPUS_PER_NODE", "N_GPUS_PER_NODE": "all of the machine"}),
    ],
)
def test_a_default_is_the_value_in_the_config_or_the_meaning_of_null(recipe: str, defaults: dict[str, str]) -> None:
    assert describe_defaults(RECIPES[recipe]).items() >= defaults.items()


@pytest.mark.parametrize(
    ("name", "variable", "key", "in_conf"),
    [
        ("rank_grpo", "ALGORITHM", "run.algorithm", "rank_grpo"),
        ("rank_grpo", "GPU_MEMORY_UTILIZATION", "actor_rollout_ref.rollout.gpu_memory_utilization", "0.5"),
        (
            "judge_pointwise",
            "TENSOR_PARALLEL",
            "actor_rollout_ref.rollout.tensor_model_parallel_size",
            "${trainer.n_gpus_per_node}",
        ),
    ],
)
def test_a_default_in_words_agrees_with_conf(name: str, variable: str, key: str, in_conf: str) -> None:
    recipe = RECIPES[name]
    config = compose_files(recipe, [], [f"{recipe.host_group}=gpu"], environment={})
    assert str(setting(OmegaConf.to_container(config, resolve=False), key)) == in_conf
    reference = recipe.rows.get(in_conf.strip("${}"))
    assert describe_defaults(recipe)[variable] == (reference.setting.variable if reference else in_conf)


def test_defaults_outside_the_settings_table_are_the_known_ones() -> None:
    outside = {
        row.setting.variable
        for recipe in RECIPES.values()
        for row in recipe.rows.values()
        if row.setting.variable and row.default is None and not row.setting.null
    }
    # N_GPUS_PER_NODE depends on the machine
    assert outside == {"N_GPUS_PER_NODE", "ALGORITHM", "GPU_MEMORY_UTILIZATION", "TENSOR_PARALLEL"}


def test_help_imports_neither_config_nor_trainer() -> None:
    code = (
        "import sys, recipes.launch.help_text; print({'torch', 'ray', 'hydra', 'omegaconf', 'verl'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
