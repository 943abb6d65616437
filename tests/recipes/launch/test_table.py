"""One table has the allowed values of a setting, as a variable and as an override; the defaults satisfy it."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from convrec.base.errors import UserError
from convrec.lists.rank_rewards import DEFAULT_REWARD, RANK_REWARDS
from convrec.lists.reward_parts import PART_NAMES
from convrec.settings.choices import VERL_TRACKERS
from convrec.titles.matching import MATCHERS
from recipes.launch.recipe import RANK_GRPO, RECIPES
from recipes.launch.settings import check_config, compose_files
from recipes.launch.variables import VARIABLES, overrides_from_environment
from tests.user_errors import refuses

ROOT = Path(__file__).resolve().parents[3]
NO_VARIABLES: Mapping[str, str] = {}


@pytest.fixture(scope="module")
def composed() -> dict[str, DictConfig]:
    """The defaults of every recipe, which pass."""
    return {name: compose_files(recipe, [], environment=NO_VARIABLES) for name, recipe in RECIPES.items()}


@pytest.fixture
def refused(composed: dict[str, DictConfig]) -> Callable[..., str]:
    def message(recipe: str, key: str, value: Any) -> str:
        config = deepcopy(composed[recipe])
        OmegaConf.update(config, key, value, force_add=True)
        with pytest.raises(UserError) as error:
            check_config(config, RECIPES[recipe])
        assert "\n" not in str(error.value)
        return str(error.value)

    return message


ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"


@pytest.mark.parametrize(
    ("recipe", "key", "value", "problem"),
    [
        ("rank_grpo", f"{ACTOR}.optim.lr", "abc", "=abc (LR): expected a number of at least 0"),
        ("rank_grpo", f"{ACTOR}.ppo_epochs", 0, "=0 (MU): expected a positive integer"),
        ("judge_pairwise", f"{ACTOR}.ppo_mini_batch_size", 0, "=0: expected a positive integer"),
        ("rank_grpo", f"{ROLLOUT}.n", 2.5, "=2.5 (ROLLOUT_N): expected a positive integer"),
        ("rank_grpo", "trainer.max_actor_ckpt_to_keep", -1, "=-1 (SAVE_KEEP): expected a positive integer, or null"),
        ("rank_grpo", "data.train_batch_size", None, "=null (TRAIN_BATCH_SIZE): expected a positive integer"),
        ("sft", "trainer.max_ckpt_to_keep", 0, "=0 (SAVE_KEEP): expected a positive integer, or null"),
        ("sft", "data.train_batch_size", 0, "=0 (TRAIN_BATCH_SIZE): expected a positive integer, or null"),
        ("sft", "data.seed", "abc", "=abc (SEED): expected an integer from 0 to 2147483647"),
        ("sft", "trainer.total_training_steps", -3, "=-3 (TOTAL_STEPS): expected a positive integer, or null"),
        ("sft", "trainer.save_freq", True, "=true (SAVE_FREQ): expected a positive number of steps"),
        ("sft", "trainer.n_gpus_per_node", 0, "=0 (N_GPUS_PER_NODE): expected a positive integer"),
        ("sft", "trainer.logger", None, "=null (LOGGER): expected one or several of console, file"),
        ("sft", "trainer.logger", ["tensorbord"], "=['tensorbord'] (LOGGER): expected one or several of console, file"),
        ("sft", "trainer.resume_mode", "disable", "=disable: expected auto; SAVE_PATH decides which run is resumed"),
        ("sft", "trainer.default_local_dir", "${NOWHERE}/x", ": Interpolation key 'NOWHERE' not found"),
        ("sft", "trainer", 5, "=5: this is a section: set a key of it, such as trainer."),
        ("rank_grpo", "convrec", 5, "=5: this is a section: set a key of it, such as convrec."),
        ("rank_grpo", "convrec.reward", "foo", "=foo (REWARD): expected one of exp_inf, log_decay, exp_gamma, or pack"),
        ("rank_grpo", "convrec.reward", None, "=null (REWARD): expected one of exp_inf"),
        ("rank_grpo", "convrec.matching", "foo", "=foo: expected one of fuzzy, lenient, exact, reference, or null"),
        ("rank_grpo", "convrec.preset", "foo", "=foo (PRESET): expected one of paper, reference"),
        ("rank_grpo", "convrec.num_items", 0, "=0 (NUM_ITEMS): expected a positive integer"),
        ("rank_grpo", "convrec.delimiter", "\n\n", "=\\n\\n: expected one ASCII character"),
        ("rank_grpo", "convrec.gamma", 1, "=1: expected a number above 1, or null"),
        ("rank_grpo", "convrec.overflow_penalty", 0.1, "=0.1: expected a number of at most 0"),
        ("rank_grpo", "convrec.deterministic", 1, "=1: expected true or false"),
        ("rank_grpo", "convrec.rollout_check_bound", 0, "=0: expected a positive number"),
        ("rank_grpo", "convrec.numitems", 5, ": no such setting; did you mean convrec.num_items?"),
        ("judge_pairwise", "convrec.num_items", 5, ": no such setting; there are "),
        ("judge_pairwise", "convrec.orders", "both", "=both: expected one of separate, consistent, together"),
        ("judge_pointwise", "convrec.orders", "separate", ": no such setting; "),
        ("judge_pointwise", "convrec.malformed_reward", 1, "=1: expected a number of at most 0"),
    ],
)
def test_a_value_of_another_kind(refused: Callable[..., str], recipe: str, key: str, value: Any, problem: str) -> None:
    assert refused(recipe, key, value).startswith(key + problem)


@pytest.mark.parametrize(
    "wrong",
    ["abc", [], [[5, 1e-6]], [[0, 1e-6], [0, 1e-7]], [[0, 0]], [[0]], [0, 1e-6], [["0", 1e-6]], [[0, "x"]], [[0.5, 1]]],
)
def test_a_schedule_begins_at_step_0_and_rises(
    refused: Callable[..., str], composed: dict[str, DictConfig], wrong: Any
) -> None:
    assert ": expected (step, lr) pairs in rising order" in refused("judge_pairwise", "convrec.lr_schedule", wrong)
    config = deepcopy(composed["judge_pairwise"])
    config.convrec.lr_schedule = [[0, 1e-6], [8000, 1e-7]]
    check_config(config, RECIPES["judge_pairwise"])


@pytest.mark.parametrize(
    ("override", "code", "values"),
    [
        ("trainer.total_epochs=abc", "settings.wrong-value", ["trainer.total_epochs=abc (TOTAL_EPOCHS)"]),
        ("data=null", "settings.wrong-override", ["NoneType"]),
        ("convrec.catalog_file=${NOWHERE}", "settings.unresolved", ["convrec.catalog_file", "'NOWHERE'"]),
        ("~convrec.reward", "settings.missing-key", ["~convrec.reward"]),
    ],
)
def test_composing_checks_before_anything_uses_a_value(override: str, code: str, values: list[str]) -> None:
    with refuses(code, *values):
        compose_files(RANK_GRPO, [override], environment=NO_VARIABLES)


def test_values_that_verl_accepts_pass(composed: dict[str, DictConfig]) -> None:
    for key, value in (("trainer.logger", "tensorboard"), ("trainer.test_freq", -1), ("optim.lr", 0)):
        config = deepcopy(composed["sft"])
        OmegaConf.update(config, key, value)
        check_config(config, RECIPES["sft"])


@pytest.mark.parametrize(
    ("name", "text"), [("LR", "0"), ("LR", "-1"), ("SEED", "2147483647"), ("SEED", "2147483648"), ("MU", "0")]
)
def test_a_variable_and_the_override_of_its_key_have_one_rule(name: str, text: str) -> None:
    (variable,) = (variable for variable in VARIABLES if variable.name == name)
    expected = []
    for environment, overrides in (
        ({name: text}, []),
        ({}, [f"{key}={text}" for key in variable.collect_keys(RANK_GRPO)]),
    ):
        try:
            compose_files(RANK_GRPO, overrides, environment=environment)
            expected.append("")
        except UserError as error:
            expected.append(str(error).partition(": ")[2])
    assert expected[0] == expected[1]


def test_every_setting_has_help() -> None:
    assert all(row.setting.help for recipe in RECIPES.values() for row in recipe.rows.values())


def test_the_trackers_are_verls() -> None:
    from verl.utils.tracking import Tracking

    assert set(VERL_TRACKERS) == set(Tracking.supported_backend)


def test_registry_entries_alone_make_rewards_and_matchings_known(
    monkeypatch: pytest.MonkeyPatch, composed: dict[str, DictConfig]
) -> None:
    config = deepcopy(composed["rank_grpo"])
    config.convrec.reward, config.convrec.matching = "new", "newer"
    with refuses("variable.wrong-value", "REWARD=new", "exp_inf"):
        overrides_from_environment(RANK_GRPO, {"REWARD": "new"})
    monkeypatch.setitem(RANK_REWARDS, "new", RANK_REWARDS[DEFAULT_REWARD])
    monkeypatch.setitem(MATCHERS, "newer", MATCHERS["fuzzy"])
    check_config(config, RANK_GRPO)
    assert overrides_from_environment(RANK_GRPO, {"REWARD": "new"}) == ["convrec.reward='new'"]


def test_the_specification_names_every_rank_reward_and_matching() -> None:
    method = (ROOT / "docs" / "explanation" / "method.md").read_text(encoding="utf-8")
    assert [name for name in (*RANK_REWARDS, *MATCHERS) if f"\n| `{name}`" not in method] == []
    parts = (ROOT / "docs" / "how-to" / "rewards.md").read_text(encoding="utf-8")
    assert [name for name in PART_NAMES if f"\n| `{name}`" not in parts] == []
