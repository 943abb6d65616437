"""Bad input is one clear message and exit status 2, before Ray, torch.distributed or a run folder exists."""

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
from huggingface_hub import constants

from convrec.base import gpus
from convrec.base.errors import UserError
from convrec.checkpoints import hub
from convrec.data.schema import RL_SCHEMA
from convrec.features.candidates.prompts import with_candidates
from convrec.settings.run import Run
from recipes.launch import runner, settings
from recipes.launch.recipe import RECIPES
from recipes.preflight import checks, findings

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
    """Run a recipe with these variables and overrides; assert that it is refused, and return the message."""
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
    """The warnings of a run that may start, with lists for which its 128 tokens have room."""

    def run(recipe: str = "rank_grpo", **variables: str) -> list[str]:
        short = good | {"NUM_ITEMS": "4"}
        set_variables((short if recipe == "rank_grpo" else good_sft) | variables)
        return RECIPES[recipe].check(settings.compose(recipe, []))

    return run


def _changed(source: Path, target: Path, change: Callable[[list[dict[str, Any]]], Any]) -> str:
    """A copy of the RL table with `change` made to its rows."""
    rows = pq.read_table(source).to_pylist()
    change(rows)
    pq.write_table(pa.Table.from_pylist(rows, RL_SCHEMA), target)
    return str(target)


@pytest.mark.parametrize("recipe", ["rank_grpo", "sft"])
def test_the_settings_these_tests_break_are_good(warned: Callable[..., list[str]], recipe: str) -> None:
    assert warned(recipe) == []


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"MODEL_PATH": "/no/such/model"}, "MODEL_PATH=/no/such/model: no such folder, and not a Hugging Face id"),
        ({"TRAIN_FILE": "/no/train.parquet"}, "TRAIN_FILE=/no/train.parquet: no such file"),
        ({"VAL_FILE": "/no/val.parquet"}, "VAL_FILE=/no/val.parquet: no such file"),
        ({"CATALOG_FILE": "/no/catalog.parquet"}, "CATALOG_FILE=/no/catalog.parquet: no such file"),
        ({"ROLLOUT_N": "1"}, "ROLLOUT_N=1: advantages compare the rollouts of a prompt, so at least 2"),
        ({"REWARD": "no_module:f"}, "convrec.reward=no_module:f: importing no_module raised ModuleNotFoundError"),
        ({"REWARD": "exp_gamma"}, "REWARD=exp_gamma needs convrec.gamma, a number above 1, not null"),
        ({"N_GPUS_PER_NODE": "3"}, "TRAIN_BATCH_SIZE=4 x ROLLOUT_N=2 = 8 responses do not divide over 3 devices"),
        ({"TENSOR_PARALLEL": "2"}, "TENSOR_PARALLEL=2 does not divide the 1 devices"),
        ({"TRAIN_BATCH_SIZE": "41"}, "TRAIN_FILE has 40 rows, fewer than TRAIN_BATCH_SIZE=41"),
        ({"MAX_RESPONSE_LENGTH": "800"}, "MAX_PROMPT_LENGTH=256 + MAX_RESPONSE_LENGTH=800: more tokens than the 1024"),
    ],
)
def test_wrong_variable(refused: Refused, variables: dict[str, str], said: str) -> None:
    message = refused(**variables)
    assert message.startswith(said)
    assert len(message.splitlines()) == 1


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("convrec.rewards={relevance: 0}", "weights other than 0"),
        ("convrec.rewards={catalog.safety: 1}", "has no column safety. Add it, or remove the part"),
        ("convrec.rewards={catalog.title: 1}", "has type string, but the part needs numbers. Columns with numbers:"),
        ("algorithm.rollout_correction.rollout_rs=token_k1", "rollout_rs=token_k1: it takes tokens out of verl's"),
        ("algorithm.rollout_correction.rollout_is=word", "rollout_is=word: expected token, rank, sequence or null"),
        ("actor_rollout_ref.rollout.top_p=0.9", "top_p=0.9"),
        ("actor_rollout_ref.rollout.temperature=0.7", "temperature=0.7"),
        ("actor_rollout_ref.rollout.top_k=50", "top_k=50"),
        ("actor_rollout_ref.actor.ppo_mini_batch_size=3", "TRAIN_BATCH_SIZE=4 is not a multiple of"),
        (
            "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=383",
            "a micro-batch has 383 tokens, and MAX_PROMPT_LENGTH=256 + MAX_RESPONSE_LENGTH=128 do not fit: raise it",
        ),
        ("actor_rollout_ref.rollout.temprature=1", "temprature: no such setting; did you mean"),
        ("convrec.reward=convrec.lists.rank_rewards:dgc", "has no function dgc; did you mean dcg"),
        ("convrec.reward=convrec.lists.rank_rewards:exp_inf", "it raised TypeError"),
        ("reward.custom_reward_function.path=/no/reward.py", "custom_reward_function.path=/no/reward.py: no such file"),
        ("reward.custom_reward_function.path=pkg://reward.none", "path=pkg://reward.none: No module named"),
        ("reward.custom_reward_function.name=score", "name=score: pkg://reward.catalog_match has no such function"),
    ],
)
def test_wrong_override(refused: Refused, override: str, said: str) -> None:
    assert said in refused(override)


