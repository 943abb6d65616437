"""How vLLM's engine draws tokens on a CPU: by one random number a token, where its own way has one for each word of the
vocabulary (an exponential race), which takes longer than a small model.

Requests with a seed keep vLLM's way, and so their samples: in a race two policies that are nearly the same seldom draw
differently; by the distribution function they do wherever a sum over the words before has moved.
"""

import torch
from vllm.v1.sample.ops import topk_topp_sampler
from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler


def draw_tokens(logits_BV: torch.Tensor, generators: dict[int, torch.Generator]) -> torch.Tensor:
    """(B) tokens, each drawn from softmax(logits) of its row by the inverse of the distribution function.

    generators: of the rows with a seed, where vLLM's race is run.
    """
    probs_BV = logits_BV.softmax(dim=-1, dtype=torch.float32)
    # float64: in float32 the rare words of a large vocabulary are lost in the sum
    up_to_BV = probs_BV.cumsum(dim=-1, dtype=torch.float64)
    # in (0, sum]: the first word that reaches it has a probability above 0
    reached_B1 = (1 - torch.rand(len(probs_BV), 1, dtype=torch.float64)) * up_to_BV[:, -1:]
    tokens_B = torch.searchsorted(up_to_BV, reached_B1).squeeze(1)
    for row, generator in generators.items():
        noise_V = torch.empty_like(probs_BV[row]).exponential_(generator=generator)
        tokens_B[row] = (probs_BV[row] / noise_V).argmax()
    return tokens_B


def forward_cpu(
    self: TopKTopPSampler,
    logits: torch.Tensor,
    generators: dict[int, torch.Generator],
    k: torch.Tensor | None,
    p: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """In place of TopKTopPSampler's: (tokens, the log-probs or logits that are asked for)."""
    logits = topk_topp_sampler.apply_top_k_top_p(logits, k, p)
    returned = None
    if self.logprobs_mode == "processed_logits":
        returned = logits
    elif self.logprobs_mode == "processed_logprobs":
        returned = logits.log_softmax(dim=-1, dtype=torch.float32)
    return draw_tokens(logits, generators), returned


def install() -> None:
    """For the samplers that are made from now on in this process. Calling it again does nothing."""
    TopKTopPSampler.forward_cpu = forward_cpu
