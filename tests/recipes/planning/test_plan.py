"""Figures of whole plans, shortages of memory, and the lines of a dry run."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import DictConfig, open_dict

from convrec.settings.run import Run
from convrec.training import token_log_probs
from recipes.launch.recipe import RANK_GRPO, SFT
from recipes.planning.estimate import CHUNK_TOKENS, GIB, Workload, find_shortages, gpu_parts, make_workload
from recipes.planning.figures import GPUS, START_SECONDS
from recipes.planning.models import KNOWN_MODELS, ModelSize, read_model_size
from recipes.planning.plan import make_plan, shown, summarize_plan
from recipes.preflight.findings import check_memory
from tests.user_errors import refuses

Config = Callable[..., DictConfig]
Plan = dict[str, Any]
N_NODES = "trainer.nnodes"
TENSOR_PARALLEL = "actor_rollout_ref.rollout.tensor_model_parallel_size"
CARD = GPUS["H100"].memory


def workload(config: DictConfig, size: ModelSize, *tokens: float) -> Workload:
    return make_workload(Run.from_config(config), size, *tokens)


def plan_of(config: DictConfig, model: str = "0.5B", rows: int = 4_000, val_rows: int = 100, gpu: str = "H100") -> Plan:
    run = Run.from_config(config)
    return make_plan(run, make_workload(run, KNOWN_MODELS[model].size), GPUS[gpu], rows, val_rows)


def test_steps_checkpoints_and_validations(config_with: Config) -> None:
    """4,000 rows are 83 batches of 48 (16 rows are dropped), twice; every 200th and the last step are saved: 1."""

    def work(recipe: str = "rank_grpo", **keys: Any) -> list[int]:
        figures = plan_of(config_with(recipe, {f"trainer.{name}": value for name, value in keys.items()}))["work"]
        return [figures[name] for name in ("steps", "checkpoints", "validations")]

    assert work() == [166, 1, 1]
    assert work(save_freq=50, test_freq=40, total_epochs=3) == [249, 5, 7]
    assert work(test_freq=-1)[2] == 0
    assert work("sft", test_freq=-1)[2] == 1  # SFT always validates at the end
    assert work(total_training_steps=1_000)[0] == 1_000


def test_sft_has_96_sequences_a_device(config_with: Config) -> None:
    """4,000 rows / 768 = 5, ten epochs. 768 x 599 tokens over 8 GPUs: 5 micro-batches of at most 12,288, 8 P each."""
    plan = plan_of(config_with("sft"))
    assert plan["work"]["steps"] == 50
    assert plan["work"]["tokens of a response"] == 20 * 9.9 + 1
    assert plan["storage and network"]["a GPU receives in a step, GiB"] == 5 * 8 * 494_032_768 * 7 / 8 / GIB
    assert plan["GiB of a GPU in sampling"] == {}


def test_hours_are_the_start_and_the_steps(config_with: Config) -> None:
    for recipe, start in (("rank_grpo", START_SECONDS.range), ("sft", 0 * START_SECONDS.range)):
        plan = plan_of(config_with(recipe))
        *parts, step = plan["seconds of a step"].values()
        for end in (0, 1):
            assert step[end] == pytest.approx(sum(part[end] for part in parts))
            assert plan["work"]["hours"][end] == pytest.approx((start[end] + plan["work"]["steps"] * step[end]) / 3600)


def test_a_micro_batch_holds_the_set_number_of_sequences(config_with: Config) -> None:
    def activations(**actor: Any) -> float:
        keys = {f"actor_rollout_ref.actor.{name}": value for name, value in actor.items()}
        return plan_of(config_with(keys=keys))["GiB of a GPU in training"]["activations"]

    one = activations(use_dynamic_bsz=False, ppo_micro_batch_size_per_gpu=1)
    assert activations(use_dynamic_bsz=False, ppo_micro_batch_size_per_gpu=16) == 16 * one
    sequence = 2048 + 1024
    assert activations(use_dynamic_bsz=True, ppo_max_token_len_per_gpu=16 * sequence) == 16 * one


def test_memory_of_8b_on_eight_gpus(config_with: Config) -> None:
    """Weights take 8,030,261,248 x 4 / 8 bytes, gradients the same, Adam twice that; the reference is on the host.

    vLLM has half of the card: 16.06 GB of weights, 4 GiB of other memory, and the cache. Offloaded parts are not there.
    """
    config = config_with()
    training, sampling = gpu_parts(workload(config, KNOWN_MODELS["8B"].size), CARD)
    share = 8_030_261_248 * 4 // 8
    parts = ("parameters", "gradients", "optimizer", "reference")
    assert [training[name] for name in parts] == [share, share, 2 * share, 0]
    assert [sampling.get(name) for name in parts] == [share, None, 2 * share, None]
    assert sampling["cache"] == CARD // 2 - 2 * 8_030_261_248 - 4 * GIB
    storage = plan_of(config, "8B")["storage and network"]
    assert storage["a checkpoint, GiB"] == 16 * 8_030_261_248 / GIB
    assert storage["host memory of the first node for it, GiB"] == 4 * 8_030_261_248 / GIB
    away = config_with(keys={f"actor_rollout_ref.{name}_offload": True for name in ("actor.fsdp_config.optimizer",)})
    assert "optimizer" not in gpu_parts(workload(away, KNOWN_MODELS["8B"].size), CARD)[1]


def test_sft_logits_on_gpus_are_planned_in_chunks_if_possible(config_with: Config, tmp_path: Path) -> None:
    """12,288 tokens x 151,936 words x 12 bytes are 20.9 GiB; in chunks, 1,024 tokens take 6 bytes, as does the head."""
    size = KNOWN_MODELS["0.5B"].size
    head = size.vocabulary * size.hidden
    chunked = 1024 * size.vocabulary * 6 + head * 6
    whole = 12_288 * size.vocabulary * 12

    def logits(keys: dict[str, Any]) -> int:
        return gpu_parts(workload(config_with("sft", keys), size), CARD)[0]["logits"]

    assert logits({}) == chunked
    assert logits({"model.lora_rank": 8}) == chunked - head * 6
    assert logits({"engine.ulysses_sequence_parallel_size": 2}) == whole
    (tmp_path / "config.json").write_text('{"final_logit_softcapping": 30.0}')
    assert logits({"model.path": str(tmp_path)}) == whole
    rl = {"actor_rollout_ref.model.use_fused_kernels": False}
    micro_batch = gpu_parts(workload(config_with(keys=rl), size), CARD)[0]["logits"]
    assert micro_batch == 32_768 * size.vocabulary * 12


def test_the_plan_has_the_chunk_size_of_training() -> None:
    assert CHUNK_TOKENS == token_log_probs.CHUNK


def test_old_log_probs_are_planned_when_the_batch_is_used_twice(config_with: Config) -> None:
    """With mu = 1 the trainer computes none. verl's own trainer, for GRPO, always does, except in bypass mode."""

    def log_probs(**keys: Any) -> float:
        plan = plan_of(config_with(keys={name.replace("__", "."): value for name, value in keys.items()}))
        return plan["seconds of a step"]["log-probs"][0]

    reference, correction = log_probs(), "algorithm__rollout_correction__"
    for keys in (
        {"actor_rollout_ref__actor__ppo_epochs": 2},
        {"actor_rollout_ref__actor__ppo_mini_batch_size": 24},
        {f"{correction}rollout_is": "token"},
        {"algorithm__adv_estimator": "grpo"},
    ):
        assert log_probs(**keys) == 2 * reference
        assert log_probs(**keys, **{f"{correction}bypass_mode": True}) == reference
    assert log_probs(actor_rollout_ref__actor__use_kl_loss=False) == 0