CORRECTION, FILTER, REPAIR = "algorithm.rollout_correction", "algorithm.filter_groups", "convrec.repair=zero"


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["algorithm_preset=grpo", "convrec.rewards={relevance: 1}"], "GRPO and GSPO train only on DCG@N"),
        (["algorithm_preset=gspo", f"{CORRECTION}.rollout_is=rank"], "GRPO and GSPO have no ranks"),
        (
            [
                "convrec.rewards={relevance: 1}",
                "convrec.reward_combination=normalised",
                "algorithm.norm_adv_by_std_in_grpo=false",
            ],
            "would equal sum. Set convrec.reward_combination=sum",
        ),
        (
            [
                "actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size=2",
                "actor_rollout_ref.model.use_fused_kernels=true",
            ],
            "cuts responses, which fused log-probs read whole",
        ),
        (
            [
                "+scale=lora",
                "actor_rollout_ref.model.target_modules=[lm_head]",
                "actor_rollout_ref.model.use_fused_kernels=true",
            ],
            "(LoRA on lm_head): add actor_rollout_ref.model.use_fused_kernels=false",
        ),
        ([f"{CORRECTION}.bypass_mode=true", f"{CORRECTION}.rollout_is=rank"], "would weight by nothing"),
        ([f"{CORRECTION}.bypass_mode=true", f"{CORRECTION}.loss_type=reinforce"], "leave it ppo_clip"),
        (["critic.enable=true"], "no critic is trained"),
        (["algorithm.adv_estimator=gae"], "no critic is trained"),
        (["reward.reward_model.enable=true"], "scores too late for lists"),
        ([f"{FILTER}.enable=true", f"{FILTER}.metric=hits"], "metric=hits: rollouts can differ in their ranks"),
        ([f"{FILTER}.enable=true", "convrec.rewards={repeats: -1}"], "says nothing about REWARDS"),
        ([REPAIR, "convrec.repair_ranks=21"], "convrec.repair_ranks=21: more than NUM_ITEMS=20"),
        ([REPAIR, "algorithm_preset=gspo"], "GRPO and GSPO would credit the whole list for one title"),
        ([REPAIR, "convrec.preset=reference"], "a line may get another line's rank"),
        ([REPAIR, "convrec.matching=reference"], "a line may get another line's rank"),
        ([REPAIR, f"{CORRECTION}.bypass_mode=true"], "a title that no rollout sampled has no old log-probs"),
        (
            [REPAIR, "reward.custom_reward_function.path=pkg://reward.judge_pointwise"],
            "does not tell which lines are hits. Set REWARD to a function",
        ),
        ([REPAIR, "actor_rollout_ref.rollout.agent.default_agent_loop=tool_agent"], "repair needs single_turn_agent"),
        (["convrec.ask=[mood]"], "ASK mood: the catalog"),
        (["convrec.ask=[genre]", "convrec.max_turns=1"], "MAX_TURNS=1: the only turn is the list"),
        (["convrec.ask=[genre]", "convrec.ask_cost=0"], "convrec.ask_cost=0"),
        (["convrec.ask=[genre]", "algorithm_preset=grpo"], "Set ALGORITHM=rank_grpo and PRESET=paper"),
        (["convrec.ask=[genre]", REPAIR], "repair cannot change lists that follow an answer"),
        (["convrec.ask=[genre]", f"{FILTER}.enable=true"], "ignores the cost of questions"),
        (["convrec.ask=[genre]", "actor_rollout_ref.rollout.full_determinism=true"], "without full_determinism"),
        (["convrec.ask=[genre]", "actor_rollout_ref.actor.use_dynamic_bsz=false"], "use_dynamic_bsz at their defaults"),
    ],
)
def test_overrides_that_do_not_go_together(refused: Refused, overrides: list[str], said: str) -> None:
    assert said in refused(*overrides)


