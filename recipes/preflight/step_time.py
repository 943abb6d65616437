"""What a step of RL should take on GPUs, from counted operations and bytes: a model, nothing is measured.

For D data-parallel GPUs; P parameters, tokens = prompts x rollouts x (prompt + response):

    update       6 P FLOP a token (8 with activation recomputation) at `mfu` of the peak
    reference    2 P FLOP a token;   old log-probs the same, skipped with mu = 1
    prefill      2 P FLOP a prompt token, once for the G rollouts of a prompt (prefix caching)
    decode       a response token after the other, all rollouts of a GPU at once: the weights and the KV cache are
                 read each time, and a launch takes `launch` seconds whatever the model (CUDA graphs)
    sync         gathering the shards and handing 2 P bytes to vLLM

Attention adds less than 5 % at prompts of 400 and responses of 220 tokens and is left out. benchmarks/step_time.py
prints a table.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class GPU:
    """An H100 SXM, bf16: peaks of its data sheet, and shares of them that training and decoding usually reach."""

    flops: float = 989e12
    bandwidth: float = 3.35e12
    mfu: float = 0.35
    prefill_mfu: float = 0.5
    bandwidth_share: float = 0.6
    launch: float = 3e-3
    link: float = 50e9  # bytes a second between processes, all of FSDP's gather included


@dataclass(frozen=True)
class Batch:
    """Of one step. prompt and response: mean lengths in tokens."""

    prompts: int = 48
    rollouts: int = 8
    prompt: int = 400
    response: int = 220


def kv_bytes(layers: int, heads: int, head_size: int) -> int:
    """Of a token in the cache: keys and values of each key-value head, in bf16."""
    return 2 * layers * heads * head_size * 2


def step_seconds(
    parameters: float, cache_bytes: int, gpus: int, batch: Batch, gpu: GPU = GPU(), recompute: bool = True
) -> dict[str, float]:
    """Seconds of each part of a step with mu = 1. cache_bytes: `kv_bytes`."""
    rows = batch.prompts * batch.rollouts
    tokens = rows * (batch.prompt + batch.response) / gpus
    pass_seconds = 2 * parameters * tokens / (gpu.flops * gpu.mfu)
    prefill = 2 * parameters * batch.prompts * batch.prompt / gpus / (gpu.flops * gpu.prefill_mfu)
    cache = rows / gpus * (batch.prompt + batch.response / 2) * cache_bytes
    read = (2 * parameters + cache) / (gpu.bandwidth * gpu.bandwidth_share)
    return {
        "generation": prefill + batch.response * max(read, gpu.launch),
        "reference": pass_seconds,
        "update": pass_seconds * (4 if recompute else 3),
        "sync": 2 * parameters / gpu.link,
    }
