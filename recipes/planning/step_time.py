"""Seconds of each phase of a step on GPUs, from counted operations and bytes: a model, nothing is measured here.

P parameters, L layers, s tokens of a sequence; G rollouts of a prompt share its prefill. A forward pass of a token is
2 P + 2 L s x heads x head size FLOP: the matrices, and attention to half of the sequence in the mean.

    prefill      a forward pass of each prompt's tokens
    decode       token after token, a replica's responses at once: what it reads (weights and cache), what it computes,
                 and a launch; the longest of the three counts, and all-reduces come on top
    log-probs    a forward pass of all tokens; with mu = 1 there are none of the old policy
    update       3 forward passes, 4 with recomputation, 1 less for LoRA; once for each of mu
    weight sync  every GPU gathers the weights in fp32, and hands them to vLLM in bf16
    checkpoint   each process writes its shards, then the first one the Hugging Face form
    validation   one response for each of its prompts; in SFT a forward pass

In training FSDP gathers 2 P bytes for each forward and each backward pass of a micro-batch, and sums 4 P of gradients.
It fetches while it computes: the longer of the two counts.
"""

import math
from dataclasses import dataclass

from recipes.planning import constants
from recipes.planning.estimate import EXPORT_BYTES, SHARD_BYTES
from recipes.planning.models import ModelSize
from recipes.planning.network import Cluster, collective_seconds, received


@dataclass(frozen=True)
class Training:
    """How FSDP trains. sharing: processes that have one copy of the model between them. micro_tokens: of a micro-batch,
    at most. mini_batches: updates that a batch is cut into; mu: how often it is used."""

    sharing: int
    micro_tokens: int
    mini_batches: int
    mu: int
    recomputes: bool
    lora: bool


@dataclass(frozen=True)
class Rollout:
    """How vLLM samples: a replica spans tensor_parallel GPUs, takes memory_share of each, and has at most max_sequences
    at once."""

    tensor_parallel: int
    max_sequences: int
    memory_share: float


@dataclass(frozen=True)
class Batch:
    """Of one step. prompt, response: tokens, in the mean; SFT has rollouts = 1."""

    prompts: int
    rollouts: int
    prompt: float
    response: float

    @property
    def length(self) -> float:
        return self.prompt + self.response

    @property
    def tokens(self) -> float:
        return self.prompts * self.rollouts * self.length


def forward_flops(size: ModelSize, length: float) -> float:
    """FLOP of a token's forward pass in a sequence of that length."""
    return 2 * size.parameters + 2 * size.layers * length * size.heads * size.head_size


# ---- training ----


def micro_batches(cluster: Cluster, batch: Batch, training: Training, parts: int = 1) -> int:
    """Forward passes of a GPU over its share of a batch that is cut into so many parts."""
    return parts * max(1, math.ceil(batch.tokens / cluster.gpus / parts / training.micro_tokens))


def _compute_seconds(cluster: Cluster, size: ModelSize, batch: Batch) -> float:
    """Of a forward pass of a GPU's share of the batch."""
    flops = batch.tokens / cluster.gpus * forward_flops(size, batch.length)
    return flops / (cluster.gpu.flops() * cluster.gpu.training_share())


def forward_bytes(cluster: Cluster, size: ModelSize, batch: Batch, training: Training) -> float:
    """That FSDP gathers for a forward pass of the batch."""
    return 2 * size.parameters * micro_batches(cluster, batch, training)


def log_prob_seconds(cluster: Cluster, size: ModelSize, batch: Batch, training: Training) -> float:
    gathers = micro_batches(cluster, batch, training) * (size.layers + 1)
    network = collective_seconds(cluster, forward_bytes(cluster, size, batch, training), training.sharing, gathers)
    return max(_compute_seconds(cluster, size, batch), network)


def _micro_batches_of_updates(cluster: Cluster, batch: Batch, training: Training) -> int:
    """Of a GPU in a step."""
    return training.mu * micro_batches(cluster, batch, training, training.mini_batches)


def update_bytes(cluster: Cluster, size: ModelSize, batch: Batch, training: Training) -> float:
    """That FSDP gathers, and sums, for all updates of a step."""
    each = (4 if training.lora else 8) * size.parameters
    return each * _micro_batches_of_updates(cluster, batch, training)


def copied_bytes(cluster: Cluster, size: ModelSize, batch: Batch, training: Training) -> float:
    """That a GPU receives besides, where there are several copies of the model: its shard of the gradients is summed
    over them."""
    copies = cluster.gpus // training.sharing
    if training.lora:
        return 0.0
    shard = 4 * size.parameters / training.sharing
    return 2 * received(shard, copies) * _micro_batches_of_updates(cluster, batch, training)


