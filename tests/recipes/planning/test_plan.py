"""Figures of whole plans, what they rest on, and what more GPUs do to them."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from omegaconf import DictConfig

from convrec.errors import UserError
from recipes.launch.recipe import RANK_GRPO, RECIPES, SFT
from recipes.planning import constants, step_time
from recipes.planning.constants import GPUS, Constant
from recipes.planning.figures import Figure, figure, shown, total
from recipes.planning.models import known_size
from recipes.planning.plan import Plan, make_plan
from recipes.planning.run import Data
from tests.recipes.planning.conftest import cluster

DATA = Data(rows=4_000, validation_rows=100)
NODES = "trainer.nnodes"
Config = Callable[..., DictConfig]


def plan_of(config: DictConfig, model: str = "0.5B", data: Data = DATA, gpu: str = "H100") -> Plan:
    recipe = SFT if "engine" in config else RANK_GRPO
    size = known_size(model)
    assert size is not None
    machines = cluster(config.trainer.nnodes, config.trainer.n_gpus_per_node, gpu)
    return make_plan(config, size, machines, data, recipe.requirements)


def value(figures: list[Figure], name: str) -> float:
    return next(entry.value for entry in figures if entry.name == name)


def test_steps_checkpoints_and_validations(config_with: Config) -> None:
    """4,000 rows are 83 batches of 48 (16 rows are dropped); 2 epochs; every 200th step is saved and validated, and the
    last: 1."""
    plan = plan_of(config_with())
    assert [entry.value for entry in plan.work if entry.name != "hours"] == [166, 1, 1]
    often = plan_of(config_with(keys={"trainer.save_freq": 50, "trainer.test_freq": 40, "trainer.total_epochs": 3}))
    assert [entry.value for entry in often.work if entry.name != "hours"] == [249, 5, 7]
    never = {"trainer.test_freq": -1}  # SFT validates at the end all the same
    kinds = [plan_of(config_with(recipe, keys=never)) for recipe in ("rank_grpo", "sft")]
    assert [value(plan.work, "validations") for plan in kinds] == [0, 1]
    asked = plan_of(config_with(keys={"trainer.total_training_steps": 1_000}))
    assert value(asked.work, "steps") == 1_000


def test_sft_has_96_sequences_a_device(config_with: Config) -> None:
    """4,000 rows / 768 = 5, ten epochs. 768 x 599 tokens over 8 GPUs: 5 micro-batches of at most 12,288, 8 P each."""
    plan = plan_of(config_with("sft"))
    assert value(plan.work, "steps") == 50
    assert plan.run.batch.length == 400 + 20 * 9.9 + 1
    assert value(plan.network, "update") == 5 * 8 * 494_032_768 * 7 / 8
    assert plan.sampling == []


def test_hours_are_the_start_and_the_steps(config_with: Config) -> None:
    plan = plan_of(config_with(keys={"trainer.test_freq": 50}))
    assert plan.step.value == pytest.approx(sum(phase.value for phase in plan.phases))
    assert plan.hours.value == pytest.approx((196 + 166 * plan.step.value) / 3600)
    # four validations of 100 prompts in 166 steps: 13 greedy lists on the busiest of 8 GPUs, 199 steps of 3 ms
    size, run = plan.run.size, plan.run
    assert run.rollout is not None
    prefill = step_time.prefill_seconds(run.cluster, size, run.validation, run.rollout)
    assert value(plan.phases, "validation") == pytest.approx(4 / 166 * (prefill + 199 * 3e-3))


def test_a_micro_batch_holds_as_many_sequences_as_are_asked_for(config_with: Config) -> None:
    def activations(**actor: Any) -> float:
        keys = {f"actor_rollout_ref.actor.{name}": given for name, given in actor.items()}
        return value(plan_of(config_with(keys=keys)).training, "activations")

    one = activations(use_dynamic_bsz=False, ppo_micro_batch_size_per_gpu=1)
    assert activations(use_dynamic_bsz=False, ppo_micro_batch_size_per_gpu=16) == 16 * one
    sequence = 2048 + 1024
    assert activations(use_dynamic_bsz=True, ppo_max_token_len_per_gpu=16 * sequence) == 16 * one


def test_memory_of_8b_on_eight_gpus(config_with: Config) -> None:
    """8,030,261,248 x 4 / 8 bytes of weights; as many of gradients and of the reference, twice as many of Adam.
    vLLM has half of 80 GB: 16.06 GB of weights, 4 GiB besides, the rest is cache."""
    plan = plan_of(config_with(), "8B")
    share = 8_030_261_248 * 4 // 8
    parts = ("parameters", "gradients", "optimizer", "reference")
    assert [value(plan.training, name) for name in parts] == [share, share, 2 * share, share]
    assert value(plan.sampling, "training state") == 4 * share
    assert value(plan.sampling, "cache") == pytest.approx(40e9 - 2 * 8_030_261_248 - 4 * 2**30)
    assert value(plan.storage, "a checkpoint") == 16 * 8_030_261_248
    assert value(plan.storage, "host memory of the first node for it") == 4 * 8_030_261_248
    assert value(plan.network, "weight sync") == 4 * 8_030_261_248 * 7 / 8


def test_old_log_probs_are_computed_where_the_batch_is_used_twice(config_with: Config) -> None:
    """As the trainer does; mu = 1 has none, and GRPO, which verl's own trainer runs, always."""
    assert value(plan_of(config_with()).phases, "old log-probs") == 0
    for keys in (
        {"actor_rollout_ref.actor.ppo_epochs": 2},
        {"actor_rollout_ref.actor.ppo_mini_batch_size": 24},
        {"algorithm.rollout_correction.rollout_is": "token"},
        {"algorithm.adv_estimator": "grpo"},
    ):
        phases = plan_of(config_with(keys=keys)).phases
        assert value(phases, "old log-probs") == value(phases, "reference") > 0
    without = plan_of(config_with(keys={"actor_rollout_ref.actor.use_kl_loss": False}))
    assert value(without.phases, "reference") == 0