@pytest.fixture
def own(model: Path, tmp_path: Path) -> Path:
    return shutil.copytree(model, tmp_path / "own")


@pytest.mark.parametrize("recipe", ["sft", "rank_grpo"])
def test_model_lacking_a_tokenizer_or_with_code_is_refused(
    refused: Refused, own: Path, model: Path, recipe: str
) -> None:
    (own / "tokenizer.json").unlink()
    said = refused(recipe=recipe, MODEL_PATH=str(own))
    assert said.startswith(f"MODEL_PATH={own}: the tokenizer has 3 ids, the embedding ")
    shutil.copy(model / "tokenizer.json", own)
    torch.save({"w": Path("/")}, own / "pytorch_model.bin")  # pickled as a call of a function
    assert refused(recipe=recipe, MODEL_PATH=str(own)).startswith(f"{own}/pytorch_model.bin: contains pathlib.")


@pytest.mark.parametrize(
    ("overrides", "asked"),
    [
        (["actor_rollout_ref.model.use_fused_kernels=true"], "fused log-probs: "),
        (["convrec.constrained=true"], "CONSTRAINED=1 (convrec.constrained): "),
    ],
)
def test_a_model_that_changes_its_logits_behind_the_head(
    refused: Refused, own: Path, overrides: list[str], asked: str
) -> None:
    file = own / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"final_logit_softcapping": 30.0}))
    said = refused(*overrides, MODEL_PATH=str(own))
    assert said.startswith(f"{asked}{own} changes its logits after the output head (final_logit_softcapping): ")


def test_a_model_that_cannot_write_the_catalog(refused: Refused, own: Path, tmp_path: Path) -> None:
    file = own / "tokenizer.json"
    content = json.loads(file.read_text())
    # byte-level BPE has ä for 0xE4, with which these titles begin
    vocabulary = {"<none>" if token == "ä" else token: id_ for token, id_ in content["model"]["vocab"].items()}
    file.write_text(json.dumps(content | {"model": content["model"] | {"vocab": vocabulary}}))
    catalog = tmp_path / "catalog.parquet"
    pq.write_table(pa.table({"title": ["七人の侍", "七人"], "year": pa.array([1954, 1960], pa.int32())}), catalog)
    said = refused(MODEL_PATH=str(own), CATALOG_FILE=str(catalog))
    assert said.startswith(f"MODEL_PATH={own}: the tokenizer cannot encode '七人の侍'")


@pytest.mark.parametrize("recipe", ["sft", "rank_grpo"])
def test_a_model_of_the_hub_is_looked_into_where_it_can_be_had(
    refused: Refused, monkeypatch: pytest.MonkeyPatch, recipe: str
) -> None:
    monkeypatch.setattr(hub, "problem", lambda model: "")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    said = refused(recipe=recipe, MODEL_PATH="nobody/nothing")
    assert said.startswith("MODEL_PATH=nobody/nothing: ")
    assert "Give a folder or an id that this machine can load" in said


