"""Every constant that a plan rests on: what was measured with this program, and what is assumed, each with its source.

A constant is called for its value: `TRAINING_SHARE()`. What is called inside `recorded()` is noted, so that a figure
knows what it rests on.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

_RECORDS: list[set["Constant"]] = []  # of the `recorded()` that are open, the outer ones first


@dataclass(frozen=True)
class Constant:
    """kind: given, where the command line has said it. source: where it was measured, or why it is assumed."""

    name: str
    value: float
    unit: str
    kind: Literal["measured", "assumed", "given"]
    source: str

    def __call__(self) -> float:
        for record in _RECORDS:
            record.add(self)
        return self.value


@contextmanager
def recorded() -> Iterator[set[Constant]]:
    """A set that gets every constant called inside."""
    record: set[Constant] = set()
    _RECORDS.append(record)
    try:
        yield record
    finally:
        _RECORDS.pop()


def _measured(name: str, value: float, unit: str, source: str) -> Constant:
    return Constant(name, value, unit, "measured", source)


def _assumed(name: str, value: float, unit: str, source: str) -> Constant:
    return Constant(name, value, unit, "assumed", source)


# ---- measured ----

ITEM_TOKENS = _measured(
    "tokens of an item",
    9.9,
    "tokens",
    "mean of Reddit-v2's titles, with year and line break: notes/performance.md",
)
HANDOVER = _measured("handing weights to vLLM", 0.30, "s", "a tiny model by CUDA IPC, one H100: notes/gpu.md")
SLEEP = _measured("putting vLLM to sleep", 0.12, "s", "one H100: notes/gpu.md")
ASLEEP_BYTES = _measured("vLLM asleep", 1.6 * 2**30, "bytes", "one H100: notes/gpu.md")
UPDATE_SECONDS = _measured(
    "an update besides its arithmetic", 0.20, "s", "SFT of 2.5M parameters, 5 steps a second on one H100: notes/gpu.md"
)
RESPONSE_SECONDS = _measured(
    "the driver's work for a response", 0.0022, "s", "steps of 128 responses on two CPU cores: notes/performance.md"
)
START_SECONDS = _measured(
    "a start", 78 + 118, "s", "actor and reference, then vLLM; the slowest of seven on one H100: notes/gpu.md"
)

# ---- assumed ----

PROMPT_TOKENS = _assumed("tokens of a prompt", 400, "tokens", "conversation and instruction; --prompt-tokens")
PREFILL_SHARE = _assumed("share of the peak in prefill", 0.5, "", "forward passes of long rows; not measured here")
BANDWIDTH_SHARE = _assumed("share of the memory bandwidth in decoding", 0.6, "", "not measured here")
DECODE_LAUNCH = _assumed("least time of a decoding step", 3e-3, "s", "scheduler and CUDA graph; not measured here")
ALL_REDUCE_SECONDS = _assumed("an all-reduce of tensor parallelism", 15e-6, "s", "vLLM's own kernel within a node")
LINK_SHARE = _assumed("share of a link's bandwidth in collectives", 0.7, "", "large messages; not measured here")
COLLECTIVE_BASE = _assumed("a collective besides its hops", 8.4e-6, "s", "NCCL's cost model, src/graph/tuning.cc, ring")
NVLINK_HOP = _assumed("a hop within a node", 3.4e-6, "s", "NCCL's cost model, src/graph/tuning.cc, ring")
NETWORK_HOP = _assumed("a hop between nodes", 14e-6, "s", "NCCL's cost model, src/graph/tuning.cc, ring")
WRITER_BANDWIDTH = _assumed("a process writes", 1e9, "bytes/s", "serialised, with checksum and fsync, to fast storage")
STORAGE_BANDWIDTH = _assumed("the storage takes, of all nodes", 20e9, "bytes/s", "a parallel file system")
BASE_BYTES = _assumed("a process besides its tensors", 2 * 2**30, "bytes", "CUDA context, NCCL, allocator's slack")
VLLM_BYTES = _assumed("vLLM besides weights and cache", 4 * 2**30, "bytes", "activations, CUDA graphs")


@dataclass(frozen=True)
class GPU:
    """Bytes and FLOP are of one GPU, dense, bf16. Links are of one direction. training_share: of the peak."""

    name: str
    flops: Constant
    bandwidth: Constant
    memory: Constant
    nvlink: Constant
    network: Constant
    training_share: Constant


def _gpu(
    name: str, flops: float, bandwidth: float, memory: float, nvlink: float, network: float, share: tuple[float, str]
) -> GPU:
    sheet = f"NVIDIA's data sheet, {name} SXM"
    return GPU(
        name,
        _assumed("peak, bf16", flops, "FLOP/s", f"{sheet}, without sparsity"),
        _assumed("memory bandwidth", bandwidth, "bytes/s", sheet),
        _assumed("memory", memory, "bytes", sheet),
        _assumed("NVLink", nvlink, "bytes/s", f"{sheet}: half of what it says for both directions"),
        _assumed("network, a GPU", network, "bytes/s", f"an adapter a GPU, as in DGX {name}; --network-gbit"),
        _assumed("share of the peak in training", share[0], "", share[1]),
    )


_HOPPER = (0.35, "torchtitan's FSDP2 reaches .33 to .39, Llama 3.1 8B on 8 and 128 H100s (published with it)")
_AMPERE = (0.5, "torchtitan's FSDP2 reaches .52 to .58, Llama 3 8B and 70B on 64 A100s (published with it)")
GPUS = {
    gpu.name: gpu
    for gpu in (
        _gpu("H100", 989e12, 3.35e12, 80e9, 450e9, 50e9, _HOPPER),
        _gpu("H200", 989e12, 4.8e12, 141e9, 450e9, 50e9, _HOPPER),
        _gpu("A100", 312e12, 2.039e12, 80e9, 300e9, 25e9, _AMPERE),
    )
}
