"""The shipped configs compose, have the paper's settings, and turn the fast settings on for a run at full scale.

docs/explanation/performance.md has the fast settings in its last table.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from convrec.base.errors import UserError
from convrec.inference.engines.engine_settings import ONE_PROCESS
from convrec.judges.prompt import MAX_RESPONSE_TOKENS
from convrec.settings.choices import ALGORITHMS
from convrec.settings.run import AUTO
from recipes.launch.recipe import RECIPES
from recipes.launch.settings import compose, find_secrets, register_defaults, save_config, to_yaml
from tests.packages import hide_package, install_empty_package
from tests.recipes.conftest import set_gpus
from tests.user_errors import refuses

ROOT = Path(__file__).resolve().parents[3]
JUDGES = [recipe.name for recipe in RECIPES.values() if recipe.answers == "verdicts"]
FAST_RL = {
    "actor_rollout_ref.actor.use_dynamic_bsz": True,
    "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz": True,
    "actor_rollout_ref.ref.log_prob_use_dynamic_bsz": True,
    "actor_rollout_ref.model.use_remove_padding": True,
    "actor_rollout_ref.model.use_fused_kernels": True,
    "actor_rollout_ref.rollout.enable_prefix_caching": True,
    "actor_rollout_ref.rollout.enable_chunked_prefill": True,
    "actor_rollout_ref.rollout.enforce_eager": False,
    "actor_rollout_ref.model.enable_gradient_checkpointing": True,
    "actor_rollout_ref.rollout.agent.num_workers": 4,
    "reward.num_workers": 4,
    "ray_kwargs.ray_init.include_dashboard": False,
}
FAST_SFT = {
    "data.use_dynamic_bsz": True,
    "model.use_remove_padding": True,
    "ray_kwargs.ray_init.include_dashboard": False,
}
FAST = dict.fromkeys(("rank_grpo", *JUDGES), FAST_RL) | {"sft": FAST_SFT}


def shipped(recipe: str, *overrides: str) -> DictConfig:
    register_defaults()
    with initialize_config_dir(str(ROOT / "conf"), version_base=None):
        return hydra_compose(recipe, overrides=list(overrides))


@pytest.mark.parametrize("on", ["cpu", "gpu"])
@pytest.mark.parametrize("recipe", RECIPES)
def test_every_recipe_composes_for_both_hosts(recipe: str, on: str) -> None:
    config = shipped(recipe, f"{RECIPES[recipe].host_group}={on}")
    OmegaConf.resolve(config)
    engine = config.engine if recipe == "sft" else config.actor_rollout_ref.actor.fsdp_config
    device, dtype = ("cpu", AUTO) if on == "cpu" else ("cuda", "bf16")
    assert (config.trainer.device, engine.mixed_precision.param_dtype) == (device, dtype)
    assert engine.model_dtype == "fp32"


@pytest.mark.parametrize(
    ("recipe", "algorithm", "estimator", "loss", "clip"),
    [
        ("rank_grpo", "rank_grpo", "rank_grpo", "rank_grpo", (0.06, 0.08)),
        ("rank_grpo", "grpo", "grpo", "vanilla", (0.2, 0.26)),
        ("rank_grpo", "gspo", "grpo", "gspo", (3e-4, 4e-4)),
        *((judge, "", "grpo", "vanilla", (0.2, 0.2)) for judge in JUDGES),  # verl's own
    ],
)
def test_what_an_algorithm_sets(
    recipe: str, algorithm: str, estimator: str, loss: str, clip: tuple[float, float]
) -> None:
    config = shipped(recipe, *([f"algorithm_preset={algorithm}"] if algorithm else []))
    actor = config.actor_rollout_ref.actor
    assert (config.algorithm.adv_estimator, actor.policy_loss.loss_mode) == (estimator, loss)
    assert (actor.clip_ratio_low, actor.clip_ratio_high) == clip
    is_judge = recipe in JUDGES
    assert config.trainer.v1.trainer_mode == ("judge_grpo" if is_judge else "rank_grpo")
    assert config.reward.custom_reward_function.path == f"pkg://reward.{recipe if is_judge else 'catalog_match'}"


def test_every_config_file_is_composed_by_these_tests() -> None:
    files = {path.relative_to(ROOT / "conf").as_posix() for path in (ROOT / "conf").rglob("*.yaml")}
    hosts = {f"{group}/{on}.yaml" for group in ("host", "sft_host") for on in ("cpu", "gpu")}
    algorithms = {f"algorithm_preset/{name}.yaml" for name in ALGORITHMS}
    judges = {"judge.yaml", *(f"{recipe}.yaml" for recipe in JUDGES)}
    scales = {f"scale/{name}.yaml" for name in ("lora", "tensor_parallel", "separate_async", "separate_async_cpu")}
    assert files == {"rank_grpo.yaml", "sft.yaml", "rl.yaml"} | judges | hosts | algorithms | scales


@pytest.mark.parametrize("recipe", ["rank_grpo", *JUDGES])
def test_lora_and_tensor_parallel_configs_pass_verls_validation(recipe: str) -> None:
    from verl.utils.config import omega_conf_to_dataclass, validate_config

    config = shipped(recipe, "host=gpu", "+scale=lora", "trainer.n_gpus_per_node=4")
    OmegaConf.resolve(config)
    validate_config(config, use_reference_policy=True, use_critic=False)
    assert config.actor_rollout_ref.model.lora_rank == 32
    assert config.actor_rollout_ref.actor.optim.lr == 1e-5
    config = shipped(recipe, "host=gpu", "+scale=tensor_parallel", "trainer.n_gpus_per_node=4")
    validate_config(config, use_reference_policy=True, use_critic=False)
    assert omega_conf_to_dataclass(config.actor_rollout_ref.rollout).tensor_model_parallel_size == 2


@pytest.mark.parametrize(("on", "scale"), [("gpu", "separate_async"), ("cpu", "separate_async_cpu")])
def test_async_trainer_composes_and_meets_verls_requirements(
    monkeypatch: pytest.MonkeyPatch, on: str, scale: str
) -> None:
    from verl.trainer.ppo.v1 import trainer_separate_async
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer, get_trainer_cls

    from convrec.rank_grpo.on_policy import is_on_policy
    from convrec.training.rank_trainer import RankGRPOSeparateAsyncTrainer

    config = shipped("rank_grpo", f"host={on}", f"+scale={scale}")
    engine = config.actor_rollout_ref.rollout.checkpoint_engine
    assert (engine.backend == "nccl") == (on == "gpu")
    assert get_trainer_cls(config.trainer.v1.trainer_mode) is RankGRPOSeparateAsyncTrainer
    monkeypatch.setattr(PPOTrainer, "__init__", lambda self, config: setattr(self, "config", config))
    trainer_separate_async.PPOTrainerSeparateAsync(config)  # verl's own checks of the config
    assert RankGRPOSeparateAsyncTrainer.verl_mode == "separate_async"
    assert {"save_model_to_cpu", "set_learning_rate"} <= set(dir(RankGRPOSeparateAsyncTrainer.worker))
    assert not is_on_policy(config)  # its log-probs are taken anew, and the weights correct the difference


@pytest.mark.parametrize("recipe", ["rank_grpo", "judge_pairwise"])
def test_vllms_context_is_prompt_and_response(recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not all that the model knows, for which vLLM would reserve its cache."""
    set_gpus(monkeypatch, 0)
    lengths = ["data.max_prompt_length=300", "data.max_response_length=100"]
    key = "actor_rollout_ref.rollout.max_model_len"
    assert OmegaConf.select(compose(recipe, lengths).verl_config, key) == 400
    assert OmegaConf.select(compose(recipe, [*lengths, f"{key}=800"]).verl_config, key) == 800


