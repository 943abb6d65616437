"""Log-probs in chunks: values and gradients against the definition, against verl's head, and what they cost."""

from collections.abc import Callable

import pytest
import torch
from verl.utils.experimental.torch_functional import _fused_linear_for_ppo_bwd, _fused_linear_for_ppo_fwd

from benchmarks.bench_log_probs import LogitTraffic
from convrec.training import token_log_probs
from convrec.training.token_log_probs import compute_chunked_log_probs, compute_whole_log_probs

WORDS_OF_QWEN = 151_936
Head = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def make_head(tokens: int, size: int, words: int, dtype: torch.dtype = torch.float32) -> Head:
    """(hidden states, weights of the head, tokens); logits with a standard deviation of 3."""
    generator = torch.Generator().manual_seed(5)
    hidden_PD = torch.randn(tokens, size, generator=generator)
    weight_VD = torch.randn(words, size, generator=generator) * 3 / size**0.5
    token_P = torch.randint(0, words, (tokens,), generator=generator)
    token_P[::2] = (hidden_PD @ weight_VD.t())[::2].argmax(-1)  # a trained model's: likely ones
    return hidden_PD.to(dtype), weight_VD.to(dtype), token_P


def compute_with_gradients(
    compute: Callable[..., tuple[torch.Tensor, torch.Tensor | None]],
    head: Head,
    temperature: float = 1.0,
    with_entropy: bool = False,
    dtype: torch.dtype | None = None,
) -> list[torch.Tensor]:
    """Log-probs, entropies if wanted, and gradients by hidden states and weights, of a weighted sum of both."""
    hidden_PD, weight_VD, token_P = head
    hidden_PD, weight_VD = (tensor.to(dtype or tensor.dtype, copy=True) for tensor in (hidden_PD, weight_VD))
    hidden_PD.requires_grad_()
    weight_VD.requires_grad_()
    log_prob_P, entropy_P = compute(hidden_PD, weight_VD, token_P, temperature, with_entropy)
    factor_P = torch.linspace(-1, 1, len(token_P), dtype=log_prob_P.dtype)
    loss = (log_prob_P * factor_P).sum()
    values = [log_prob_P]
    if entropy_P is not None:
        loss = loss + (entropy_P * factor_P.flip(0)).sum()
        values.append(entropy_P)
    loss.backward()
    assert hidden_PD.grad is not None
    assert weight_VD.grad is not None
    return [value.detach() for value in (*values, hidden_PD.grad, weight_VD.grad)]


