"""Choose bf16 or fp32 on a host without a GPU, by the speed of its processor for this model.

conf/host/cpu.yaml and conf/sft_host/cpu.yaml leave two settings open (`auto`): the dtype of the training passes, whose
weights stay fp32, and the dtype of the rollout. A value set by the user wins; a resumed run keeps its dtypes.
"""

import time
from dataclasses import dataclass
from typing import Any

from omegaconf import OmegaConf, open_dict

from convrec.runs.folder import latest_step, read_config, setting
from convrec.settings.run import AUTO, Run
from convrec.settings.training import TrainingConfig
from recipes.planning.models import read_model_size

BF16 = "bf16"
FP32 = "fp32"
ROLLOUT_DTYPES = {BF16: "bfloat16", FP32: "float32", "fp16": "float16"}
# torch's names for instructions that multiply in bf16. Without them torch computes in fp32 and rounds to bf16.
BF16_INSTRUCTIONS = ("amx_bf16", "avx512_bf16", "bf16", "sve_bf16")
# bf16 must be this many times as fast as fp32 in an MLP: attention and the optimizer gain less, and fp32 is exact.
MIN_SPEEDUP = 1.25
# Below, passes stay in fp32, which is exact, and the choice does not depend on a noisy measurement. With AMX the demo's
# model (128) trains slower in bf16 and samples faster; SmolLM2 (576) takes 0.4 of the time. Between them nothing was
# measured (notes/real-size-on-cpu.md).
MIN_HIDDEN = 512
# Sizes of the measured MLP. A larger one would take longer and gain more.
MEASURED_TOKENS = 512
MAX_HIDDEN = 1024
MAX_INTERMEDIATE = 3072
MEASURED_REPEATS = 3


@dataclass(frozen=True)
class Precision:
    """The precision of a run's passes.

    Attributes:
        dtype: as verl spells it.
        reason: of the choice, in words.
    """

    dtype: str
    reason: str


def set_precision(run: Run[TrainingConfig]) -> None:
    """Write the dtypes of passes and rollout, where they are `auto`, and the reason into the run's config."""
    config = run.verl_config
    dtype = str(OmegaConf.select(config, run.passes_dtype_key))
    precision = choose_precision(run) if dtype == AUTO else Precision(dtype, f"set by {run.passes_dtype_key}")
    with open_dict(config):
        OmegaConf.update(config, run.passes_dtype_key, precision.dtype)
        if not run.is_sft and run.rollout_memory.dtype == AUTO:
            # The rollout must sample from the policy that is trained: another dtype is another distribution.
            rollout_dtype = ROLLOUT_DTYPES.get(precision.dtype, precision.dtype)
            OmegaConf.update(config, "actor_rollout_ref.rollout.dtype", rollout_dtype)
        if not run.uses_gpu:
            OmegaConf.update(config, "run.precision", f"{precision.dtype}: {precision.reason}", force_add=True)


def choose_precision(run: Run[TrainingConfig]) -> Precision:
    """Choose the dtype of a run's passes on this machine, by a measurement of less than a second.

    A resumed run keeps the dtype that it had.
    """
    if run.uses_gpu:
        return Precision(BF16, "a GPU multiplies in bf16")
    if latest_step(run.folder):
        saved_dtype = setting(read_config(run.folder), run.passes_dtype_key)
        if saved_dtype:
            return Precision(str(saved_dtype), "the dtype that this run started with")
    return measure_precision(run.settings.model)


def measure_precision(model: str) -> Precision:
    """Choose the dtype of a model's passes on this processor.

    Args:
        model: a Hugging Face folder or id.
    """
    if not has_bf16_instructions():
        return Precision(FP32, "this processor has no instructions for bf16")
    hidden, intermediate = _measured_shape(model)
    if hidden < MIN_HIDDEN:
        return Precision(FP32, f"hidden states of {hidden} values are too small to gain from bf16")
    return compare_seconds(
        measure_mlp_seconds(hidden, intermediate, FP32), measure_mlp_seconds(hidden, intermediate, BF16)
    )


def compare_seconds(fp32_seconds: float, bf16_seconds: float) -> Precision:
    """Choose bf16 if it is at least MIN_SPEEDUP times as fast, else fp32.

    Args:
        fp32_seconds: time in fp32.
        bf16_seconds: time of the same work in bf16, including the casts of its fp32 weights.
    """
    speedup = fp32_seconds / bf16_seconds
    dtype = BF16 if speedup >= MIN_SPEEDUP else FP32
    return Precision(dtype, f"measured now, at this model's size: bf16 takes {1 / speedup:.2f} of the time of fp32")


def has_bf16_instructions() -> bool:
    """Return whether this processor has instructions for bf16, according to torch."""
    import torch

    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name, False) for name in BF16_INSTRUCTIONS)


def measure_mlp_seconds(hidden: int, intermediate: int, dtype: str) -> float:
    """Time one forward and backward pass of a gated MLP with fp32 weights; return the best of MEASURED_REPEATS.

    Args:
        hidden: size of a hidden state.
        intermediate: size between the matrices.
        dtype: dtype of the pass, bf16 or fp32.
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
    """Return the sizes of the MLP to measure: the model's, up to a limit; the limit if its config cannot be read."""
    try:
        size = read_model_size(model)
    except (OSError, ValueError):  # the checks of the model report it
        return MAX_HIDDEN, MAX_INTERMEDIATE
    return min(size.hidden, MAX_HIDDEN), min(size.intermediate, MAX_INTERMEDIATE)
