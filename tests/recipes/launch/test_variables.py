"""The table of variables, and the shipped configs say the same."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from convrec.errors import UserError
from convrec.judges.prompt import MAX_RESPONSE_TOKENS
from recipes.launch import settings
from recipes.launch.algorithms import ALGORITHMS
from recipes.launch.recipe import POINTWISE_JUDGE, RANK_GRPO, RECIPES, SFT
from recipes.launch.variables import (
    JUDGE_DEFAULTS,
    JUDGE_HELP,
    TRACKERS,
    VARIABLES,
    overrides_from_environment,
)
from recipes.launch.verl_settings import VERL_TRACKERS
from recipes.preflight import host

ROOT = Path(__file__).resolve().parents[3]

PARTS = {"relevance": 1.0, "diversity.title": 0.5, "catalog.price (EUR)": -0.1}
# variable -> (a value that is not the default, what it becomes). Paths hold what Hydra's grammar gives a meaning.
VALUES: dict[str, tuple[str, Any]] = {
    "MODEL_PATH": ("someone/a-model", "someone/a-model"),
    "TRAIN_FILE": ("/data/it's,a=file[1].parquet", "/data/it's,a=file[1].parquet"),
    "VAL_FILE": ("relative/val.parquet", os.path.abspath("relative/val.parquet")),
    "CATALOG_FILE": ("~/catalog.parquet", os.path.expanduser("~/catalog.parquet")),
    "SAVE_PATH": ("/runs/with space/a\\b\\'c\\\\", "/runs/with space/a\\b\\'c\\\\"),
    "SAVE_FREQ": ("5", 5),
    "TEST_FREQ": ("7", 7),
    "SAVE_KEEP": ("2", 2),
    "N_GPUS_PER_NODE": ("3", 3),
    "N_NODES": ("5", 5),
    "TENSOR_PARALLEL": ("11", 11),
    "GPU_MEMORY_UTILIZATION": ("00.61", 0.61),
    "TRAIN_BATCH_SIZE": ("120", 120),
    "ROLLOUT_N": ("13", 13),
    "LR": ("03e-4", 3e-4),
    "KL_LOSS_COEF": ("0", 0),
    "MU": ("4", 4),
    "REWARD": ("log_decay", "log_decay"),
    "REWARDS": ("relevance: 1, diversity.title: 0.5, catalog.price (EUR): -.1", PARTS),
    "ALGORITHM": ("gspo", "gspo"),
    "PRESET": ("reference", "reference"),
    "CONSTRAINED": ("1", True),
    "NUM_ITEMS": ("10", 10),
    "TOTAL_EPOCHS": ("17", 17),
    "TOTAL_STEPS": ("19", 19),
    "MAX_PROMPT_LENGTH": ("333", 333),
    "MAX_RESPONSE_LENGTH": ("444", 444),
    "MAX_LENGTH": ("555", 555),
    "LOGGER": ("console, tensorboard", ["console", "tensorboard", "file"]),
    "WATCHDOG": ("off", "off"),
    "SEED": ("42", 42),
}
JUDGES = [recipe.name for recipe in RECIPES.values() if recipe.answers == "verdicts"]
GROUPS = {"algorithm_preset": "actor_rollout_ref.actor.policy_loss.loss_mode"}  # a group is seen by what it sets


@pytest.fixture(scope="module")
def clean_environment() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        for name in (*VALUES, "RAY_ADDRESS", "SWANLAB_API_KEY"):
            patch.delenv(name, raising=False)
        patch.setattr(host, "num_accelerators", lambda: 4)
        yield patch


@pytest.fixture(scope="module")
def defaults(clean_environment: pytest.MonkeyPatch) -> dict[str, DictConfig]:
    return {recipe: settings.compose(recipe, []) for recipe in RECIPES}


@pytest.fixture(scope="module")
def with_all_set(clean_environment: pytest.MonkeyPatch, defaults: dict[str, DictConfig]) -> dict[str, DictConfig]:
    with pytest.MonkeyPatch.context() as patch:
        for name, (text, _) in VALUES.items():
            patch.setenv(name, text)
        return {recipe: settings.compose(recipe, []) for recipe in RECIPES}


def test_every_variable_has_a_value_here() -> None:
    assert set(VALUES) == {variable.name for variable in VARIABLES}


@pytest.mark.parametrize(
    ("name", "recipe", "key"),
    [
        (variable.name, recipe.name, key)
        for variable in VARIABLES
        for recipe in RECIPES.values()
        for key in variable.keys_of(recipe)
    ],
)  # fmt: skip
def test_variable_reaches_the_config(
    name: str, recipe: str, key: str, defaults: dict[str, DictConfig], with_all_set: dict[str, DictConfig]
) -> None:
    key = GROUPS.get(key, key)
    wanted = VALUES[name][1]
    got = OmegaConf.select(with_all_set[recipe], key, throw_on_missing=True)
    assert got == wanted
    assert OmegaConf.select(defaults[recipe], key) != wanted, "the value here must not be the default"


def test_command_line_wins_over_the_variable(
    clean_environment: pytest.MonkeyPatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LR", "3e-4")
    assert settings.compose("sft", ["optim.lr=7e-5"]).optim.lr == 7e-5


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("REWARD", "ndcg", "one of exp_inf, log_decay, exp_gamma"),
        ("REWARDS", "relevance", "part: weight, of relevance, diversity"),
        ("REWARDS", "relevance: 1, moon: 1", "part: weight, of relevance, diversity"),
        ("REWARDS", "relevance: 1, relevance: 2", "part: weight, of relevance, diversity"),
        ("REWARDS", "{relevance: much}", "part: weight, of relevance, diversity"),
        ("REWARDS", "catalog.été: 1", "names in ASCII, without quotes, ; and #, for Hydra: rename the column"),
        ("SAVE_PATH", "${HOME}/x", "a path without ${...}, which nobody replaces here: write it out"),
        ("ALGORITHM", "ppo", "one of rank_grpo, grpo, gspo"),
        ("PRESET", "Paper", "one of paper, reference"),
        ("CONSTRAINED", "yes", "0 or 1"),
        ("LOGGER", "console,swanlap", "swanlab"),
        ("MU", "1.5", "a positive integer"),
        ("MU", "0", "a positive integer"),
        ("LR", "fast", "a positive number"),
        ("LR", "nan", "a positive number"),
        ("KL_LOSS_COEF", "-1e-3", "at least 0"),
        ("GPU_MEMORY_UTILIZATION", "80", "at most 1"),
        ("SAVE_FREQ", "often", "a positive integer"),
        ("SAVE_KEEP", "0", "a positive integer, or all"),
    ],
)
def test_wrong_value_names_variable_value_and_mend(name: str, text: str, told: str) -> None:
    with pytest.raises(UserError) as error:
        overrides_from_environment(RANK_GRPO, {name: text})
    assert str(error.value).startswith(f"{name}={text}: expected ")
    assert told in str(error.value)


def test_all_checkpoints_can_be_kept() -> None:
    assert overrides_from_environment(RANK_GRPO, {"SAVE_KEEP": "all"}) == ["trainer.max_actor_ckpt_to_keep=null"]


def test_empty_variable_is_an_unset_one_and_the_other_recipes_are_left_out() -> None:
    assert overrides_from_environment(SFT, {"LR": " ", "MU": "2"}) == []


def test_wrong_override_on_the_command_line_is_the_users_error(clean_environment: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="no_such_key"):
        settings.compose("rank_grpo", ["no_such_key=1"])


def test_trackers_are_verls() -> None:
    from verl.utils.tracking import Tracking

    assert set(TRACKERS) < set(VERL_TRACKERS) == set(Tracking.supported_backend)


@pytest.mark.parametrize("on", ["cpu", "gpu"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_rank_grpo_config_composes(on: str, algorithm: str) -> None:
    config = _shipped("rank_grpo", f"host={on}", f"algorithm_preset={algorithm}")
    OmegaConf.resolve(config)
    actor = config.actor_rollout_ref.actor
    assert config.trainer.v1.trainer_mode == "rank_grpo"
    assert config.trainer.device == ("cpu" if on == "cpu" else "cuda")
    assert actor.fsdp_config.mixed_precision.param_dtype == ("fp32" if on == "cpu" else "bf16")
    assert actor.fsdp_config.model_dtype == "fp32"
    expected = {"rank_grpo": (0.06, 0.08), "grpo": (0.2, 0.26), "gspo": (3e-4, 4e-4)}[algorithm]
    assert (actor.clip_ratio_low, actor.clip_ratio_high) == expected
    assert config.algorithm.adv_estimator == ("rank_grpo" if algorithm == "rank_grpo" else "grpo")


@pytest.mark.parametrize("on", ["cpu", "gpu"])
def test_sft_config_composes(on: str) -> None:
    config = _shipped("sft", f"sft_host={on}")
    OmegaConf.resolve(config)
    assert config.trainer.device == ("cpu" if on == "cpu" else "cuda")
    assert config.engine.model_dtype == "fp32"
    assert config.engine.mixed_precision.param_dtype == ("fp32" if on == "cpu" else "bf16")


def test_every_config_file_is_composed_by_these_tests() -> None:
    shipped = {path.relative_to(ROOT / "conf").as_posix() for path in (ROOT / "conf").rglob("*.yaml")}
    hosts = {f"{group}/{on}.yaml" for group in ("host", "sft_host") for on in ("cpu", "gpu")}
    algorithms = {f"algorithm_preset/{name}.yaml" for name in ALGORITHMS}
    judges = {"judge.yaml", *(f"{recipe}.yaml" for recipe in JUDGES)}
    scales = {f"scale/{name}.yaml" for name in ("lora", "tensor_parallel", "separate_async", "separate_async_cpu")}
    assert shipped == {"rank_grpo.yaml", "sft.yaml", "rl.yaml"} | judges | hosts | algorithms | scales


def test_lora_and_tensor_parallel_rollout_compose_and_verl_takes_them() -> None:
    from verl.utils.config import omega_conf_to_dataclass, validate_config

    for recipe in ("rank_grpo", *JUDGES):
        config = _shipped(recipe, "host=gpu", "+scale=lora", "trainer.n_gpus_per_node=4")
        OmegaConf.resolve(config)
        validate_config(config, use_reference_policy=True, use_critic=False)
        assert config.actor_rollout_ref.model.lora_rank == 32
        assert config.actor_rollout_ref.actor.optim.lr == 1e-5
        config = _shipped(recipe, "host=gpu", "+scale=tensor_parallel", "trainer.n_gpus_per_node=4")
        validate_config(config, use_reference_policy=True, use_critic=False)
        assert omega_conf_to_dataclass(config.actor_rollout_ref.rollout).tensor_model_parallel_size == 2


@pytest.mark.parametrize(("on", "scale"), [("gpu", "separate_async"), ("cpu", "separate_async_cpu")])
def test_the_asynchronous_trainer_composes_and_meets_verls_demands(
    monkeypatch: pytest.MonkeyPatch, on: str, scale: str
) -> None:
    from verl.trainer.ppo.v1 import trainer_separate_async
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer, get_trainer_cls

    from convrec.rank_grpo.on_policy import is_on_policy
    from convrec.training.rank_trainer import RankGRPOSeparateAsyncTrainer

    config = _shipped("rank_grpo", f"host={on}", f"+scale={scale}")
    engine = config.actor_rollout_ref.rollout.checkpoint_engine
    assert (engine.backend == "nccl") == (on == "gpu")
    assert get_trainer_cls(config.trainer.v1.trainer_mode) is RankGRPOSeparateAsyncTrainer
    monkeypatch.setattr(PPOTrainer, "__init__", lambda self, config: setattr(self, "config", config))
    trainer = object.__new__(RankGRPOSeparateAsyncTrainer)
    trainer_separate_async.PPOTrainerSeparateAsync.__init__(trainer, config)  # asserts
    assert trainer.trainer_mode == "separate_async"
    assert {"save_model_to_cpu", "set_learning_rate"} <= set(dir(trainer.worker))
    assert not is_on_policy(config)  # its log-probs are taken anew, and the weights correct the difference


@pytest.mark.parametrize("on", ["cpu", "gpu"])
@pytest.mark.parametrize("recipe", JUDGES)
def test_judge_config_composes(on: str, recipe: str) -> None:
    config = _shipped(recipe, f"host={on}")
    OmegaConf.resolve(config)
    actor = config.actor_rollout_ref.actor
    assert config.trainer.v1.trainer_mode == "judge_grpo"
    assert config.trainer.device == ("cpu" if on == "cpu" else "cuda")
    assert config.algorithm.adv_estimator == "grpo"
    assert actor.policy_loss.loss_mode == "vanilla"  # verl's own
    assert actor.fsdp_config.model_dtype == "fp32"
    assert config.reward.custom_reward_function.path == f"pkg://reward.{recipe}"


@pytest.mark.parametrize(("recipe", "epochs"), [("judge_pointwise", 1), ("judge_pairwise", 30)])
def test_full_scale_judges(defaults: dict[str, DictConfig], recipe: str, epochs: int) -> None:
    config = defaults[recipe]
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    assert config.actor_rollout_ref.model.path == "Qwen/Qwen3-8B"
    assert (config.data.train_batch_size, rollout.n) == (96, 4)
    assert (config.data.max_prompt_length, config.data.max_response_length) == (4096, 2048)
    assert (actor.optim.lr, actor.optim.get("lr_scheduler_type")) == (1e-6, "constant")
    assert (actor.use_kl_loss, actor.kl_loss_coef, actor.kl_loss_type) == (True, 0.001, "low_var_kl")
    assert (actor.ppo_epochs, actor.ppo_mini_batch_size) == (1, 24)
    assert (rollout.temperature, rollout.top_p, rollout.top_k) == (1.0, 1.0, -1)
    assert (rollout.tensor_model_parallel_size, rollout.gpu_memory_utilization) == (config.trainer.n_gpus_per_node, 0.6)
    assert config.trainer.total_epochs == epochs
    assert max(config.trainer.save_freq, config.trainer.test_freq) < 62  # steps of an epoch of RewardBench-2, pointwise
    assert config.data.max_response_length == MAX_RESPONSE_TOKENS
    assert config.data.apply_chat_template_kwargs == {"enable_thinking": True}
    assert config.trainer.default_local_dir == os.path.abspath(f"checkpoints/{recipe}/Qwen3-8B")


@pytest.mark.parametrize(("size", "mini_batch"), [(96, 24), (16, 4), (9, 9)])
def test_a_judges_step_is_four_updates_where_it_divides(
    monkeypatch: pytest.MonkeyPatch, size: int, mini_batch: int
) -> None:
    monkeypatch.setattr(host, "num_accelerators", lambda: 0)
    config = settings.compose("judge_pairwise", [f"data.train_batch_size={size}"])
    written = OmegaConf.to_container(config, resolve=False)
    assert written["actor_rollout_ref"]["actor"]["ppo_mini_batch_size"] == mini_batch  # a number, for the workers


def test_a_judges_reward_for_malformed_answers_reaches_its_function(monkeypatch: pytest.MonkeyPatch) -> None:
    from verl.trainer.ppo.reward import get_custom_reward_fn

    monkeypatch.setattr(host, "num_accelerators", lambda: 0)
    for recipe, truth in zip(JUDGES, (3, "A"), strict=True):
        for overrides, reward in (([], 0.0), (["convrec.malformed_reward=-1"], -1.0)):
            compute_score = get_custom_reward_fn(settings.compose(recipe, overrides))
            assert compute_score(data_source="d", solution_str="?", ground_truth=truth)["score"] == reward


def test_the_judges_defaults_are_of_variables_that_they_read() -> None:
    read = {variable.name for variable in VARIABLES if variable.keys_of(POINTWISE_JUDGE)}
    assert JUDGE_DEFAULTS.keys() | JUDGE_HELP.keys() <= read


def test_full_scale_rl_is_the_papers(defaults: dict[str, DictConfig]) -> None:
    config = defaults["rank_grpo"]
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    assert config.actor_rollout_ref.model.path == "Qwen/Qwen2.5-0.5B-Instruct"
    assert config.trainer.n_gpus_per_node == 4  # what the machine has
    assert (config.data.train_batch_size, rollout.n) == (48, 8)  # 384 responses
    assert (config.data.max_prompt_length, config.data.max_response_length) == (2048, 1024)
    assert (actor.optim.lr, actor.optim.betas, actor.optim.get("lr_scheduler_type")) == (1e-6, [0.9, 0.99], "constant")
    assert not actor.optim.lr_warmup_steps_ratio
    assert (actor.use_kl_loss, actor.kl_loss_coef) == (True, 0.001)
    assert (actor.ppo_epochs, actor.ppo_mini_batch_size) == (1, 48)  # mu = 1
    assert (rollout.temperature, rollout.top_p, rollout.top_k) == (1.0, 1.0, -1)
    assert (config.trainer.total_epochs, config.data.seed) == (2, 3407)
    assert (config.trainer.save_freq, config.trainer.max_actor_ckpt_to_keep) == (200, 3)  # of 79
    assert config.convrec.num_items == 20
    assert (config.convrec.reward, config.convrec.preset) == ("exp_inf", "paper")
    assert (config.convrec.overflow_penalty, config.convrec.underflow_penalty) == (-0.1, -0.1)
    assert (config.convrec.matching, config.convrec.year_tolerance, config.convrec.fuzzy_cutoff) == ("fuzzy", 2, 90)


def test_full_scale_sft_is_the_papers(defaults: dict[str, DictConfig]) -> None:
    config = defaults["sft"]
    assert config.model.path == "Qwen/Qwen2.5-0.5B-Instruct"
    assert config.data.train_batch_size == 4 * 12 * 8
    assert config.data.max_length == 1024
    optim = config.optim
    assert (optim.lr, optim.lr_scheduler_type, optim.lr_warmup_steps_ratio) == (5e-5, "cosine", 0.05)
    assert (config.trainer.total_epochs, config.trainer.save_freq) == (10, 100)
    assert config.trainer.max_ckpt_to_keep is None  # the paper goes on from step 1500, not from the last
    assert (config.trainer.seed, config.data.seed) == (3407, 3407)
    assert "hf_model" in config.checkpoint.save_contents


def test_no_config_or_environment_of_a_job_holds_a_secret(
    clean_environment: pytest.MonkeyPatch, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SWANLAB_API_KEY", "a-secret")
    config = settings.compose("rank_grpo", [])
    assert "swanlab" in config.trainer.logger
    settings.save_config(config, tmp_path)
    assert "a-secret" not in (tmp_path / "config.yaml").read_text()


def _shipped(recipe: str, *overrides: str) -> DictConfig:
    with initialize_config_dir(str(ROOT / "conf"), version_base=None):
        return hydra_compose(recipe, overrides=list(overrides))