def update_network_seconds(cluster: Cluster, size: ModelSize, batch: Batch, training: Training) -> float:
    """Of all updates of a step."""
    collectives = (2 if training.lora else 3) * (size.layers + 1)
    count = collectives * _micro_batches_of_updates(cluster, batch, training)
    seconds = collective_seconds(cluster, update_bytes(cluster, size, batch, training), training.sharing, count)
    if copied := copied_bytes(cluster, size, batch, training):
        link = cluster.network() if cluster.nodes > 1 else cluster.gpu.nvlink()
        seconds += copied / (link * constants.LINK_SHARE())
    return seconds


def update_compute_seconds(cluster: Cluster, size: ModelSize, batch: Batch, training: Training) -> float:
    """Of all updates of a step."""
    passes = (2 if training.lora else 3) + training.recomputes
    return training.mu * passes * _compute_seconds(cluster, size, batch)


def update_seconds(cluster: Cluster, size: ModelSize, batch: Batch, training: Training) -> float:
    arithmetic = update_compute_seconds(cluster, size, batch, training)
    besides = training.mu * training.mini_batches * constants.UPDATE_SECONDS()
    return max(arithmetic, update_network_seconds(cluster, size, batch, training)) + besides


# ---- rollout ----


def _busiest_replica(cluster: Cluster, batch: Batch, rollout: Rollout) -> int:
    """Prompts of the replica that has most: all rollouts of a prompt go to one."""
    return math.ceil(batch.prompts / (cluster.gpus // rollout.tensor_parallel))


def prefill_seconds(cluster: Cluster, size: ModelSize, batch: Batch, rollout: Rollout) -> float:
    flops = _busiest_replica(cluster, batch, rollout) * batch.prompt * forward_flops(size, batch.prompt)
    return flops / (rollout.tensor_parallel * cluster.gpu.flops() * constants.PREFILL_SHARE())


def cache_bytes(cluster: Cluster, size: ModelSize, rollout: Rollout) -> float:
    """Of each GPU, for keys and values; below 0 where vLLM's share does not even hold the weights."""
    weights = 2 * size.parameters / rollout.tensor_parallel
    return rollout.memory_share * cluster.gpu.memory() - weights - constants.VLLM_BYTES()


def cache_bytes_of_token(size: ModelSize, rollout: Rollout) -> float:
    """On each GPU of a replica: heads of keys and values are dealt out whole, and copied where there are fewer."""
    return size.kv_bytes / min(rollout.tensor_parallel, size.kv_heads)


def sequences_at_once(cluster: Cluster, size: ModelSize, batch: Batch, rollout: Rollout) -> int:
    """Of the busiest replica: what its cache has room for, each of them whole."""
    room = cache_bytes(cluster, size, rollout) / (batch.length * cache_bytes_of_token(size, rollout))
    asked = _busiest_replica(cluster, batch, rollout) * batch.rollouts
    return max(1, min(asked, rollout.max_sequences, int(room)))


def decode_seconds(cluster: Cluster, size: ModelSize, batch: Batch, rollout: Rollout) -> float:
    gpus = rollout.tensor_parallel
    rows = sequences_at_once(cluster, size, batch, rollout)
    steps = batch.response * _busiest_replica(cluster, batch, rollout) * batch.rollouts / rows
    cache = rows * (batch.prompt + batch.response / 2) * cache_bytes_of_token(size, rollout)
    reads = (2 * size.parameters / gpus + cache) / (cluster.gpu.bandwidth() * constants.BANDWIDTH_SHARE())
    computes = rows * 2 * size.parameters / gpus / (cluster.gpu.flops() * constants.PREFILL_SHARE())
    seconds = max(reads, computes, constants.DECODE_LAUNCH())
    if gpus > 1:  # two sums a layer, of a bf16 vector a sequence
        summed = 2 * rows * size.hidden * 2 * (gpus - 1) / gpus / (cluster.gpu.nvlink() * constants.LINK_SHARE())
        seconds += 2 * size.layers * (constants.ALL_REDUCE_SECONDS() + summed)
    return steps * seconds


def sync_bytes(size: ModelSize, training: Training) -> float:
    """That every GPU gathers: fp32 weights; adapters are below a hundredth of that and not counted."""
    return 0.0 if training.lora else 4.0 * size.parameters


def sync_seconds(cluster: Cluster, size: ModelSize, training: Training) -> float:
    """vLLM sleeps and wakes, gets the weights, and goes on."""
    tensors = 0 if training.lora else 9 * size.layers + 2  # four matrices of attention, three of the MLP, two norms
    gathered = collective_seconds(cluster, sync_bytes(size, training), training.sharing, tensors)
    return constants.SLEEP() + constants.HANDOVER() + gathered


# ---- what comes now and then ----


def checkpoint_seconds(cluster: Cluster, size: ModelSize) -> float:
    shards = SHARD_BYTES * size.parameters
    written = max(shards / cluster.gpus / constants.WRITER_BANDWIDTH(), shards / constants.STORAGE_BANDWIDTH())
    return written + EXPORT_BYTES * size.parameters / constants.WRITER_BANDWIDTH()


def driver_seconds(batch: Batch) -> float:
    return batch.prompts * batch.rollouts * constants.RESPONSE_SECONDS()
