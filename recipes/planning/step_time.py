"""Seconds of each part of a step on GPUs, from counted operations and bytes: a model, nothing is measured here.

P parameters, L layers, s tokens of a sequence; G rollouts of a prompt share its prefill. A forward pass of a token is
2 P + 2 L s x heads x head size FLOP: the matrices, and attention to half of the sequence in the mean.

    rollout      a forward pass of each prompt's tokens; then token after token, a replica's responses at once, until
                 the longest is done: what a token reads (weights and cache) or computes, or the least that it takes
    log-probs    a forward pass of all tokens, of the reference and, unless mu = 1, of the old policy
    update       3 forward passes, 4 with recomputation, 1 less for LoRA, for each of mu; and what one takes besides
    weight sync  vLLM sleeps, wakes, and gets the weights
    driver       one process handles every response
    network      2 P bytes for each forward and each backward pass of a micro-batch, and 4 P of gradients; 4 P for the
                 sync. FSDP fetches while it computes: from none of it to all of it is waited for
    checkpoints  each process writes its shards, then the first one the Hugging Face form; their share of a step
    validation   one response for each of its prompts, in SFT a forward pass; its share of a step
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
    """checkpoints, validations: in a step, so below 1."""
    check = replace(workload, prompts=validation_rows, rollouts=1)
    checked = rollout_seconds(check, gpu) if workload.tensor_parallel else forward_seconds(check, gpu)
    saved = (
        (SHARD_BYTES / workload.gpus + EXPORT_BYTES)
        * workload.size.parameters
        / (figures.WRITER_GB_PER_SECOND.range * 1e9)
    )
    parts: dict[str, Range] = {}
    if workload.tensor_parallel:
        parts["rollout"] = rollout_seconds(workload, gpu)
        parts["log-probs"] = workload.passes * forward_seconds(workload, gpu)
        parts["weight sync"] = figures.SYNC_SECONDS.range
        parts["driver"] = workload.prompts * workload.rollouts * figures.RESPONSE_MS.range / 1e3
    training = {"update": update_seconds(workload, gpu), "network": network_seconds(workload, gpu)}
    return parts | training | {"checkpoints": checkpoints * saved, "validation": validations * checked}


def rollout_seconds(workload: Workload, gpu: GPU) -> Range:
    replicas = workload.gpus // workload.tensor_parallel
    prompts = ceil(workload.prompts / replicas)  # of the busiest replica: all rollouts of a prompt
    cache_of_token = cache_bytes_of_token(workload)
    peak = workload.tensor_parallel * gpu.flops * figures.PREFILL_SHARE.range
    prefill = prompts * workload.prompt * forward_flops(workload.size, workload.prompt) / peak
    room = int(cache_bytes(workload, gpu.memory) / (cache_of_token * (workload.prompt + workload.response)))
    rows = max(1, min(prompts * workload.rollouts, workload.max_sequences, room))
    reads = rollout_weights(workload) + rows * (workload.prompt + workload.response / 2) * cache_of_token
    reading = reads / (gpu.bandwidth * figures.BANDWIDTH_SHARE.range)
    computing = rows * 2 * workload.size.parameters / peak
    token = np.maximum(np.maximum(reading, computing), figures.DECODE_STEP_MS.range / 1e3)
    if workload.tensor_parallel > 1:
        token += 2 * workload.size.layers * figures.ALL_REDUCE_US.range * 1e-6
    # responses that wait for room come in turns; the last of them end with the longest
    return prefill + workload.response * (prompts * workload.rollouts / rows - 1 + figures.LONGEST_ANSWER.range) * token


def forward_flops(size: ModelSize, length: float) -> float:
    """FLOP of a token's forward pass in a sequence of that length."""
    return 2 * size.parameters + 2 * size.layers * length * size.heads * size.head_size


def forward_seconds(workload: Workload, gpu: GPU) -> Range:
    """Of a GPU's share of a step's tokens."""
    flops = workload.tokens * forward_flops(workload.size, workload.prompt + workload.response)
    return flops / (gpu.flops * gpu.training_share.range)


def update_seconds(workload: Workload, gpu: GPU) -> Range:
    """Of all updates of a step."""
    passes = 3 - bool(workload.lora_rank) + workload.recomputes
    num_updates = workload.prompts // workload.mini_batch
    return workload.mu * (passes * forward_seconds(workload, gpu) + num_updates * figures.UPDATE_SECONDS.range)


def received_bytes(workload: Workload) -> float:
    """By a GPU in a step: what it gathers, and sums (a reduce-scatter moves the same), less its own part of it."""
    gathered = ((4 if workload.lora_rank else 8) * workload.mu + 2 * workload.passes) * workload.micro_batches
    if workload.tensor_parallel and not workload.lora_rank:  # adapters are below a hundredth of that
        gathered += 4
    return gathered * workload.size.parameters * (workload.sharing - 1) / workload.sharing


def network_seconds(workload: Workload, gpu: GPU) -> Range:
    """Over NVLink, or all of a node's adapters together where they are narrower: as much enters each node."""
    link = gpu.nvlink
    if workload.sharing > workload.gpus_per_node:
        link = min(link, gpu.network * workload.gpus_per_node)
    return received_bytes(workload) / link * figures.NETWORK_WAIT.range