def test_responses_are_as_long_as_the_lists_that_are_asked_for(config_with: Config) -> None:
    assert plan_of(config_with(keys={"convrec.num_items": 5})).run.batch.response == pytest.approx(5 * 9.9 + 1)
    given = replace(DATA, response=Constant("tokens of a response", 700, "tokens", "given", "--response-tokens"))
    plan = plan_of(config_with(), data=given)
    assert plan.run.batch.response == 700
    assert {c.kind for c in plan.step.constants} == {"given", "measured", "assumed"}
    short = plan_of(config_with(keys={"data.max_response_length": 64, "data.max_prompt_length": 128}))
    assert (short.run.batch.prompt, short.run.batch.response) == (128, 64)


def test_what_is_not_modelled_is_refused(config_with: Config) -> None:
    with pytest.raises(UserError, match="10 rows are not one step: TRAIN_BATCH_SIZE=48"):
        plan_of(config_with(), data=Data(10, 0))
    with pytest.raises(UserError, match="separate_async: rollout beside training is not modelled"):
        plan_of(config_with(keys={"trainer.v1.trainer_mode": "rank_grpo_separate_async"}))
    with pytest.raises(UserError, match="fsdp_size=3 does not divide the 8 GPUs"):
        plan_of(config_with(keys={"actor_rollout_ref.actor.fsdp_config.fsdp_size": 3}))
    with pytest.raises(UserError, match=r"trainer\.device=cpu"):
        plan_of(config_with(keys={"trainer.device": "cpu"}))


# ---- what more GPUs do ----


def update_network(plan: Plan) -> float:
    run = plan.run
    return step_time.update_network_seconds(run.cluster, run.size, run.batch, run.training)


@pytest.mark.parametrize("recipe", ["sft", "rank_grpo"])
@pytest.mark.parametrize("model", ["0.5B", "8B", "70B"])
def test_more_nodes_take_longer_only_where_the_network_does(recipe: str, model: str, config_with: Config) -> None:
    """Twice the nodes: no phase takes longer but those that wait for collectives, an update by no more than they."""
    config = config_with(recipe, {"data.train_batch_size": 6_144})
    plans = []
    for nodes in (1, 2, 4, 8, 16, 32, 64):
        config.trainer.nnodes = nodes
        plans.append(plan_of(config, model, Data(100_000, 0)))
    for fewer, more in pairwise(plans):
        of = {phase.name: phase.value for phase in more.phases}
        before = {phase.name: phase.value for phase in fewer.phases}
        slower = {name for name, seconds in of.items() if seconds > before[name] * (1 + 1e-9)}
        assert slower <= {"update", "reference", "weight sync"}
        assert of["update"] <= before["update"] + max(0.0, update_network(more) - update_network(fewer))
        if not slower:
            assert more.hours.value < fewer.hours.value


