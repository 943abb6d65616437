"""Does a batch divide over the devices, a model over those of a replica, and fit a sequence a micro-batch?"""

from collections.abc import Mapping

from convrec.base.errors import UserError
from convrec.settings.run import Run
from convrec.settings.training import RLConfig, TrainingConfig


def check_batch(run: Run[TrainingConfig]) -> None:
    """Raise UserError, naming the variable, for a batch that the run's devices cannot share alike."""
    if isinstance(run.settings, RLConfig):
        _check_rollout_batch(run, run.settings.num_generations)
    elif run.train_batch_size % run.num_devices:
        raise UserError(
            f"TRAIN_BATCH_SIZE={run.train_batch_size} does not divide over {run.num_devices} devices "
            "(N_GPUS_PER_NODE x N_NODES): choose a multiple"
        )


def _check_rollout_batch(run: Run[TrainingConfig], num_generations: int) -> None:
    prompts = run.train_batch_size
    devices = run.num_devices
    mini_batch = run.mini_batch_size
    if prompts * num_generations % devices:
        raise UserError(
            f"TRAIN_BATCH_SIZE={prompts} x ROLLOUT_N={num_generations} = {prompts * num_generations} responses do not "
            f"divide over {devices} devices (N_GPUS_PER_NODE x N_NODES): choose a multiple"
        )
    if prompts % mini_batch:
        raise UserError(
            f"TRAIN_BATCH_SIZE={prompts} is not a multiple of "
            f"actor_rollout_ref.actor.ppo_mini_batch_size={mini_batch}: choose a multiple"
        )
    if mini_batch * num_generations % devices:
        raise UserError(
            f"actor_rollout_ref.actor.ppo_mini_batch_size={mini_batch} x ROLLOUT_N={num_generations}: the responses of "
            f"an update do not divide over {devices} devices: choose another TRAIN_BATCH_SIZE"
        )
    nodes, each = run.rollout_devices
    generating, whose = (nodes * each, "rollout") if nodes else (devices, "run")
    if generating % run.tensor_parallel:
        raise UserError(
            f"TENSOR_PARALLEL={run.tensor_parallel} does not divide the {generating} devices of the {whose}: choose a "
            "divisor"
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
