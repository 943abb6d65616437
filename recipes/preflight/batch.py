"""Does a batch divide over the devices, a model over those of a replica, and fit a sequence a micro-batch?"""

from collections.abc import Mapping

from omegaconf import DictConfig

from convrec.errors import UserError
from recipes.preflight.cores import rollout_devices


def check_batch(config: DictConfig, devices: int) -> None:
    """Raise UserError, naming the variable, for a batch that so many devices cannot share alike."""
    prompts = config.data.train_batch_size
    if "actor_rollout_ref" not in config:  # SFT
        if prompts % devices:
            raise UserError(
                f"TRAIN_BATCH_SIZE={prompts} does not divide over {devices} devices (N_GPUS_PER_NODE x N_NODES): "
                "choose a multiple"
            )
        return
    rollout, actor = config.actor_rollout_ref.rollout, config.actor_rollout_ref.actor
    if prompts * rollout.n % devices:
        raise UserError(
            f"TRAIN_BATCH_SIZE={prompts} x ROLLOUT_N={rollout.n} = {prompts * rollout.n} responses do not divide over "
            f"{devices} devices (N_GPUS_PER_NODE x N_NODES): choose a multiple"
        )
    if prompts % actor.ppo_mini_batch_size:
        raise UserError(
            f"TRAIN_BATCH_SIZE={prompts} is not a multiple of "
            f"actor_rollout_ref.actor.ppo_mini_batch_size={actor.ppo_mini_batch_size}: choose a multiple"
        )
    if actor.ppo_mini_batch_size * rollout.n % devices:
        raise UserError(
            f"actor_rollout_ref.actor.ppo_mini_batch_size={actor.ppo_mini_batch_size} x ROLLOUT_N={rollout.n}: the "
            f"responses of an update do not divide over {devices} devices: choose another TRAIN_BATCH_SIZE"
        )
    nodes, each = rollout_devices(config)
    generating, whose = (nodes * each, "rollout") if nodes else (devices, "run")
    if generating % rollout.tensor_model_parallel_size:
        raise UserError(
            f"TENSOR_PARALLEL={rollout.tensor_model_parallel_size} does not divide the {generating} devices of the "
            f"{whose}: choose a divisor"
        )


def check_micro_batch(lengths: Mapping[str, int], key: str, tokens: int) -> None:
    """Raise UserError where a sequence may be longer than a micro-batch, which verl ends a run for when one comes.

    lengths: variable -> tokens, the longest sequence together. tokens: of a micro-batch, which `key` says.
    """
    if sum(lengths.values()) > tokens:
        asked_for = " + ".join(f"{name}={value}" for name, value in lengths.items())
        raise UserError(f"{key}: a micro-batch has {tokens} tokens, and {asked_for} do not fit: raise it")


def check_heads(heads: int, tensor_parallel: int, model: str) -> None:
    """Raise UserError for a model whose attention heads do not divide over the GPUs of a replica."""
    if heads % tensor_parallel:
        raise UserError(
            f"TENSOR_PARALLEL={tensor_parallel} does not divide the {heads} attention heads of {model}: set it to "
            "a number that does, like 1"
        )
