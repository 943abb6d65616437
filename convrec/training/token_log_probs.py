"""Compute log-probs of tokens from hidden states and a head, in chunks whose logits are computed twice, or at once.

In chunks, the forward pass keeps two numbers per token, log-prob and logsumexp. The backward pass computes the logits
of a chunk again and turns them into their gradient in place. Memory traffic per logit with a head in bf16, in bytes,
counted from the operations below (r: read, w: written):

    forward   product w2, maximum r2, logits minus it r2 w4, exponentials r4 w4, their sum r4        22
    backward  product w2, logits minus logsumexp r2 w4, exponentials r4 w4, gradient r4 w2,
              the two products that take it r2 r2                                                   26

Shapes: P tokens, C tokens of a chunk, D hidden size, V vocabulary size.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch.autograd.function import once_differentiable

CHUNK = 1024  # number of tokens whose logits are in memory at the same time
LogProbsAndEntropies = tuple[torch.Tensor, torch.Tensor | None]


def compute_chunked_log_probs(
    hidden_PD: torch.Tensor, weight_VD: torch.Tensor, token_P: torch.Tensor, temperature: float, with_entropy: bool
) -> LogProbsAndEntropies:
    """Compute log-probs with the logits of only CHUNK tokens in memory.

    Args:
        hidden_PD: hidden states that predict the tokens, in the dtype of the head.
        weight_VD: weights of the head.
        token_P: token ids, int64.
        temperature: divisor of the logits.
        with_entropy: also compute entropies, with their gradient.

    Returns:
        (P,) log-probs, and (P,) entropies or None; in float32, or in float64 if the head is.
    """
    log_prob_P, entropy_P = _ChunkedLogProbs.apply(hidden_PD, weight_VD, token_P, temperature, with_entropy)
    return log_prob_P, entropy_P


def compute_whole_log_probs(
    hidden_PD: torch.Tensor, weight_VD: torch.Tensor, token_P: torch.Tensor, temperature: float, with_entropy: bool
) -> LogProbsAndEntropies:
    """Compute log-probs as `compute_chunked_log_probs` does, with all logits in memory and none computed twice.

    Arguments and result are the same, except that the result is always float32.
    """
    logits_PV = torch.nn.functional.linear(hidden_PD, weight_VD).float()
    if temperature != 1:
        logits_PV = logits_PV / temperature
    log_prob_P = -torch.nn.functional.cross_entropy(logits_PV, token_P, reduction="none")
    if not with_entropy:
        return log_prob_P, None
    mean_logit_P = (logits_PV.softmax(-1) * logits_PV).sum(-1)
    return log_prob_P, logits_PV.logsumexp(-1) - mean_logit_P


class _ChunkedLogProbs(torch.autograd.Function):
    """The head's gradient is summed over chunks in float32."""

    @staticmethod
    def forward(
        context: Any,
        hidden_PD: torch.Tensor,
        weight_VD: torch.Tensor,
        token_P: torch.Tensor,
        temperature: float,
        with_entropy: bool,
    ) -> LogProbsAndEntropies:
        context.set_materialize_grads(False)  # entropies have no gradient if only log-probs are in the loss
        dtype = torch.promote_types(weight_VD.dtype, torch.float32)
        log_prob_P = hidden_PD.new_empty(len(token_P), dtype=dtype)
        logsumexp_P = torch.empty_like(log_prob_P)
        entropy_P = torch.empty_like(log_prob_P) if with_entropy else None
        # Autocast is off, because the backward pass must compute the same logits and has none.
        with torch.autocast(hidden_PD.device.type, enabled=False):
            for rows in _chunks(len(token_P)):
                logits_CV = _make_logits(hidden_PD[rows], weight_VD, temperature)
                chosen_C = logits_CV.gather(-1, token_P[rows, None]).squeeze(-1).to(dtype)
                largest_C = logits_CV.amax(-1).to(dtype)
                shifted_CV = _subtract(logits_CV, largest_C)
                # an entropy needs both the exponentials and their arguments
                exponential_CV = shifted_CV.exp() if with_entropy else shifted_CV.exp_()
                sum_C = exponential_CV.sum(-1)
                log_sum_C = sum_C.log()
                log_prob_P[rows] = chosen_C - largest_C - log_sum_C
                logsumexp_P[rows] = largest_C + log_sum_C
                if entropy_P is not None:
                    entropy_P[rows] = log_sum_C - exponential_CV.mul_(shifted_CV).sum(-1) / sum_C
        context.save_for_backward(hidden_PD, weight_VD, token_P, logsumexp_P, entropy_P)
        context.temperature = temperature
        return log_prob_P, entropy_P

    @staticmethod
    @once_differentiable
    def backward(
        context: Any, log_prob_gradient_P: torch.Tensor | None, entropy_gradient_P: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None, None, None, None]:
        hidden_PD, weight_VD, token_P, logsumexp_P, entropy_P = context.saved_tensors
        if log_prob_gradient_P is None:
            log_prob_gradient_P = torch.zeros_like(logsumexp_P)
        hidden_gradient_PD = torch.empty_like(hidden_PD)
        weight_gradient_VD = None
        if context.needs_input_grad[1]:
            weight_gradient_VD = torch.zeros_like(weight_VD, dtype=logsumexp_P.dtype)
        with torch.autocast(hidden_PD.device.type, enabled=False):
            for rows in _chunks(len(token_P)):
                logits_CV = _make_logits(hidden_PD[rows], weight_VD, context.temperature)
                log_probs_CV = _subtract(logits_CV, logsumexp_P[rows])
                if entropy_gradient_P is None:
                    slope_CV = log_probs_CV.exp_()
                    slope_CV.scatter_add_(-1, token_P[rows, None], slope_CV.new_full((len(slope_CV), 1), -1))
                    scale_C1 = log_prob_gradient_P[rows, None] / -context.temperature
                else:
                    slope_CV = _negative_slope(
                        log_probs_CV,
                        token_P[rows],
                        log_prob_gradient_P[rows, None],
                        entropy_P[rows, None],
                        entropy_gradient_P[rows, None],
                    )
                    scale_C1 = slope_CV.new_full((1, 1), -1 / context.temperature)
                gradient_CV = torch.mul(slope_CV, scale_C1, out=logits_CV)
                torch.mm(gradient_CV, weight_VD, out=hidden_gradient_PD[rows])
                if weight_gradient_VD is not None:
                    weight_gradient_VD += gradient_CV.t() @ hidden_PD[rows]
        if weight_gradient_VD is not None:
            weight_gradient_VD = weight_gradient_VD.to(weight_VD.dtype)
        return hidden_gradient_PD, weight_gradient_VD, None, None, None


