"""bf16 or fp32 on a host without a GPU: what its processor trains this model faster in.

conf/host/cpu.yaml and conf/sft_host/cpu.yaml leave both open (`auto`): the dtype of the training passes, whose weights
stay fp32, and the dtype of the rollout. Whoever sets one of them has it; a run that is resumed keeps its own.
"""

import time
from dataclasses import dataclass
from typing import Any

from omegaconf import OmegaConf, open_dict

from convrec.runs.folder import latest_step, read_config, setting
from convrec.settings.run import AUTO, Run
from convrec.settings.training import TrainingConfig
from recipes.planning.models import model_size

BF16 = "bf16"
FP32 = "fp32"
ROLLOUT_DTYPES = {BF16: "bfloat16", FP32: "float32", "fp16": "float16"}
# torch's names for instructions that multiply numbers in bf16. Without them torch computes bf16 in fp32, and rounds.
BF16_INSTRUCTIONS = ("amx_bf16", "avx512_bf16", "bf16", "sve_bf16")
# So many times as fast as fp32 bf16 must be in an MLP: attention and the optimizer gain less, and fp32 is exact.
LEAST_GAIN = 1.25
# Of the MLP that is measured. Larger ones take longer and gain more.
MEASURED_TOKENS = 512
MOST_HIDDEN = 1024
MOST_INTERMEDIATE = 3072
MEASURED_REPEATS = 3


@dataclass(frozen=True)
class Precision:
    """The dtype of a run's passes, in verl's word, and the reason for it in words."""

    dtype: str
    reason: str


def set_precision(run: Run[TrainingConfig]) -> None:
    """Write the dtypes of passes and rollout into the run's config where they are open, and what the run says of it."""
    config = run.verl_config
    given = str(OmegaConf.select(config, run.passes_dtype_key))
    precision = choose_precision(run) if given == AUTO else Precision(given, f"by {run.passes_dtype_key}")
    with open_dict(config):
        OmegaConf.update(config, run.passes_dtype_key, precision.dtype)
        if not run.is_sft and run.rollout_memory.dtype == AUTO:
            # The rollout samples from the policy as it is trained; another dtype would be another distribution.
            rollout_dtype = ROLLOUT_DTYPES.get(precision.dtype, precision.dtype)
            OmegaConf.update(config, "actor_rollout_ref.rollout.dtype", rollout_dtype)
        if not run.uses_gpu:
            OmegaConf.update(config, "run.precision", f"{precision.dtype}: {precision.reason}", force_add=True)


def choose_precision(run: Run[TrainingConfig]) -> Precision:
    """Choose the dtype of a run's passes on this machine, by a measurement of less than a second."""
    if run.uses_gpu:
        return Precision(BF16, "a GPU multiplies in bf16")
    if latest_step(run.folder):
        before = setting(read_config(run.folder), run.passes_dtype_key)
        if before:
            return Precision(str(before), "as the run was started")
    if not has_bf16_instructions():
        return Precision(FP32, "this processor has no instructions for bf16")
    hidden, intermediate = _measured_shape(run.settings.model)
    return compare_seconds(
        measure_mlp_seconds(hidden, intermediate, FP32), measure_mlp_seconds(hidden, intermediate, BF16)
    )


def compare_seconds(fp32_seconds: float, bf16_seconds: float) -> Precision:
    """Return bf16 where it is faster by LEAST_GAIN, else fp32.

    Args:
        fp32_seconds: of the same work in fp32.
        bf16_seconds: in bf16, with the casts of its fp32 weights.
    """
    gain = fp32_seconds / bf16_seconds
    dtype = BF16 if gain >= LEAST_GAIN else FP32
    return Precision(dtype, f"bf16 takes {1 / gain:.2f} of the time of fp32 at this model's size, measured now")


def has_bf16_instructions() -> bool:
    """Return whether torch finds instructions for bf16 in this processor."""
    import torch

    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name, False) for name in BF16_INSTRUCTIONS)


def measure_mlp_seconds(hidden: int, intermediate: int, dtype: str) -> float:
    """Return the least seconds of a forward and a backward pass of one gated MLP with fp32 weights.

    Args:
        hidden: numbers of a hidden state.
        intermediate: numbers between the matrices.
        dtype: of the pass, bf16 or fp32.
    """
    import torch

    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(MEASURED_TOKENS, hidden, generator=generator)
    gate = torch.randn(intermediate, hidden, generator=generator).mul(hidden**-0.5).requires_grad_()
    up = torch.randn(intermediate, hidden, generator=generator).mul(hidden**-0.5).requires_grad_()
    down = torch.randn(hidden, intermediate, generator=generator).mul(intermediate**-0.5).requires_grad_()

    def run_once() -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == BF16):
            gated = torch.nn.functional.silu(inputs @ gate.t()) * (inputs @ up.t())
            outputs = gated @ down.t()
        return torch.autograd.grad(outputs.float().square().mean(), (gate, up, down))

    run_once()  # the first call prepares kernels
    seconds = []
    for _ in range(MEASURED_REPEATS):
        begin = time.perf_counter()
        run_once()
        seconds.append(time.perf_counter() - begin)
    return min(seconds)


def _measured_shape(model: str) -> tuple[int, int]:
    """Return the sizes of the MLP to measure: the model's, up to a limit; the limit where its config cannot be read."""
    try:
        size = model_size(model)
    except (OSError, ValueError):  # the checks of the model say so
        return MOST_HIDDEN, MOST_INTERMEDIATE
    return min(size.hidden, MOST_HIDDEN), min(size.intermediate, MOST_INTERMEDIATE)