def by_definition(
    hidden_PD: torch.Tensor, weight_VD: torch.Tensor, token_P: torch.Tensor, temperature: float, with_entropy: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    log_probs_PV = (hidden_PD @ weight_VD.t() / temperature).log_softmax(-1)
    entropy_P = -(log_probs_PV.exp() * log_probs_PV).sum(-1) if with_entropy else None
    return log_probs_PV.gather(-1, token_P[:, None])[:, 0], entropy_P


def by_verl(
    hidden_PD: torch.Tensor, weight_VD: torch.Tensor, token_P: torch.Tensor, temperature: float, with_entropy: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """verl's functions of a chunk, which the log-probs in chunks were made of before."""

    class Chunk(torch.autograd.Function):
        @staticmethod
        def forward(context, hidden, weight):  # type: ignore[no-untyped-def]
            context.save_for_backward(hidden, weight)
            return _fused_linear_for_ppo_fwd(hidden, weight, token_P, temperature)

        @staticmethod
        def backward(context, log_prob_gradient, entropy_gradient):  # type: ignore[no-untyped-def]
            gradients = (log_prob_gradient, entropy_gradient if with_entropy else None)
            return _fused_linear_for_ppo_bwd(*gradients, *context.saved_tensors, token_P, temperature)

    log_prob_P, entropy_P = Chunk.apply(hidden_PD, weight_VD)
    return log_prob_P, entropy_P if with_entropy else None


@pytest.mark.parametrize("with_entropy", [False, True])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_gradients_are_those_of_finite_differences(
    monkeypatch: pytest.MonkeyPatch, temperature: float, with_entropy: bool
) -> None:
    monkeypatch.setattr(token_log_probs, "CHUNK", 3)
    *head, token_P = make_head(tokens=7, size=4, words=11, dtype=torch.float64)

    def compute(hidden_PD: torch.Tensor, weight_VD: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values = compute_chunked_log_probs(hidden_PD, weight_VD, token_P, temperature, with_entropy)
        return tuple(value for value in values if value is not None)

    assert torch.autograd.gradcheck(compute, [tensor.requires_grad_() for tensor in head])


@pytest.mark.parametrize(("temperature", "with_entropy"), [(1.0, False), (0.7, True)])
def test_float32_values_and_gradients_match_the_definition(
    temperature: float,
    with_entropy: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(token_log_probs, "CHUNK", 5)
    head = make_head(tokens=12, size=16, words=WORDS_OF_QWEN)
    expected = compute_with_gradients(by_definition, head, temperature, with_entropy, torch.float64)
    chunked = compute_with_gradients(compute_chunked_log_probs, head, temperature, with_entropy)
    whole = compute_with_gradients(compute_whole_log_probs, head, temperature, with_entropy)
    verls = compute_with_gradients(by_verl, head, temperature, with_entropy)
    assert len(chunked) == 3 + with_entropy
    # A gradient is a product over 151,936 words, whose float32 sum has an error of its own.
    precisions = [1e-6] * (1 + with_entropy) + [3e-5] * 2
    for exact, value, other, verl, precision in zip(expected, chunked, whole, verls, precisions, strict=True):
        assert value.dtype == other.dtype == torch.float32
        assert (value - exact).norm() <= precision * exact.norm()
        assert (value - exact).norm() <= 1.1 * (verl - exact).norm()
        # torch's softmax over so many words is less exact than a sum of exponentials, on a CPU
        assert (other - exact).norm() <= 3e-4 * exact.norm()


def test_bfloat16_error_is_within_a_tenth_of_verls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both round logits to bf16 first: what is computed from these must add nothing to that error."""
    monkeypatch.setattr(token_log_probs, "CHUNK", 6)
    head = make_head(tokens=12, size=64, words=WORDS_OF_QWEN, dtype=torch.bfloat16)
    expected = compute_with_gradients(by_definition, head, with_entropy=True, dtype=torch.float64)
    found = compute_with_gradients(compute_chunked_log_probs, head, with_entropy=True)
    verls = compute_with_gradients(by_verl, head, with_entropy=True)
    for one, verl, other in zip(found, verls, expected, strict=True):
        error = (one - other).norm() / other.norm()
        assert error <= 1.1 * (verl - other).norm() / other.norm()
        assert error < 0.01


def test_a_certain_token_has_no_gradient_left_over_in_bfloat16() -> None:
    """Its logit is 60 above the others: p is 1, and 1 - p must not be rounded like p in bf16."""
    weight_VD = torch.zeros(8, 4, dtype=torch.bfloat16)
    weight_VD[2, 0] = 60
    hidden_PD = torch.eye(4, dtype=torch.bfloat16)[:1].requires_grad_()
    log_prob_P, _ = compute_chunked_log_probs(hidden_PD, weight_VD, torch.tensor([2]), 1.0, False)
    log_prob_P.sum().backward()
    assert log_prob_P.item() == pytest.approx(0, abs=1e-6)
    assert hidden_PD.grad is not None
    assert hidden_PD.grad.abs().max() < 1e-6


def traffic_of_a_logit(compute: Callable[..., tuple[torch.Tensor, torch.Tensor | None]], temperature: float) -> float:
    """Bytes, forward and backward, with a head in bf16; the head's own gradient is not counted."""
    tokens, words = 8, 1000
    hidden_PD, weight_VD, token_P = make_head(tokens, 4, words, torch.bfloat16)
    hidden_PD.requires_grad_()
    weight_VD.requires_grad_()
    with LogitTraffic(tokens, words) as traffic:
        compute(hidden_PD, weight_VD, token_P, temperature, False)[0].sum().backward()
    return traffic.num_bytes / (tokens * words)


def test_logit_costs_half_of_verls_memory_traffic() -> None:
    """The bytes that the module's docstring counts."""
    assert traffic_of_a_logit(compute_chunked_log_probs, 1.0) == 22 + 26
    assert traffic_of_a_logit(by_verl, 1.0) > 2 * (22 + 26)


def test_a_temperature_of_1_costs_nothing() -> None:
    other = traffic_of_a_logit(compute_chunked_log_probs, 0.7)
    assert (
        traffic_of_a_logit(compute_chunked_log_probs, 1.0) == other - 2 * 4
    )  # read and written in bf16, forward and backward


def test_entropies_that_nobody_wants_are_not_computed() -> None:
    head = make_head(tokens=3, size=4, words=9)
    assert compute_chunked_log_probs(*head, 1.0, False)[1] is None
    assert compute_whole_log_probs(*head, 1.0, False)[1] is None


def test_no_tokens_have_no_log_probs_and_a_gradient_of_0() -> None:
    hidden_PD, weight_VD, token_P = make_head(tokens=3, size=4, words=9)
    hidden_PD = hidden_PD[:0].requires_grad_()
    weight_VD.requires_grad_()
    log_prob_P, _ = compute_chunked_log_probs(hidden_PD, weight_VD, token_P[:0], 1.0, False)
    log_prob_P.sum().backward()
    assert log_prob_P.shape == (0,)
    assert weight_VD.grad is not None
    assert not weight_VD.grad.any()