def _chunks(length: int) -> Iterator[slice]:
    return (slice(start, min(start + CHUNK, length)) for start in range(0, length, CHUNK))


def _make_logits(hidden_CD: torch.Tensor, weight_VD: torch.Tensor, temperature: float) -> torch.Tensor:
    logits_CV = hidden_CD @ weight_VD.t()
    return logits_CV if temperature == 1 else logits_CV.div_(temperature)


def _subtract(logits_CV: torch.Tensor, value_C: torch.Tensor) -> torch.Tensor:
    """Subtract a value per token from the logits, in the dtype of the values; in place if the logits have it too."""
    is_same_type = logits_CV.dtype == value_C.dtype
    out_CV = logits_CV if is_same_type else torch.empty_like(logits_CV, dtype=value_C.dtype)
    return torch.sub(logits_CV, value_C[:, None], out=out_CV)


def _negative_slope(
    log_probs_CV: torch.Tensor,
    token_C: torch.Tensor,
    log_prob_gradient_C1: torch.Tensor,
    entropy_C1: torch.Tensor,
    entropy_gradient_C1: torch.Tensor,
) -> torch.Tensor:
    """Return minus the derivative of a loss by the logits, from its derivatives by log-probs and entropies.

    The derivative by a logit with probability p is 1 - p or -p for the log-prob of a token (1 - p for the token's own
    logit), and -p (log p + H) for the entropy H.
    """
    slope_CV = log_probs_CV.exp()
    slope_CV.mul_(log_probs_CV.add_(entropy_C1).mul_(entropy_gradient_C1).add_(log_prob_gradient_C1))
    return slope_CV.scatter_add_(-1, token_C[:, None], -log_prob_gradient_C1)
