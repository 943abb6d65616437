"""Lists of a matrix file become combinations; what takes several values by nature stays one."""

import pytest

from convrec.errors import UserError
from recipes.experiments.grid import COMMA_SEPARATED, combinations, label
from recipes.launch.recipe import RANK_GRPO, SFT
from recipes.launch.schema import comma_separated
from recipes.launch.variables import VARIABLES


def points(common: dict, own: dict, recipe=RANK_GRPO) -> list[str]:
    return [label(point) for _, point in combinations(recipe, common, own)]


def test_every_combination_of_the_lists_the_last_one_in_turn_first() -> None:
    found = combinations(RANK_GRPO, {"LR": ["1e-6", "3e-6"], "MU": 4}, {"MU": [1, 2], "ROLLOUT_N": 8})
    assert [variables for variables, _ in found] == [
        {"ROLLOUT_N": "8", "LR": rate, "MU": mu} for rate in ("1e-6", "3e-6") for mu in ("1", "2")
    ]
    assert [point for _, point in found][1] == {"LR": "1e-6", "MU": "2"}


def test_without_lists_there_is_one_run_without_a_label() -> None:
    assert combinations(RANK_GRPO, {"LR": "1e-6"}, {"MU": 2}) == [({"LR": "1e-6", "MU": "2"}, {})]
    assert label({}) == ""


def test_a_list_of_one_value_is_in_the_name_so_that_a_second_one_leaves_it_alone() -> None:
    assert points({}, {"LR": ["1e-6"]}) == points({}, {"LR": ["1e-6", "3e-6"]})[:1] == ["LR=1e-6"]


def test_the_runs_own_value_wins_over_a_list_of_all() -> None:
    assert points({"LR": ["1e-6", "3e-6"]}, {"LR": "1e-5"}) == [""]


def test_labels_are_safe_in_the_name_of_a_folder() -> None:
    files = ["data/a b/train.parquet", "other/train.parquet"]
    assert points({}, {"TRAIN_FILE": files}) == ["TRAIN_FILE=data_a_b_train.parquet", "TRAIN_FILE=other_train.parquet"]
    rewards = [{"relevance": 1, "diversity": 0.3}, "relevance: 1"]
    assert points({}, {"REWARDS": rewards}) == ["REWARDS=relevance_1_diversity_0.3", "REWARDS=relevance_1"]


def test_a_list_of_all_makes_no_runs_of_a_recipe_that_does_not_read_it() -> None:
    assert combinations(SFT, {"KL_LOSS_COEF": [0, 0.1], "LR": ["1e-5"]}, {}) == [({"LR": "1e-5"}, {"LR": "1e-5"})]
    with pytest.raises(UserError, match="sft does not read it"):
        combinations(SFT, {}, {"KL_LOSS_COEF": [0, 0.1]})


def test_what_takes_several_values_by_nature_takes_a_list_as_one() -> None:
    trackers = ["console", "tensorboard"]
    assert combinations(RANK_GRPO, {"LOGGER": trackers}, {}) == [({"LOGGER": "console,tensorboard"}, {})]
    assert points({}, {"LOGGER": [["console"], trackers]}) == ["LOGGER=console", "LOGGER=console_tensorboard"]


def test_every_variable_that_takes_a_comma_is_known() -> None:
    """REWARDS is a mapping; a name of a file may have commas, and is one value."""
    several = {variable.name for variable in VARIABLES if variable.read is comma_separated}
    assert several == set(COMMA_SEPARATED)


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"LR": []}, r"LR=\[\]: a list has one value or more"),
        ({"LR": ["1e-6", "1e-6"]}, "each once"),
        ({"SEED": [1, 2]}, r"several seeds are `seeds: \[1, 2\]`"),
        ({"LEARNING_RATE": 1}, "LEARNING_RATE is no variable"),
    ],
)
def test_a_wrong_list_is_named(variables: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        combinations(RANK_GRPO, {}, variables)
