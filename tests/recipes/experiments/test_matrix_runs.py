"""The entries of a matrix file become runs, each with its start; lists of variables become combinations."""

from pathlib import Path

import pytest
import yaml

from convrec.settings.readers import comma_separated
from recipes.experiments.matrix_file import Matrix
from recipes.experiments.matrix_runs import COMMA_SEPARATED, MatrixRun, expand_matrix, expand_variables
from recipes.launch.recipe import RANK_GRPO, SFT
from recipes.launch.variables import VARIABLES
from tests.user_errors import refuses


def parse_runs(text: str) -> list[MatrixRun]:
    return expand_matrix(Matrix(out="out", evaluate={}, **yaml.safe_load(text)))


def parse_starts(text: str) -> dict[str, str | None]:
    return {run.name: run.start for run in parse_runs(text)}


def test_names_have_the_values_of_the_lists_and_the_seed() -> None:
    runs = parse_runs("seeds: [3407, 3408]\nruns: {rank_exp_inf: {variables: {LR: [1e-6, 3e-6]}}}")
    names = [f"rank_exp_inf-LR={rate}-s{seed}" for rate in ("1e-6", "3e-6") for seed in (3407, 3408)]
    assert [run.name for run in runs] == names
    assert [run.variant for run in runs[:2]] == ["rank_exp_inf-LR=1e-6"] * 2  # one line of the table
    assert runs[-1].variables == {"LR": "3e-6", "SEED": "3408"}


def test_a_run_starts_from_the_same_seed_and_the_same_value() -> None:
    """Both have the list TRAIN_BATCH_SIZE, which must match; LR and MU have no list in the start."""
    starts = parse_starts("""
seeds: [1, 2]
variables: {TRAIN_BATCH_SIZE: [8, 16], MU: [1, 2]}
runs:
  sft: {recipe: sft}
  rank: {start: sft, variables: {LR: [1e-6]}}
""")
    assert list(starts)[:4] == [f"sft-TRAIN_BATCH_SIZE={size}-s{seed}" for size in (8, 16) for seed in (1, 2)]
    assert len(starts) == 4 + 2 * 2 * 2
    for name, start in list(starts.items())[4:]:
        size, seed = name.split("SIZE=")[1].split("-")[0], name[-1]
        assert start == f"sft-TRAIN_BATCH_SIZE={size}-s{seed}", name


def test_one_start_of_a_list_is_named() -> None:
    text = "seeds: [1, 2]\nruns:\n  sft: {recipe: sft, variables: {LR: [1e-3, 4e-3]}}\n  rank: {start: sft-LR=4e-3}"
    assert parse_starts(text)["rank-s2"] == "sft-LR=4e-3-s2"
    with refuses("matrix.ambiguous-start", "runs.rank: start=sft: 2 runs", "sft-LR=1e-3-s1, sft-LR=4e-3-s1"):
        parse_starts(text.replace("sft-LR=4e-3", "sft"))
    with refuses("matrix.unknown-start", "start=sft", "seed 1; there are sft-LR=1e-3-s1"):
        parse_starts(text.replace("start: sft-LR=4e-3", "start: sft, variables: {LR: 1e-6}"))


def test_a_start_with_one_seed_serves_every_seed() -> None:
    starts = parse_starts("seeds: [1, 2]\nruns:\n  sft: {recipe: sft, seeds: [5]}\n  rank: {start: sft}")
    assert starts == {"sft": None, "rank-s1": "sft", "rank-s2": "sft"}


def test_run_environment_has_its_variables_folder_and_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MU", "3")
    monkeypatch.setenv("SAVE_PATH", "elsewhere")
    expected = {"MU": "2", "SAVE_PATH": "out/r", "MODEL_PATH": "out/sft"}
    assert MatrixRun("r", "r", "sft", "sft", {"MU": "2"}).make_environment(Path("out")).items() >= expected.items()
    own_model = MatrixRun("r", "r", "sft", None, {"MODEL_PATH": "m"}).make_environment(Path("out"))
    assert own_model.items() >= {"MU": "3", "MODEL_PATH": "m"}.items()


def name_points(common: dict, own: dict) -> list[str]:
    """Return the part of each run's name that comes from the lists."""
    matrix = Matrix(out="out", evaluate={}, variables=common, runs={"a": {"variables": own}})
    return [run.name.removeprefix("a-") for run in expand_matrix(matrix)]


def test_combinations_vary_the_last_list_fastest() -> None:
    runs = expand_variables(RANK_GRPO, {"LR": ["1e-6", "3e-6"], "MU": 4}, {"MU": [1, 2], "ROLLOUT_N": 8})
    assert [variables for variables, _ in runs] == [
        {"ROLLOUT_N": "8", "LR": rate, "MU": mu} for rate in ("1e-6", "3e-6") for mu in ("1", "2")
    ]
    assert [point for _, point in runs][1] == {"LR": "1e-6", "MU": "2"}
    assert expand_variables(RANK_GRPO, {"LR": "1e-6"}, {"MU": 2}) == [({"LR": "1e-6", "MU": "2"}, {})]


def test_labels_are_safe_folder_names_even_for_single_values() -> None:
    files = ["data/a b/train.parquet", "other/train.parquet"]
    names = ["TRAIN_FILE=data_a_b_train.parquet", "TRAIN_FILE=other_train.parquet"]
    assert name_points({}, {"TRAIN_FILE": files}) == names
    rewards = [{"relevance": 1, "diversity": 0.3}, "relevance: 1"]
    assert name_points({}, {"REWARDS": rewards}) == ["REWARDS=relevance_1_diversity_0.3", "REWARDS=relevance_1"]
    assert name_points({}, {"LR": ["1e-6"]}) == ["LR=1e-6"]  # a second value can be added without renaming this run
    assert name_points({"LR": ["1e-6", "3e-6"]}, {"LR": "1e-5"}) == ["a"]  # the run's own value overrides a common list


def test_common_list_makes_no_runs_of_a_recipe_that_ignores_it() -> None:
    assert expand_variables(SFT, {"KL_LOSS_COEF": [0, 0.1], "LR": ["1e-5"]}, {}) == [({"LR": "1e-5"}, {"LR": "1e-5"})]
    with refuses("matrix.unused-list", "KL_LOSS_COEF=[0, 0.1]", "sft"):
        expand_variables(SFT, {}, {"KL_LOSS_COEF": [0, 0.1]})


def test_a_list_is_one_value_of_a_comma_separated_variable() -> None:
    trackers = ["console", "tensorboard"]
    assert expand_variables(RANK_GRPO, {"LOGGER": trackers}, {}) == [({"LOGGER": "console,tensorboard"}, {})]
    assert name_points({}, {"LOGGER": [["console"], trackers]}) == ["LOGGER=console", "LOGGER=console_tensorboard"]


def test_every_variable_that_takes_a_comma_is_known() -> None:
    """REWARDS is a mapping; a file name with commas is one value."""
    names = {variable.name for variable in VARIABLES if variable.read is comma_separated}
    assert names == set(COMMA_SEPARATED)


@pytest.mark.parametrize(
    ("variables", "code", "value"),
    [
        ({"LR": []}, "matrix.invalid-list", "LR=[]"),
        ({"LR": ["1e-6", "1e-6"]}, "matrix.invalid-list", "LR=['1e-6', '1e-6']"),
        ({"SEED": [1, 2]}, "matrix.seed-variable", "seeds: [1, 2]"),
    ],
)
def test_a_wrong_list_is_named(variables: dict, code: str, value: str) -> None:
    with refuses(code, value):
        expand_variables(RANK_GRPO, {}, variables)
