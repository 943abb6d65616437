"""The typed run of a composed config: our settings by name, and properties of verl's."""

import dataclasses
from typing import Any

import pytest
from omegaconf import OmegaConf

from convrec.base.errors import UserError
from convrec.settings.judges import PairwiseJudgeConfig, PointwiseJudgeConfig
from convrec.settings.rank_grpo import RankGRPOConfig
from convrec.settings.run import RolloutMemory, Run, Sampling, Sharding, read_settings
from convrec.settings.sft import SFTConfig
from recipes.launch.recipe import RECIPES
from recipes.launch.settings import compose_files

CLASSES = {
    "sft": SFTConfig,
    "rank_grpo": RankGRPOConfig,
    "judge_pointwise": PointwiseJudgeConfig,
    "judge_pairwise": PairwiseJudgeConfig,
}
GPU_NODE = ("trainer.n_gpus_per_node=8", "trainer.default_local_dir=/runs/x")


def run_with(recipe: str, *overrides: str, host: str = "gpu") -> Run[Any]:
    hosts = [f"{RECIPES[recipe].host_group}={host}"]
    return Run.from_config(compose_files(RECIPES[recipe], [*GPU_NODE, *overrides], hosts, environment={}))


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_defaults_of_a_class_are_those_of_a_composed_run(recipe: str) -> None:
    run = run_with(recipe)
    assert type(run.settings) is CLASSES[recipe]
    defaults = CLASSES[recipe](output_dir="/runs/x", gpus_per_node=8)
    chosen_by_conf = {field for field, value in vars(defaults).items() if value is None}
    known = {field: value for field, value in vars(defaults).items() if field not in chosen_by_conf}
    assert vars(run.settings).items() >= known.items()


def test_null_is_not_the_default() -> None:
    assert run_with("rank_grpo").settings.save_keep == 3
    run = run_with("rank_grpo", "trainer.max_actor_ckpt_to_keep=null")
    assert (run.settings.save_keep, run.save_keep) == (None, None)
    assert run_with("rank_grpo", "convrec.preset=reference").settings.matching == "reference"


def test_settings_hold_values_and_no_nodes_of_omegaconf() -> None:
    run = run_with("rank_grpo", "convrec.rewards={relevance: 1}", "convrec.ask=[genre]", "data.seed=7")
    settings = run.settings
    assert (type(settings.rewards), type(settings.ask), settings.seed) == (dict, list, 7)
    assert settings.algorithm == "rank_grpo"
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.seed = 8


def test_a_config_of_another_kind_is_refused() -> None:
    config = OmegaConf.create({"actor_rollout_ref": {}, "convrec": {"num_items": 0}})
    with pytest.raises(UserError, match="num_items=0: expected a positive integer"):
        read_settings(config)


def test_properties_of_the_devices() -> None:
    run = run_with("rank_grpo", "trainer.nnodes=2")
    assert (run.num_devices, run.uses_gpu, run.colocates_rollout, run.rollout_devices) == (16, True, True, (0, 0))
    beside = run_with("rank_grpo", "+scale=separate_async")
    assert (beside.colocates_rollout, beside.rollout_devices, beside.weight_transfer) == (False, (1, 4), "nccl")
    assert not run_with("sft", host="cpu").uses_gpu


def test_properties_of_model_and_memory() -> None:
    run = run_with("rank_grpo", "+scale=tensor_parallel")
    assert (run.tensor_parallel, run.micro_batch_tokens) == (2, 8192)
    assert run.sharding == Sharding(fsdp_size=-1, offloads_parameters=True, offloads_optimizer=True)
    assert run.rollout_memory == RolloutMemory(dtype="bfloat16", max_sequences=512, share=0.6, sleeps=True)
    assert run_with("rank_grpo", "+scale=lora").lora_rank == 32
    assert run_with("sft").micro_batch_tokens == 12288


def test_properties_of_the_method() -> None:
    run = run_with("rank_grpo", "algorithm_preset=gspo", "actor_rollout_ref.rollout.temperature=0.5")
    assert (run.is_rank_level, run_with("rank_grpo").is_rank_level) == (False, True)
    assert run.sampling == Sampling(temperature=0.5, top_p=1.0, top_k=-1)
    assert (run.group_filter, run.has_reference, run.rollout_correction.bypass) == (None, True, False)
    assert run_with("judge_pairwise", "data.train_batch_size=16").mini_batch_size == 4
