"""Model the time of each part of a step on GPUs by counting operations and bytes; nothing is measured.

P parameters, L layers, s tokens per sequence; the G rollouts of a prompt share its prefill. A token's forward pass is
2 P + 2 L s x heads x head size FLOP: the matrices, and attention to half of the sequence on average.

    rollout      a forward pass over each prompt; then decoding, all responses of a replica together, until the longest
                 is done. A step of decoding is bound by reads (weights and cache), by FLOP, or by a minimum time
    log-probs    a forward pass over all tokens by the reference and, unless mu = 1, by the old policy
    update       3 forward passes, 4 with recomputation, 1 less with LoRA, for each of mu; plus a constant per update
    weight sync  vLLM sleeps, wakes, and receives the weights
    driver       one process handles every response
    network      2 P bytes for each forward and each backward pass of a micro-batch, and 4 P for gradients; 4 P for the
                 sync. FSDP fetches while it computes, so between none and all of this time is waited for
    checkpoints  each process writes its shards, then the first one writes the Hugging Face form; averaged over steps
    validation   one response per prompt, in SFT a forward pass; averaged over steps
"""

from dataclasses import replace
from math import ceil

import numpy as np

from recipes.planning import figures
from recipes.planning.estimate import (
    EXPORT_BYTES,
    SHARD_BYTES,
    Workload,
    cache_bytes,
    cache_bytes_of_token,
    rollout_weights,
)
from recipes.planning.figures import GPU, Range
from recipes.planning.models import ModelSize


def step_parts(
    workload: Workload, gpu: GPU, checkpoints: float, validations: float, validation_rows: int
) -> dict[str, Range]:
    """Return the seconds of each part of a step, as ranges (fast, slow).

    Args:
        workload: the run.
        gpu: the GPU of every node.
        checkpoints: checkpoints per step, at most 1.
        validations: validations per step, at most 1.
        validation_rows: prompts of a validation.
    """
    validation = replace(workload, prompts=validation_rows, rollouts=1)
    time_validation = rollout_seconds if workload.tensor_parallel else forward_seconds
    validation_seconds = time_validation(validation, gpu)
    writer_bytes = (SHARD_BYTES / workload.gpus + EXPORT_BYTES) * workload.size.parameters
    checkpoint_seconds = writer_bytes / (figures.WRITER_GB_PER_SECOND.range * 1e9)
    parts: dict[str, Range] = {}
    if workload.tensor_parallel:
        parts["rollout"] = rollout_seconds(workload, gpu)
        parts["log-probs"] = workload.passes * forward_seconds(workload, gpu)
        parts["weight sync"] = figures.SYNC_SECONDS.range
        parts["driver"] = workload.prompts * workload.rollouts * figures.RESPONSE_MS.range / 1e3
    training = {"update": update_seconds(workload, gpu), "network": network_seconds(workload, gpu)}
    saving = {"checkpoints": checkpoints * checkpoint_seconds, "validation": validations * validation_seconds}
    return parts | training | saving


def rollout_seconds(workload: Workload, gpu: GPU) -> Range:
    """Return the seconds in which vLLM writes the responses of a step.

    Args:
        workload: an RL run.
        gpu: the GPU of every node.

    Returns:
        The array (fast, slow), as from the other functions of seconds.
    """
    replicas = workload.gpus // workload.tensor_parallel
    prompts = ceil(workload.prompts / replicas)  # on the busiest replica, which has all rollouts of a prompt
    token_bytes = cache_bytes_of_token(workload)
    peak = workload.tensor_parallel * gpu.flops * figures.PREFILL_SHARE.range
    prefill = prompts * workload.prompt * forward_flops(workload.size, workload.prompt) / peak
    room = int(cache_bytes(workload, gpu.memory) / (token_bytes * (workload.prompt + workload.response)))
    rows = max(1, min(prompts * workload.rollouts, workload.max_sequences, room))
    read_bytes = rollout_weights(workload) + rows * (workload.prompt + workload.response / 2) * token_bytes
    read_seconds = read_bytes / (gpu.bandwidth * figures.BANDWIDTH_SHARE.range)
    compute_seconds = rows * 2 * workload.size.parameters / peak
    token_seconds = np.maximum(np.maximum(read_seconds, compute_seconds), figures.DECODE_STEP_MS.range / 1e3)
    if workload.tensor_parallel > 1:
        token_seconds += 2 * workload.size.layers * figures.ALL_REDUCE_US.range * 1e-6
    # responses that do not fit wait for a turn; the last turn takes as long as the longest response
    turns = prompts * workload.rollouts / rows - 1 + figures.LONGEST_ANSWER.range
    return prefill + workload.response * turns * token_seconds


def forward_flops(size: ModelSize, length: float) -> float:
    """Return the FLOP of a token's forward pass, with attention to half of the sequence on average.

    Args:
        size: shape of the model.
        length: of the sequence, in tokens.
    """
    return 2 * size.parameters + 2 * size.layers * length * size.heads * size.head_size


def forward_seconds(workload: Workload, gpu: GPU) -> Range:
    """Return the seconds of a forward pass over a GPU's share of a step."""
    flops = workload.tokens * forward_flops(workload.size, workload.prompt + workload.response)
    return flops / (gpu.flops * gpu.training_share.range)


def update_seconds(workload: Workload, gpu: GPU) -> Range:
    """Return the seconds of all updates of a step."""
    passes = 3 - bool(workload.lora_rank) + workload.recomputes
    num_updates = workload.prompts // workload.mini_batch
    return workload.mu * (passes * forward_seconds(workload, gpu) + num_updates * figures.UPDATE_SECONDS.range)


def received_bytes(workload: Workload) -> float:
    """Return the bytes that a GPU receives in a step from the other processes.

    An all-gather and a reduce-scatter move the same number of bytes; a GPU does not receive its own part.
    """
    bytes_per_parameter = (
        (4 if workload.lora_rank else 8) * workload.mu + 2 * workload.passes
    ) * workload.micro_batches
    if workload.tensor_parallel and not workload.lora_rank:  # adapters are less than a hundredth of the weights
        bytes_per_parameter += 4
    return bytes_per_parameter * workload.size.parameters * (workload.sharing - 1) / workload.sharing


def network_seconds(workload: Workload, gpu: GPU) -> Range:
    """Return the seconds for which a step waits for the network.

    Args:
        workload: the run.
        gpu: the GPU of every node. Traffic goes over NVLink, or over all network adapters of a node if they are slower
            and a copy of the model is spread over nodes.
    """
    link = gpu.nvlink
    if workload.sharing > workload.gpus_per_node:
        link = min(link, gpu.network * workload.gpus_per_node)
    return received_bytes(workload) / link * figures.NETWORK_WAIT.range
