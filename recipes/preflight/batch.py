"""Check that the batch divides over the devices, the model over a replica's GPUs, and a sequence fits a micro-batch."""

from collections.abc import Mapping

from convrec.base.errors import UserError
from convrec.settings.run import Run
from convrec.settings.training import RLConfig, TrainingConfig


def check_batch(run: Run[TrainingConfig]) -> None:
    """Check that every device of the run gets the same number of sequences.

    Raises:
        UserError: the batch does not divide; the message names the variable.
    """
    if isinstance(run.settings, RLConfig):
        _check_rollout_batch(run, run.settings.num_generations)
    elif run.train_batch_size % run.num_devices:
        raise UserError(
            "preflight.indivisible-batch",
            f"TRAIN_BATCH_SIZE={run.train_batch_size} does not divide over {run.num_devices} devices "
            "(N_GPUS_PER_NODE x N_NODES): choose a multiple",
        )


def _check_rollout_batch(run: Run[TrainingConfig], num_generations: int) -> None:
    prompts = run.train_batch_size
    devices = run.num_devices
    mini_batch = run.mini_batch_size
    if prompts * num_generations % devices:
        raise UserError(
            "preflight.indivisible-batch",
            f"TRAIN_BATCH_SIZE={prompts} x ROLLOUT_N={num_generations} = {prompts * num_generations} responses do not "
            f"divide over {devices} devices (N_GPUS_PER_NODE x N_NODES): choose a multiple",
        )
    if prompts % mini_batch:
        raise UserError(
            "preflight.indivisible-batch",
            f"TRAIN_BATCH_SIZE={prompts} is not a multiple of "
            f"actor_rollout_ref.actor.ppo_mini_batch_size={mini_batch}: choose a multiple",
        )
    if mini_batch * num_generations % devices:
        raise UserError(
            "preflight.indivisible-batch",
            f"actor_rollout_ref.actor.ppo_mini_batch_size={mini_batch} x ROLLOUT_N={num_generations}: the responses of "
            f"one update do not divide over {devices} devices: choose another TRAIN_BATCH_SIZE",
        )
    rollout_nodes, rollout_gpus = run.rollout_devices
    if rollout_nodes:
        rollout_devices, owner = rollout_nodes * rollout_gpus, "rollout"
    else:
        rollout_devices, owner = devices, "run"
    if rollout_devices % run.tensor_parallel:
        raise UserError(
            "preflight.tensor-parallel",
            f"TENSOR_PARALLEL={run.tensor_parallel} does not divide the {rollout_devices} devices of the {owner}: "
            "choose a divisor",
        )


def check_micro_batch(lengths: Mapping[str, int], key: str, max_tokens: int) -> None:
    """Check that the longest sequence fits into one micro-batch: verl would end the run when such a sequence comes.

    Args:
        lengths: variable -> tokens; a sequence has at most their sum.
        key: the setting that limits a micro-batch.
        max_tokens: its value.

    Raises:
        UserError: a sequence may be longer.
    """
    if sum(lengths.values()) > max_tokens:
        sequence = " + ".join(f"{name}={value}" for name, value in lengths.items())
        raise UserError(
            "preflight.micro-batch-too-small",
            f"{key}={max_tokens}: a sequence of {sequence} tokens does not fit into a micro-batch: raise it",
        )


def check_heads(heads: int, tensor_parallel: int, model: str) -> None:
    """Check that a model's attention heads divide over the GPUs of a replica.

    Raises:
        UserError: they do not.
    """
    if heads % tensor_parallel:
        raise UserError(
            "preflight.tensor-parallel",
            f"TENSOR_PARALLEL={tensor_parallel} does not divide the {heads} attention heads of {model}: choose a "
            "divisor, for example 1",
        )