def test_responses_are_as_long_as_the_lists(config_with: Config) -> None:
    size = KNOWN_MODELS["0.5B"].size
    assert workload(config_with(keys={"convrec.num_items": 5}), size).response == pytest.approx(5 * 9.9 + 1)
    with_candidates = config_with(keys={"convrec.candidates": 50})
    assert workload(with_candidates, size).prompt == pytest.approx(workload(config_with(), size).prompt + 50 * 9.9)
    measured = workload(config_with(), size, 500, 700)
    assert (measured.prompt, measured.response) == (500, 700)
    short = workload(config_with(keys={"data.max_response_length": 64, "data.max_prompt_length": 128}), size)
    assert (short.prompt, short.response) == (128, 64)
    cut = workload(config_with("sft", {"data.max_length": 450}), size)
    assert (cut.prompt, cut.response) == (400, 50)


def test_unsupported_runs_are_refused(config_with: Config) -> None:
    with refuses("plan.too-few-rows", "10 rows", "TRAIN_BATCH_SIZE=48"):
        plan_of(config_with(), rows=10)
    with refuses("plan.unsupported-run", "+scale=separate_async"):
        plan_of(config_with(keys={"trainer.v1.trainer_mode": "rank_grpo_separate_async"}))
    with refuses("plan.indivisible-sharding", "fsdp_size=3", "8 GPUs"):
        plan_of(config_with(keys={"actor_rollout_ref.actor.fsdp_config.fsdp_size": 3}))
    with refuses("plan.unsupported-run", "trainer.device=cpu"):
        plan_of(config_with(keys={"trainer.device": "cpu"}))