@pytest.mark.parametrize("devices", [0, 4])
def test_rollout_on_one_device_runs_only_the_vllm_engine_process(devices: int, monkeypatch: pytest.MonkeyPatch) -> None:
    set_gpus(monkeypatch, devices)
    key = "actor_rollout_ref.rollout.engine_kwargs.vllm.distributed_executor_backend"
    assert OmegaConf.select(compose("rank_grpo", []).verl_config, key) == ONE_PROCESS
    assert OmegaConf.select(compose("rank_grpo", [f"+{key}=mp"]).verl_config, key) == "mp"
    spans_two = "actor_rollout_ref.rollout.tensor_model_parallel_size=2"
    assert OmegaConf.select(compose("rank_grpo", [spans_two]).verl_config, key) is None  # verl says how


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


@pytest.mark.parametrize(("vocabulary", "megabytes"), [(1000, 64), (151_936, 520)])
def test_cpu_weight_buffer_has_room_for_the_embedding(
    tmp_path: Path, set_variables: Callable[[Mapping[str, str]], None], vocabulary: int, megabytes: int
) -> None:
    (tmp_path / "config.json").write_text(f'{{"vocab_size": {vocabulary}, "hidden_size": 896}}')
    set_variables({"MODEL_PATH": str(tmp_path)})
    engine = compose("rank_grpo", ["host=cpu"]).verl_config.actor_rollout_ref.rollout.checkpoint_engine
    assert engine.update_weights_bucket_megabytes == megabytes