def test_a_rank_reward_of_the_users_own_is_tried_out(
    warned: Callable[..., list[str]], refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "checked_rewards.py").write_text(
        "def good(relevance, items):\n    return relevance\n\ndef bad(relevance, items):\n    return [1.0]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert warned(REWARD="checked_rewards:good") == []
    message = refused(REWARD="checked_rewards:bad")
    assert message.startswith("convrec.reward=checked_rewards:bad: it returned 1 numbers for 20 ranks")


@pytest.mark.parametrize(("variable", "table"), [("TRAIN_FILE", "train"), ("VAL_FILE", "validation")])
def test_bad_rows_are_named_with_their_file(
    refused: Refused, sample: Path, tmp_path: Path, variable: str, table: str
) -> None:
    """tests/convrec/data/test_validation.py has all that can be wrong with a table."""

    def empty(rows: list[dict[str, Any]]) -> None:
        rows[3]["groundtruth_with_release_year"] = rows[7]["groundtruth_with_release_year"] = []

    file = _changed(sample / f"{table}.parquet", tmp_path / "empty.parquet", empty)
    message = refused(**{variable: file})
    assert message.startswith(f"{file}: rows 3, 7: no ground truth")
    assert "drop these rows" in message


@pytest.mark.parametrize("recipe", ["rank_grpo", "sft"])
def test_prompts_name_as_many_candidates_as_the_run_says(
    refused: Refused, good_sft: dict[str, str], good: dict[str, str], tmp_path: Path, recipe: str, warned: Any
) -> None:
    source, file = (good if recipe == "rank_grpo" else good_sft)["VAL_FILE"], str(tmp_path / "named.parquet")
    table = pq.read_table(source)
    rows = table.to_pylist()
    for row in rows:
        row["prompt"][0]["content"] = with_candidates(row["prompt"][0]["content"], ["Heat (1995)", "Alien (1979)"])
    pq.write_table(pa.Table.from_pylist(rows, table.schema), file)
    said = f"{file}: prompts name 2 candidates, but CANDIDATES={{}}. {{}}"
    take = "Use tables from `convrec retrieval candidates --count {}`."
    assert refused(recipe=recipe, VAL_FILE=file) == said.format(0, "Set CANDIDATES=2.")
    assert refused(recipe=recipe, VAL_FILE=file, TRAIN_FILE=file, CANDIDATES="1") == said.format(1, take.format(1))
    message = refused(recipe=recipe, CANDIDATES="2")
    assert message == f"{source}: prompts name 0 candidates, but CANDIDATES=2. {take.format(2)}"
    assert warned(recipe=recipe, VAL_FILE=file, TRAIN_FILE=file, CANDIDATES="2") == []
    fewer = f"{file}: prompts name at most 2 candidates, but CANDIDATES=50, and serving names 50"
    assert warned(recipe=recipe, VAL_FILE=file, TRAIN_FILE=file, CANDIDATES="50") == [fewer, fewer]
    rows[1] = pq.read_table(source).to_pylist()[1]
    pq.write_table(pa.Table.from_pylist(rows, table.schema), file)
    mixed = f"{file}: prompts name 0 candidates, but CANDIDATES=2. {take.format(2)}"
    assert refused(recipe=recipe, VAL_FILE=file, TRAIN_FILE=file, CANDIDATES="2") == mixed


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
    assert ("column year is missing" if years == "no column" else "the catalog has no years") in message


def test_undated_data_trains_but_not_with_reference_matching(
    warned: Callable[..., list[str]], refused: Refused, sample: Path, tmp_path: Path
) -> None:
    def undate(rows: list[dict[str, Any]]) -> None:
        for row in rows:
            row["groundtruth_with_release_year"] = [[title, ""] for title, _ in row["groundtruth_with_release_year"]]

    names = {"TRAIN_FILE": "train", "VAL_FILE": "validation"}
    files = {
        variable: _changed(sample / f"{name}.parquet", tmp_path / f"{name}.parquet", undate)
        for variable, name in names.items()
    }
    titles = pq.read_table(sample / "catalog.parquet")["title"]
    files["CATALOG_FILE"] = str(tmp_path / "catalog.parquet")
    pq.write_table(pa.table({"title": titles, "year": pa.nulls(len(titles), pa.int32())}), files["CATALOG_FILE"])
    assert warned(**files) == []
    assert "no years, which convrec.matching=reference" in refused(**files, PRESET="reference")


def test_a_broken_year_is_only_a_warning(warned: Callable[..., list[str]], sample: Path, tmp_path: Path) -> None:
    file = tmp_path / "catalog.parquet"
    catalog = pq.read_table(sample / "catalog.parquet").to_pylist()
    catalog[4]["year"] = 201
    pq.write_table(pa.Table.from_pylist(catalog), file)
    (warning,) = warned(CATALOG_FILE=str(file))
    assert warning.startswith(f"{file}: row 4: ")
    assert "201" in warning


@pytest.mark.parametrize(
    ("recipe", "present", "said"),
    [
        ("rank_grpo", 2, "N_GPUS_PER_NODE=4, but this machine has 2 GPUs"),
        ("sft", 2, "N_GPUS_PER_NODE=4, but this machine has 2 GPUs"),
        ("separate_async", 6, r"N_GPUS_PER_NODE=4 and 1 x 4 for the rollout .* this machine has 6 GPUs"),
    ],
)
def test_more_gpus_than_this_machine_has_are_a_clusters(
    good: dict[str, str],
    good_sft: dict[str, str],
    set_variables: SetVariables,
    monkeypatch: pytest.MonkeyPatch,
    recipe: str,
    present: int,
    said: str,
) -> None:
    set_variables((good_sft if recipe == "sft" else good) | {"N_GPUS_PER_NODE": "4"})
    monkeypatch.setattr(gpus, "usable_gpus", lambda: present)
    name, overrides = (recipe, []) if recipe in RECIPES else ("rank_grpo", [f"+scale={recipe}"])
    config = settings.compose(name, overrides).verl_config
    with pytest.raises(UserError, match=said):
        RECIPES[name].check(Run.from_config(config))
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    config.trainer.nnodes, config.data.train_batch_size = 2, 8
    if recipe == "separate_async" and not find_spec("cupy"):
        with pytest.raises(UserError, match=r"weights go through cupy, .* pip install cupy-cuda13x==14\.0\.1"):
            RECIPES[name].check(Run.from_config(config))
        monkeypatch.setattr(checks, "find_spec", lambda package: package)
    RECIPES[name].check(Run.from_config(config))


@pytest.mark.parametrize(("address", "devices", "asked"), [("", 1, [False]), ("", 2, [False]), ("head:6379", 1, [])])
def test_sfts_own_machine_is_examined_where_it_trains_there(
    good_sft: dict[str, str],
    set_variables: SetVariables,
    monkeypatch: pytest.MonkeyPatch,
    address: str,
    devices: int,
    asked: list[bool],
) -> None:
    """A cluster's nodes are examined once Ray is there."""
    found: list[bool] = []
    monkeypatch.setattr(findings, "examine", lambda config, on_cluster: found.append(on_cluster) or [])
    monkeypatch.setitem(RECIPES, "sft", replace(RECIPES["sft"], train=lambda *args: None))
    set_variables(good_sft | {"N_GPUS_PER_NODE": str(devices)})
    monkeypatch.setenv("RAY_ADDRESS", address)
    with mock.patch.dict(os.environ):
        assert runner.run(RECIPES["sft"], []) == 0
    assert found == asked


def test_sft_with_fewer_validation_rows_than_devices(
    refused: Refused, good_sft: dict[str, str], tmp_path: Path
) -> None:
    three = str(tmp_path / "three.parquet")
    pq.write_table(pq.read_table(good_sft["VAL_FILE"]).slice(0, 3), three)
    message = refused(recipe="sft", N_GPUS_PER_NODE="4", VAL_FILE=three)
    assert message.startswith("VAL_FILE has 3 rows, fewer than the 4 devices")


def test_sft_without_completions(refused: Refused, sample: Path) -> None:
    file = sample / "train.parquet"
    message = refused(recipe="sft", TRAIN_FILE=str(file))
    assert message.startswith(f"{file}: no column completion; it has prompt, ")


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"MODEL_PATH": "/no/such/model"}, "MODEL_PATH=/no/such/model: no such folder"),
        ({"TRAIN_FILE": "/no/train.parquet"}, "TRAIN_FILE=/no/train.parquet: no such file"),
        ({"N_GPUS_PER_NODE": "3"}, "TRAIN_BATCH_SIZE=4 does not divide over 3 devices"),
        ({"MAX_LENGTH": "2048"}, "MAX_LENGTH=2048: more tokens than the 1024 positions"),
        ({"SEED": "today"}, "SEED=today: expected an integer"),
        ({"N_NODES": "2"}, "N_NODES=2: more than this node are a Ray cluster's: set RAY_ADDRESS"),
        ({"SAVE_PATH": "/proc/run"}, "SAVE_PATH=/proc/run: No such file or directory: choose a folder that can"),
    ],
)
def test_wrong_variable_of_sft(refused: Refused, variables: dict[str, str], said: str) -> None:
    assert refused(recipe="sft", **variables).startswith(said)


