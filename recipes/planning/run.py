"""What a plan reads of a run's config: batch, training and rollout, of SFT and of the RL recipes alike."""

from dataclasses import dataclass

from omegaconf import DictConfig

from convrec.errors import UserError
from convrec.lists.settings import ListSettings
from recipes.planning import constants, estimate
from recipes.planning.constants import Constant
from recipes.planning.models import ModelSize
from recipes.planning.network import Cluster
from recipes.planning.step_time import Batch, Rollout, Training


@dataclass(frozen=True)
class Data:
    """Rows of training and of validation (0: unknown, and not counted). prompt, response: tokens, in the mean; None:
    what is assumed of prompts, and of lists of as many items as the config asks for."""

    rows: int
    validation_rows: int
    prompt: Constant | None = None
    response: Constant | None = None


@dataclass(frozen=True)
class Run:
    """One step and what comes now and then. rollout: None in SFT, as is what has to do with it."""

    cluster: Cluster
    size: ModelSize
    batch: Batch
    validation: Batch
    training: Training
    rollout: Rollout | None
    has_reference: bool  # a pass of the reference's log-probs
    has_old: bool  # and one of the old policy's


def _lengths(config: DictConfig, data: Data) -> tuple[float, float]:
    """Tokens of a prompt and of a response, before they are cut to what the config allows."""
    prompt = (data.prompt or constants.PROMPT_TOKENS)()
    if data.response:
        return prompt, data.response()
    is_sft = "actor_rollout_ref" not in config
    num_items = ListSettings().num_items if is_sft else config.convrec.get("num_items")
    if num_items is None:
        raise UserError("how long verdicts are is not modelled")
    return prompt, constants.ITEM_TOKENS() * num_items + 1  # and the stop token


def run_of(config: DictConfig, size: ModelSize, cluster: Cluster, data: Data) -> Run:
    """Raises UserError for what a plan does not model."""
    if config.trainer.device == "cpu":
        raise UserError("trainer.device=cpu: a plan is for GPUs")
    run = _sft_run(config, size, cluster, data) if "engine" in config else _rl_run(config, size, cluster, data)
    if cluster.gpus % run.training.sharing:
        raise UserError(f"fsdp_size={run.training.sharing} does not divide the {cluster.gpus} GPUs: choose a divisor")
    return run


def _sft_run(config: DictConfig, size: ModelSize, cluster: Cluster, data: Data) -> Run:
    section = config.data
    prompt, response = _lengths(config, data)
    prompt = min(prompt, section.max_length - 1)
    response = min(response, section.max_length - prompt)
    tokens = section.max_token_len_per_gpu
    if not section.use_dynamic_bsz:
        tokens = section.micro_batch_size_per_gpu * section.max_length
    training = Training(
        sharing=estimate.sharing_processes(config, config.engine),
        micro_tokens=tokens,
        mini_batches=1,
        mu=1,
        recomputes=config.model.enable_gradient_checkpointing,
        lora=config.model.lora_rank > 0,
    )
    batch = Batch(section.train_batch_size, 1, prompt, response)
    validation = Batch(data.validation_rows, 1, prompt, response)
    return Run(cluster, size, batch, validation, training, None, False, False)


def _rl_run(config: DictConfig, size: ModelSize, cluster: Cluster, data: Data) -> Run:
    if str(config.trainer.v1.trainer_mode).endswith("separate_async"):
        raise UserError("+scale=separate_async: rollout beside training is not modelled; plan without it")
    section, verl = config.data, config.actor_rollout_ref
    actor, rollout = verl.actor, verl.rollout
    length = section.max_prompt_length + section.max_response_length
    training = Training(
        sharing=estimate.sharing_processes(config, actor.fsdp_config),
        micro_tokens=estimate.micro_batch_tokens(actor, length),
        mini_batches=section.train_batch_size // actor.ppo_mini_batch_size,
        mu=actor.ppo_epochs,
        recomputes=verl.model.enable_gradient_checkpointing,
        lora=verl.model.lora_rank > 0,
    )
    prompt, response = _lengths(config, data)
    prompt, response = min(prompt, section.max_prompt_length), min(response, section.max_response_length)
    batch = Batch(section.train_batch_size, rollout.n, prompt, response)
    validated = data.validation_rows
    if section.val_max_samples > 0:
        validated = min(validated, section.val_max_samples)
    return Run(
        cluster,
        size,
        batch,
        Batch(validated, 1, prompt, response),
        training,
        rollout_of(config),
        has_reference=actor.use_kl_loss,
        has_old=not _is_on_policy(config, training),
    )


def rollout_of(config: DictConfig) -> Rollout:
    verl = config.actor_rollout_ref.rollout
    return Rollout(verl.tensor_model_parallel_size, verl.max_num_seqs, verl.gpu_memory_utilization)


def _is_on_policy(config: DictConfig, training: Training) -> bool:
    """As convrec.training.rank_trainer decides; verl's own trainers compute the old log-probs but in bypass mode."""
    correction = config.algorithm.rollout_correction
    if correction.bypass_mode:
        return True
    is_rank_level = config.algorithm.adv_estimator == "rank_grpo"
    return is_rank_level and training.mini_batches == training.mu == 1 and correction.rollout_is is None