@pytest.mark.parametrize(("choice", "step"), [("", 100), ("@last", 200)])
@pytest.mark.parametrize("recipe", ["sft", "rank_grpo", "judge_pairwise"])
def test_a_run_as_model_path_is_its_best_checkpoint(
    recipe: str,
    choice: str,
    step: int,
    validated_run: Path,
    set_variables: Callable[[Mapping[str, str]], None],
    tmp_path: Path,
) -> None:
    set_variables({"MODEL_PATH": f"{validated_run}{choice}", "SAVE_PATH": str(tmp_path / "run")})
    run = compose(recipe, [])
    assert run.settings.model == str(validated_run / f"global_step_{step}" / "actor" / "huggingface")
    set_variables({"MODEL_PATH": f"{validated_run}{choice}", "SAVE_PATH": str(validated_run)})
    with pytest.raises(UserError, match="this is MODEL_PATH, the model that the run starts from"):
        compose(recipe, [])


@pytest.mark.parametrize(("size", "mini_batch"), [(96, 24), (16, 4), (9, 9)])
def test_a_judges_step_is_four_updates_where_it_divides(node: pytest.MonkeyPatch, size: int, mini_batch: int) -> None:
    config = compose("judge_pairwise", [f"data.train_batch_size={size}"]).verl_config
    written = OmegaConf.to_container(config, resolve=False)
    assert written["actor_rollout_ref"]["actor"]["ppo_mini_batch_size"] == mini_batch  # a number, for the workers