@pytest.mark.parametrize("script", ["run_rank_grpo.sh", "run_sft.sh", "recipes/judge/run_pairwise.sh"])
def test_an_activated_environment_that_has_us_is_the_scripts(script: str, tmp_path: Path) -> None:
    """Not the repository's .venv beside it, which may be the one for CPUs."""
    mine, none_of_ours = tmp_path / "mine" / "bin", tmp_path / "other" / "bin"
    for folder in (mine, none_of_ours):
        folder.mkdir(parents=True)
        (folder / "python").write_text(f"#!/bin/sh\necho {folder}\n")
        (folder / "python").chmod(0o755)
    (mine / "convrec").write_text("#!/bin/sh\n")
    (mine / "convrec").chmod(0o755)
    told = {}
    for folder in (mine, none_of_ours):
        environment = {"PATH": os.environ["PATH"], "VIRTUAL_ENV": str(folder.parent)}
        command = ["bash", str(ROOT / script), "--help"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        told[folder] = done.stdout.strip()
    assert told[mine] == str(mine)
    assert told[none_of_ours] != str(none_of_ours)


@pytest.mark.parametrize("script", ["run_rank_grpo.sh", "run_sft.sh", "recipes/judge/run_pairwise.sh"])
def test_script_from_another_folder(script: str, good: dict[str, str], tmp_path: Path) -> None:
    environment = {**os.environ, **good, "TRAIN_FILE": "here/train.parquet", "PYTHON": sys.executable}
    environment.pop("RAY_ADDRESS", None)
    done = subprocess.run(
        ["bash", str(ROOT / script)], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2, done.stderr
    assert f"error: TRAIN_FILE={tmp_path}/here/train.parquet: no such file" in done.stderr


@pytest.mark.parametrize("script", ["run_rank_grpo.sh", "run_sft.sh", "recipes/judge/run_pointwise.sh"])
def test_wrong_value_stops_before_it_is_submitted(script: str, tmp_path: Path) -> None:
    """Nothing listens at the address: the variable is looked at first."""
    environment = {**os.environ, "RAY_ADDRESS": "http://127.0.0.1:9", "SEED": "today", "PYTHON": sys.executable}
    done = subprocess.run(
        ["bash", str(ROOT / script)], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2, done.stderr
    assert "error: SEED=today: expected an integer" in done.stderr


@pytest.mark.parametrize("recipe", ["rank_grpo", "sft"])
def test_weights_of_another_architecture_are_refused(
    refused: Refused, model: Path, tmp_path: Path, recipe: str
) -> None:
    """tests/convrec/checkpoints/test_architecture.py has what can be wrong."""
    folder = shutil.copytree(model, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    more = {"num_hidden_layers": 2, "layer_types": ["full_attention"] * 2}
    (folder / "config.json").write_text(json.dumps(config | more))
    message = refused(recipe=recipe, MODEL_PATH=str(folder))
    assert message.startswith(f"MODEL_PATH={folder}: the weights do not match the architecture in config.json")
    assert "missing: model.layers.1." in message


@pytest.mark.parametrize(("variable", "value"), [("CONSTRAINED", "1"), ("ASK", "genre")])
def test_a_model_of_images_lists_no_catalog(
    refused: Refused, model: Path, tmp_path: Path, variable: str, value: str
) -> None:
    folder = shutil.copytree(model, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vision_config": {}}))
    message = refused(MODEL_PATH=str(folder), **{variable: value})
    assert message.startswith(variable)
    assert f"MODEL_PATH={folder} reads images (vision_config)" in message


def test_a_rollout_on_a_cpu_needs_vllm_built_for_it(refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise UserError("no GPU is visible, and vLLM is built for GPUs")

    monkeypatch.setattr(gpus, "check_vllm_runs_on_cpu", refuse)
    assert refused() == "no GPU is visible, and vLLM is built for GPUs"