@pytest.mark.parametrize("recipe", ["sft", "rank_grpo"])
def test_memory_of_training_falls_with_every_node_that_shares_it(recipe: str, config_with: Config) -> None:
    needed = [total("", plan_of(config_with(recipe, {NODES: n}), "70B").training).value for n in (1, 2, 4, 8)]
    assert needed == sorted(needed, reverse=True)
    assert len(set(needed)) == 4


def test_a_copy_a_node_takes_its_memory_and_spares_the_network(config_with: Config) -> None:
    """fsdp_size=8 on 16 nodes: state as on one node, and rings of 8 in place of 128: fewer hops of a small model."""
    key = "actor_rollout_ref.actor.fsdp_config.fsdp_size"
    shared = plan_of(config_with(keys={NODES: 16}))
    copied = plan_of(config_with(keys={NODES: 16, key: 8}))
    one = plan_of(config_with())
    assert value(copied.training, "optimizer") == value(one.training, "optimizer") > value(shared.training, "optimizer")
    assert value(copied.phases, "weight sync") < value(shared.phases, "weight sync")


def test_a_gpu_with_more_bandwidth_decodes_faster(config_with: Config) -> None:
    plans = {gpu: plan_of(config_with(), "70B", gpu=gpu) for gpu in GPUS}
    assert value(plans["H200"].phases, "decode") < value(plans["H100"].phases, "decode")
    assert value(plans["H100"].phases, "update") < value(plans["A100"].phases, "update")


# ---- what figures rest on ----


def all_constants() -> list[Constant]:
    ours = [entry for entry in vars(constants).values() if isinstance(entry, Constant)]
    return ours + [entry for entry in vars(GPUS["H100"]).values() if isinstance(entry, Constant)]


def figures(plan: Plan) -> dict[tuple[str, str], Figure]:
    return {(section, entry.name): entry for section, entries in plan.sections.items() for entry in entries}


@pytest.mark.parametrize("recipe", ["sft", "rank_grpo"])
def test_a_figure_names_every_constant_that_it_moves_with(recipe: str, config_with: Config) -> None:
    """Each constant is taken larger and smaller, for a small model and for a large one on two nodes."""
    settings: list[tuple[str, dict[str, Any]]] = [("0.5B", {}), ("8B", {NODES: 2, "trainer.test_freq": 20})]
    moved = set()
    for model, keys in settings:
        config = config_with(recipe, keys)
        before = figures(plan_of(config, model))
        for constant in all_constants():
            kept = constant.value
            for factor in (0.5, 1.5):
                object.__setattr__(constant, "value", kept * factor)
                try:
                    after = figures(plan_of(config, model))
                finally:
                    object.__setattr__(constant, "value", kept)
                for key, entry in before.items():
                    if after[key].value != entry.value:
                        moved.add(constant.name)
                        assert constant.name in {named.name for named in entry.constants}, (key, constant.name)
    assert {"share of the peak in training", "tokens of a prompt", "a process writes", "peak, bf16"} <= moved


def test_every_constant_says_where_it_is_from_and_has_a_name_of_its_own() -> None:
    every = all_constants()
    assert all(entry.source and entry.kind in ("measured", "assumed") for entry in every)
    assert len({entry.name for entry in every}) == len(every)


def test_a_figure_says_which_kind_it_rests_on() -> None:
    assert figure("x", "s", constants.SLEEP).rests_on == "measured"
    assert figure("x", "s", lambda: constants.SLEEP() + constants.NVLINK_HOP()).rests_on == "measured + assumed"
    assert figure("x", "s", lambda: 1.0).rests_on == "counted"
    parts = [figure("x", "s", constants.SLEEP), figure("y", "s", constants.NVLINK_HOP)]
    assert (total("z", parts).value, total("z", parts).rests_on) == (0.12 + 3.4e-6, "measured + assumed")


@pytest.mark.parametrize(
    ("number", "unit", "text"),
    [
        (15_958, "", "15,958"),
        (0.5970001, "s", "0.597 s"),
        (0, "s", "0 s"),
        (8.4e-6, "s", "8.4 us"),
        (2**30 * 36.84, "bytes", "36.8 GiB"),
        (989e12, "FLOP/s", "989 TFLOP/s"),
        (1.23e12, "bytes/day", "1,146 GiB/day"),
    ],
)
def test_numbers_are_written_with_three_digits(number: float, unit: str, text: str) -> None:
    assert shown(number, unit) == text


def test_every_recipe_that_writes_lists_can_be_planned(config_with: Config) -> None:
    for name, recipe in RECIPES.items():
        if recipe.answers == "lists":
            assert plan_of(config_with(name)).step.value > 0