@pytest.mark.parametrize(("recipe", "truth"), zip(JUDGES, (3, "A"), strict=True))
def test_malformed_reward_reaches_the_judge_reward_function(
    node: pytest.MonkeyPatch, recipe: str, truth: object
) -> None:
    from verl.trainer.ppo.reward import get_custom_reward_fn

    for overrides, reward in (([], 0.0), (["convrec.malformed_reward=-1"], -1.0)):
        compute_score = get_custom_reward_fn(compose(recipe, overrides).verl_config)
        assert compute_score(data_source="d", solution_str="?", ground_truth=truth)["score"] == reward


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


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("flash_attention", [True, False])
def test_fast_settings_of_a_gpu_node(
    recipe: str, flash_attention: bool, node: pytest.MonkeyPatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    (install_empty_package if flash_attention else hide_package)(monkeypatch, "flash_attn")
    config = compose(recipe, []).verl_config
    assert {name: OmegaConf.select(config, name) for name in FAST[recipe]} == FAST[recipe]
    model_config = config.model if "model" in config else config.actor_rollout_ref.model
    assert model_config.override_config.get("attn_implementation") == (None if flash_attention else "varlen")


def test_no_config_or_environment_of_a_job_holds_a_secret(
    node: pytest.MonkeyPatch, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SWANLAB_API_KEY", "a-secret")
    config = compose("rank_grpo", []).verl_config
    assert "swanlab" in config.trainer.logger
    save_config(config, tmp_path)
    assert "a-secret" not in (tmp_path / "config.yaml").read_text()


@pytest.mark.parametrize(
    ("save_path", "problem"),
    [
        ("model", "MODEL_PATH"),
        ("link", "MODEL_PATH"),
        ("run/global_step_4", "run/global_step_4"),
        ("run/global_step_4/actor/more", "run/global_step_4"),
        ("other", "weights"),
    ],
)
@pytest.mark.parametrize("recipe", ["sft", "rank_grpo"])
def test_a_run_folder_among_the_files_of_a_model_is_refused(
    recipe: str,
    save_path: str,
    problem: str,
    sound_model: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    for name in ("model", "other"):
        sound_model(tmp_path / name)
    (tmp_path / "link").symlink_to(tmp_path / "model")
    monkeypatch.setenv("MODEL_PATH", str(tmp_path / "model"))
    monkeypatch.setenv("SAVE_PATH", str(tmp_path / save_path))
    before = sorted(tmp_path.rglob("*"))
    with refuses("settings.run-folder", f"SAVE_PATH={tmp_path / save_path}", problem):
        compose(recipe, [])
    assert sorted(tmp_path.rglob("*")) == before
    monkeypatch.setenv("SAVE_PATH", str(tmp_path / "run"))
    compose(recipe, [])


@pytest.mark.parametrize("recipe", RECIPES)
def test_no_default_setting_is_taken_for_a_secret(recipe: str, defaults: dict[str, DictConfig]) -> None:
    config = defaults[recipe]
    assert OmegaConf.create(to_yaml(config)) == OmegaConf.create(OmegaConf.to_yaml(config))
    assert find_secrets(config) == set()


def test_secret_from_a_variable_reaches_the_run_but_no_file(
    node: pytest.MonkeyPatch, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OF_THE_TEST", "a-secret")
    config = compose("rank_grpo", ["+reward.server={api_key: '${oc.env:OF_THE_TEST}', model: judge}"]).verl_config
    assert config.reward.server.api_key == "a-secret"
    assert find_secrets(config) == {"a-secret"}
    save_config(config, tmp_path)
    written = OmegaConf.to_container(OmegaConf.load(tmp_path / "config.yaml").reward.server, resolve=False)
    assert written == {"api_key": "${oc.env:OF_THE_TEST}", "model": "judge"}
    OmegaConf.resolve(config)  # as verl does
    assert OmegaConf.create(to_yaml(config)).reward.server == {"api_key": "***", "model": "judge"}


def test_a_setting_that_names_an_unset_variable_is_one_line(node: pytest.MonkeyPatch) -> None:
    with refuses("settings.unresolved", "reward.other_key", "'NOT_SET_HERE'") as error:
        find_secrets(compose("rank_grpo", ["+reward.other_key='${oc.env:NOT_SET_HERE}'"]).verl_config)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "argument", ["HF_TOKEN=a-secret", "reward.api_key=a-secret", "+reward.api_key=a-secret$(", "+convrec.key=a-secret"]
)
def test_an_error_does_not_contain_the_secret(node: pytest.MonkeyPatch, argument: str) -> None:
    with pytest.raises(UserError) as error:
        compose("rank_grpo", [argument])
    assert "a-secret" not in str(error.value)
