"""The constants of a plan: GPUs as in their data sheets, and ranges for quantities that cannot be computed.

A plan prints every range with its source; see docs/explanation/planning.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Range = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Constant:
    """A measured or assumed quantity.

    Attributes:
        name: its name in a plan.
        fast: optimistic value.
        slow: pessimistic value.
        unit: "" for a share or a ratio.
        source: where it was measured, "assumed", or "expected" by engineers who have run such clusters.
    """

    name: str
    fast: float
    slow: float
    unit: str = ""
    source: str

    @property
    def range(self) -> Range:
        """The array (fast, slow), with which formulas compute elementwise."""
        return np.array([self.fast, self.slow])


LONGEST_ANSWER = Constant(
    name="longest answer over the mean",
    fast=1.3,
    slow=2,
    source="assumed: 384 lists that end; one that goes on",
)
DECODE_STEP_MS = Constant(
    name="least time of a step of decoding",
    fast=4,
    slow=8,
    unit="ms",
    source="assumed: scheduler, sampler, CUDA graph",
)
BANDWIDTH_SHARE = Constant(
    name="share of the memory bandwidth in decoding",
    fast=0.7,
    slow=0.5,
    source="assumed",
)
PREFILL_SHARE = Constant(
    name="share of the peak in prefill",
    fast=0.5,
    slow=0.3,
    source="assumed: forward passes of long rows",
)
ALL_REDUCE_US = Constant(
    name="an all-reduce of tensor parallelism",
    fast=15,
    slow=30,
    unit="us",
    source="assumed: vLLM's own kernel in a node",
)
UPDATE_SECONDS = Constant(
    name="an update besides its arithmetic",
    fast=0.2,
    slow=0.5,
    unit="s",
    source="0.2 measured: SFT on one H100, notes/gpu.md",
)
SYNC_SECONDS = Constant(
    name="weight sync, sleep and wake",
    fast=1,
    slow=1.5,
    unit="s",
    source="expected; .42 measured without waking: notes/gpu.md",
)
RESPONSE_MS = Constant(
    name="the driver, for a response",
    fast=1.1,
    slow=3.2,
    unit="ms",
    source="measured on two busy cores, and half of it",
)
NETWORK_WAIT = Constant(
    name="network time that is waited for",
    fast=0,
    slow=1.5,
    source="assumed: none; all, at two thirds of the bandwidth",
)
WRITER_GB_PER_SECOND = Constant(
    name="a process writes of a checkpoint",
    fast=2,
    slow=1,
    unit="GB/s",
    source="assumed: serialised, checksum, fsync",
)
START_SECONDS = Constant(
    name="a start",
    fast=150,
    slow=300,
    unit="s",
    source="153 to 196 measured on one H100, tiny models: notes/gpu.md",
)
# In the order in which a plan prints them.
CONSTANTS = (
    LONGEST_ANSWER,
    DECODE_STEP_MS,
    BANDWIDTH_SHARE,
    PREFILL_SHARE,
    ALL_REDUCE_US,
    UPDATE_SECONDS,
    SYNC_SECONDS,
    RESPONSE_MS,
    NETWORK_WAIT,
    WRITER_GB_PER_SECOND,
    START_SECONDS,
)

# torchtitan has published .33 to .39 of the peak of H100s and .52 to .58 of A100s, with FSDP2 and compiled layers.
HOPPER_TRAINING_SHARE = Constant(
    name="share of the peak in training",
    fast=0.39,
    slow=0.15,
    source="torchtitan's best; eager layers: .15-.20 expected",
)
AMPERE_TRAINING_SHARE = Constant(
    name="share of the peak in training",
    fast=0.58,
    slow=0.25,
    source="torchtitan's best; assumed of eager layers",
)


@dataclass(frozen=True, kw_only=True)
class GPU:
    """A GPU in its SXM form, with the figures of NVIDIA's data sheet.

    Attributes:
        name: its name in `convrec plan --gpu`.
        flops: dense bf16 FLOP/s.
        bandwidth: memory bandwidth in bytes/s.
        memory: bytes.
        nvlink: bytes/s in one direction.
        network: bytes/s of a network adapter in one direction; there is one per GPU.
        training_share: share of `flops` that training reaches.
    """

    name: str
    flops: float
    bandwidth: float
    memory: float
    nvlink: float
    network: float
    training_share: Constant


MIB = 2**20  # nvidia-smi gives a GPU's memory in MiB

H100 = GPU(
    name="H100",
    flops=989.0e12,
    bandwidth=3.35e12,
    memory=81559 * MIB,
    nvlink=450.0e9,
    network=50.0e9,
    training_share=HOPPER_TRAINING_SHARE,
)
H200 = GPU(
    name="H200",
    flops=989.0e12,
    bandwidth=4.8e12,
    memory=143771 * MIB,
    nvlink=450.0e9,
    network=50.0e9,
    training_share=HOPPER_TRAINING_SHARE,
)
A100 = GPU(
    name="A100",
    flops=312.0e12,
    bandwidth=2.039e12,
    memory=81920 * MIB,
    nvlink=300.0e9,
    network=25.0e9,
    training_share=AMPERE_TRAINING_SHARE,
)
GPUS: Mapping[str, GPU] = {gpu.name: gpu for gpu in (H100, H200, A100)}
