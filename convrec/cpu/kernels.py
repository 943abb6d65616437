"""RMS norm and SwiGLU in vLLM's engine on a CPU by the C kernels of vLLM's own library.

vLLM leaves both to torch.compile there, and without a compiler (`enforce_eager`, which starts sooner) each is up to ten
small PyTorch operations. The names of the functions and arguments are those of vLLM's operations.
"""

import torch
from vllm.config.kernel import IrOpPriorityConfig
from vllm.ir.ops.layernorm import fused_add_rms_norm, rms_norm
from vllm.model_executor.layers.activation import SiluAndMul
from vllm.platforms import current_platform

PROVIDER = "convrec_cpu"
# The kernels refuse sizes that do not fill their vectors, of 8 to 32 numbers on the processors that vLLM supports.
VECTOR = 32

_pytorch_swiglu = SiluAndMul.forward_native


def _has_kernel(x: torch.Tensor, weight: torch.Tensor | None, epsilon: float, variance_size: int | None = None) -> bool:
    fits = x.shape[-1] % VECTOR == 0 and x.is_contiguous()
    return fits and variance_size is None and weight is not None and weight.dtype == x.dtype


def _has_fused_kernel(
    x: torch.Tensor,
    x_residual: torch.Tensor,
    weight: torch.Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
) -> bool:
    same = x_residual.dtype == x.dtype and x_residual.is_contiguous()
    return same and _has_kernel(x, weight, epsilon, variance_size)


@rms_norm.register_impl(PROVIDER, supported=current_platform.is_cpu(), supports_args=_has_kernel)
def _rms_norm(
    x: torch.Tensor, weight: torch.Tensor | None, epsilon: float, variance_size: int | None = None
) -> torch.Tensor:
    normed = torch.empty_like(x)
    torch.ops._C.rms_norm(normed, x, weight, epsilon)
    return normed


@fused_add_rms_norm.register_impl(
    PROVIDER, supported=current_platform.is_cpu(), supports_args=_has_fused_kernel, inplace=True
)
def _fused_add_rms_norm(
    x: torch.Tensor,
    x_residual: torch.Tensor,
    weight: torch.Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    torch.ops._C.fused_add_rms_norm(x, x_residual, weight, epsilon)
    return x, x_residual


def swiglu(x: torch.Tensor) -> torch.Tensor:
    """Return silu(first half) * second half of the last dimension, in place of SiluAndMul.forward_native.

    Args:
        x: (..., 2 * d).

    Returns:
        (..., d), of the same dtype.
    """
    d = x.shape[-1] // 2
    if d % VECTOR or not x.is_contiguous():
        return _pytorch_swiglu(x)
    product = x.new_empty(*x.shape[:-1], d)
    torch.ops._C.silu_and_mul(product, x)
    return product


def install(priority: IrOpPriorityConfig) -> None:
    """Use the kernels in the models that this process makes from now on; a second call has no effect.

    Args:
        priority: the engine's order of implementations, changed in place.
    """
    if not current_platform.is_cpu():
        return
    current_platform.import_kernels()
    SiluAndMul.forward_native = staticmethod(swiglu)
    for operation in (priority.rms_norm, priority.fused_add_rms_norm):
        if PROVIDER not in operation:
            operation.insert(0, PROVIDER)
