"""vLLM's C kernels give what its PyTorch operations give."""

import pytest
import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.config.kernel import IrOpPriorityConfig
from vllm.ir.ops.layernorm import fused_add_rms_norm, rms_norm
from vllm.model_executor.layers.activation import SiluAndMul

from convrec.cpu.kernels import PROVIDER, install, swiglu

EPSILON = 1e-5
SIZES = (4, 32, 100, 576, 1536)  # 4 and 100 do not fill the kernels' vectors
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# A kernel rounds once, PyTorch's operations up to three times.
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2**-7, torch.float16: 2**-10}


@pytest.fixture
def priority(monkeypatch: pytest.MonkeyPatch) -> IrOpPriorityConfig:
    monkeypatch.setattr(SiluAndMul, "forward_native", staticmethod(SiluAndMul.forward_native))
    priority = IrOpPriorityConfig.with_default(["native"])
    install(priority)
    install(priority)
    return priority


def draw(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 1) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def assert_near(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert found.dtype == expected.dtype
    tolerance = TOLERANCE[expected.dtype]
    torch.testing.assert_close(found.float(), expected.float(), rtol=2 * tolerance, atol=tolerance / 4)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
def test_norms_are_those_of_pytorch(size: int, dtype: torch.dtype, priority: IrOpPriorityConfig) -> None:
    x, residual = draw(7, size, dtype=dtype), draw(7, size, dtype=dtype, seed=2)
    weight = draw(size, dtype=dtype, seed=3)
    expected = rms_norm.impls["native"].impl_fn(x, weight, EPSILON)
    expected_sum = fused_add_rms_norm.impls["native"].impl_fn(x, residual, weight, EPSILON)
    with priority.set_priority():
        has_kernel = rms_norm.dispatch(x, weight, EPSILON).provider == PROVIDER
        assert has_kernel == (size not in (4, 100))
        assert fused_add_rms_norm.dispatch(x, residual, weight, EPSILON).provider == (
            PROVIDER if has_kernel else "native"
        )
        assert_near(rms_norm(x, weight, EPSILON), expected)
        normed, total = fused_add_rms_norm.maybe_inplace(x.clone(), residual.clone(), weight, EPSILON)
    assert_near(normed, expected_sum[0])
    assert torch.equal(total, expected_sum[1])


def test_a_norm_that_no_kernel_computes_stays_with_pytorch(priority: IrOpPriorityConfig) -> None:
    x, weight = draw(6, 64), draw(64, seed=3)
    with priority.set_priority():
        for arguments in (
            (x, None, EPSILON),
            (x, weight.bfloat16(), EPSILON),
            (x, weight, EPSILON, 32),
            (x.T.contiguous().T, weight, EPSILON),
        ):
            assert rms_norm.dispatch(*arguments).provider == "native"
        assert fused_add_rms_norm.dispatch(x, x.bfloat16(), weight, EPSILON).provider == "native"
        assert fused_add_rms_norm.dispatch(x, x.T.contiguous().T, weight, EPSILON).provider == "native"
        # the heads of a model with a norm of its queries
        heads = draw(6, 3, 64)
        assert rms_norm.dispatch(heads, weight, EPSILON).provider == PROVIDER
        assert_near(rms_norm(heads, weight, EPSILON), rms_norm.impls["native"].impl_fn(heads, weight, EPSILON))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
def test_swiglu_is_that_of_pytorch(size: int, dtype: torch.dtype, priority: IrOpPriorityConfig) -> None:
    x = draw(7, 2 * size, dtype=dtype)
    expected = torch.nn.functional.silu(x[:, :size]) * x[:, size:]
    with set_current_vllm_config(VllmConfig()):
        layer = SiluAndMul()
    assert layer.forward_native is swiglu
    assert_near(layer(x), expected)
    assert_near(swiglu(x.T.contiguous().T), expected)
