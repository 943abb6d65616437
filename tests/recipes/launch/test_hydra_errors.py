"""An error of Hydra's is one line with the most similar setting."""

import subprocess
import sys
from collections.abc import Callable, Mapping

import pytest

from recipes.launch.recipe import RANK_GRPO, RECIPES
from recipes.launch.settings import compose_files
from tests.user_errors import refuses


@pytest.fixture(autouse=True)
def no_variables(set_variables: Callable[[Mapping[str, str]], None]) -> None:
    set_variables({})


@pytest.mark.parametrize(
    ("recipe", "override", "beginning"),
    [
        (
            "rank_grpo",
            "trainer.total_stepz=3",
            "trainer.total_stepz: no such setting; did you mean trainer.total_epochs or trainer.total_training_steps?",
        ),
        ("sft", "optim.lrr=1", "optim.lrr: no such setting; did you mean optim.lr?"),
        ("judge_pairwise", "data.trian_files=a", "data.trian_files: no such setting; did you mean data.train_files"),
        ("rank_grpo", "convrec.numitems=5", "convrec.numitems: no such setting; did you mean convrec.num_items?"),
        ("rank_grpo", "convrec={rewad: exp_inf}", "convrec.rewad: no such setting; did you mean convrec.reward or "),
        ("rank_grpo", "traner.nnodes=2", "traner.nnodes: no such setting; did you mean trainer.nnodes?"),
        ("rank_grpo", "gamma=2", "gamma: no such setting; did you mean convrec.gamma"),
        ("rank_grpo", "lr=1e-6", "lr: no such setting; LR is an environment variable: write LR=... before the command"),
        (
            "rank_grpo",
            "trainer.zebra=1",
            "trainer.zebra: no such setting; to add it anyway, write +trainer.zebra=",
        ),
        ("sft", "convrec.num_items=5", "convrec.num_items: no such setting; to add it"),
        ("rank_grpo", "host=tpu", "host=tpu: expected one of cpu, gpu"),
        ("rank_grpo", "+scale=loraa", "scale=loraa: expected one of lora, separate_async, separate_async_cpu, tensor"),
        ("rank_grpo", "convrec.delimiter=,", "convrec.delimiter=,: Hydra cannot parse it; put 'single quotes' around"),
        ("rank_grpo", "~zebra", "settings: Could not delete from config. 'zebra' does not exist."),
    ],
)
def test_the_error_names_the_override_and_similar_settings(recipe: str, override: str, beginning: str) -> None:
    with refuses("settings.wrong-override") as error:
        compose_files(RECIPES[recipe], [override])
    assert str(error.value).startswith(beginning)
    assert "\n" not in str(error.value)


def test_a_character_is_a_delimiter_when_it_is_quoted() -> None:
    assert compose_files(RANK_GRPO, ["convrec.delimiter=','"]).convrec.delimiter == ","


def test_command_line_beats_variable_and_variable_beats_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("N_GPUS_PER_NODE", "3")
    host_overrides = ["trainer.n_gpus_per_node=8"]
    assert compose_files(RANK_GRPO, [], host_overrides).trainer.n_gpus_per_node == 3
    assert compose_files(RANK_GRPO, ["trainer.n_gpus_per_node=5"], host_overrides).trainer.n_gpus_per_node == 5


def test_settings_are_read_without_importing_verl() -> None:
    code = (
        "import sys; from recipes.launch.settings import RECIPES, compose_files; compose_files(RECIPES['sft'], []); "
        "print([name for name in ('torch', 'verl', 'ray') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