@pytest.mark.parametrize(
    ("figure", "text"),
    [(15_958, "15,958"), (0.5970001, "0.597"), (0.0, "0"), (1990.4, "1,990"), ([3.46, 8.512], "3.5 to 8.5")],
)
def test_format_of_figures(figure: Any, text: str) -> None:
    assert shown(figure) == text


def test_a_copy_a_node_takes_its_memory(config_with: Config) -> None:
    """fsdp_size=8 on 16 nodes: state as on one node."""
    key = "actor_rollout_ref.actor.fsdp_config.fsdp_size"
    shared, copied, one = (
        gpu_parts(workload(config_with(keys=keys), KNOWN_MODELS["8B"].size), CARD)[0]["optimizer"]
        for keys in ({N_NODES: 16}, {N_NODES: 16, key: 8}, {})
    )
    assert copied == one == 16 * shared


# ---- shortages ----


def test_the_papers_run_fits_and_70b_on_a_node_lacks_everything(config_with: Config) -> None:
    """20 bytes x 70.55e9 / 8 = 164 GiB of state alone; 141 GB of weights are more than vLLM's 40."""
    four_gpus = config_with(keys={"trainer.n_gpus_per_node": 4})
    assert find_shortages(workload(four_gpus, KNOWN_MODELS["0.5B"].size), CARD) == {}
    shortages = find_shortages(workload(config_with(), KNOWN_MODELS["70B"].size), CARD)
    assert [text.split()[0] for text in shortages] == ["training", "sampling", "vLLM's"]
    assert "71.7" in next(iter(shortages))
    assert all(shortages.values())
    enough = config_with(keys={"data.train_batch_size": 256, N_NODES: 4, TENSOR_PARALLEL: 2})  # as the page says
    assert find_shortages(workload(enough, KNOWN_MODELS["32B"].size), CARD) == {}


def test_plan_finds_3b_on_one_card_trains_but_cannot_sample(config_with: Config) -> None:
    """3,212,749,824 x 12 bytes of weights and Adam = 35.9 GiB stay on the GPU with vLLM's half of 79.6 GiB."""
    config = config_with(keys={"trainer.n_gpus_per_node": 1})
    three_b = workload(config, KNOWN_MODELS["3B"].size)
    (shortage,) = find_shortages(three_b, CARD)
    assert shortage == "sampling needs 75.7 GiB of a GPU, 71.7 are usable"
    training, sampling = (sum(parts.values()) / GIB for parts in gpu_parts(three_b, CARD))
    assert (round(training, 1), round(sampling, 1)) == (59.7, 75.7)
    node: Any = SimpleNamespace(where="here", device_memory=CARD, memory_available=500 * GIB)
    result = check_memory(three_b, [node])[0]  # in the doctor, the dry run and every start
    assert (result.status, result.what, plan_of(config, "3B")["lacks"]) == ("warning", shortage, [shortage])


# ---- the dry run ----


@pytest.fixture
def config_of(config_with: Config, sample: Path, model: Path) -> Callable[[str], DictConfig]:
    """Return the config of a recipe on the sample: 40 rows of training data, batches of 8."""

    def make_config(recipe: str) -> DictConfig:
        key = "model.path" if recipe == "sft" else "actor_rollout_ref.model.path"
        files = {
            "data.train_files": str(sample / "train.parquet"),
            "data.val_files": str(sample / "validation.parquet"),
        }
        return config_with(recipe, {key: str(model), "data.train_batch_size": 8, **files})

    return make_config


@pytest.mark.parametrize("recipe", [RANK_GRPO, SFT], ids=lambda recipe: recipe.name)
def test_a_dry_run_has_the_hours_of_the_plan(recipe, config_of: Callable[[str], DictConfig], model: Path) -> None:
    config = config_of(recipe.name)
    config.trainer.total_epochs = 3
    steps, checkpoints, time = summarize_plan(Run.from_config(config))
    assert steps.startswith("steps: 15 of 8 rows out of 40; ")
    assert checkpoints.startswith("checkpoints: 1, 1 of them kept: 0.00 GiB each")
    plan = make_plan(Run.from_config(config), workload(config, read_model_size(str(model))), GPUS["H100"], 40, 10)
    hours, seconds = shown(plan["work"]["hours"]), shown(plan["seconds of a step"]["a step"])
    assert time.startswith(f"time: {hours} hours, {seconds} s per step, modelled for H100s")


def test_no_hours_without_gpus_nor_for_verdicts(config_of: Callable[[str], DictConfig]) -> None:
    on_cpu, judge = config_of("rank_grpo"), config_of("rank_grpo")
    on_cpu.trainer.device = "cpu"
    with open_dict(judge):
        judge.convrec.malformed_reward = 0.0  # only judges have this setting
    for config in (on_cpu, judge):
        assert len(summarize_plan(Run.from_config(config))) == 2
