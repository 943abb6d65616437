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
from recipes.planning.estimate import EXPORT_BYTES, SHARD_BYTES, Run, cache_bytes, cache_bytes_of_token, rollout_weights
from recipes.planning.figures import GPU, Range
from recipes.planning.models import ModelSize


def step_parts(run: Run, gpu: GPU, checkpoints: float, validations: float, validation_rows: int) -> dict[str, Range]:
    """checkpoints, validations: in a step, so below 1."""
    check = replace(run, prompts=validation_rows, rollouts=1)
    checked = rollout_seconds(check, gpu) if run.tensor_parallel else forward_seconds(check, gpu)
    saved = (SHARD_BYTES / run.gpus + EXPORT_BYTES) * run.size.parameters / (figures.WRITER_GB_PER_SECOND.range * 1e9)
    parts: dict[str, Range] = {}
    if run.tensor_parallel:
        parts["rollout"] = rollout_seconds(run, gpu)
        parts["log-probs"] = run.passes * forward_seconds(run, gpu)
        parts["weight sync"] = figures.SYNC_SECONDS.range
        parts["driver"] = run.prompts * run.rollouts * figures.RESPONSE_MS.range / 1e3
    training = {"update": update_seconds(run, gpu), "network": network_seconds(run, gpu)}
    return parts | training | {"checkpoints": checkpoints * saved, "validation": validations * checked}


def rollout_seconds(run: Run, gpu: GPU) -> Range:
    prompts = ceil(run.prompts / (run.gpus // run.tensor_parallel))  # of the busiest replica: all rollouts of a prompt
    peak = run.tensor_parallel * gpu.flops * figures.PREFILL_SHARE.range
    prefill = prompts * run.prompt * forward_flops(run.size, run.prompt) / peak
    room = int(cache_bytes(run, gpu.memory) / (cache_bytes_of_token(run) * (run.prompt + run.response)))
    rows = max(1, min(prompts * run.rollouts, run.max_sequences, room))
    reads = rollout_weights(run) + rows * (run.prompt + run.response / 2) * cache_bytes_of_token(run)
    reading = reads / (gpu.bandwidth * figures.BANDWIDTH_SHARE.range)
    computing = rows * 2 * run.size.parameters / peak
    token = np.maximum(np.maximum(reading, computing), figures.DECODE_STEP_MS.range / 1e3)
    if run.tensor_parallel > 1:
        token += 2 * run.size.layers * figures.ALL_REDUCE_US.range * 1e-6
    # responses that wait for room come in turns; the last of them end with the longest
    return prefill + run.response * (prompts * run.rollouts / rows - 1 + figures.LONGEST_ANSWER.range) * token


def forward_flops(size: ModelSize, length: float) -> float:
    """FLOP of a token's forward pass in a sequence of that length."""
    return 2 * size.parameters + 2 * size.layers * length * size.heads * size.head_size


def forward_seconds(run: Run, gpu: GPU) -> Range:
    """Of a GPU's share of a step's tokens."""
    return run.tokens * forward_flops(run.size, run.prompt + run.response) / (gpu.flops * gpu.training_share.range)


def update_seconds(run: Run, gpu: GPU) -> Range:
    """Of all updates of a step."""
    passes = 3 - bool(run.lora_rank) + run.recomputes
    return run.mu * (passes * forward_seconds(run, gpu) + run.prompts // run.mini_batch * figures.UPDATE_SECONDS.range)


def received_bytes(run: Run) -> float:
    """By a GPU in a step: what it gathers, and sums (a reduce-scatter moves the same), less its own part of it."""
    gathered = ((4 if run.lora_rank else 8) * run.mu + 2 * run.passes) * run.micro_batches
    gathered += 4 if run.tensor_parallel and not run.lora_rank else 0  # adapters are below a hundredth of that
    return gathered * run.size.parameters * (run.sharing - 1) / run.sharing


def network_seconds(run: Run, gpu: GPU) -> Range:
    """Over NVLink, or all of a node's adapters together where they are narrower: as much enters each node."""
    link = min(gpu.nvlink, gpu.network * run.gpus_per_node) if run.sharing > run.gpus_per_node else gpu.nvlink
    return received_bytes(run) / link * figures.NETWORK_WAIT.range
