"""Draw tokens in vLLM's engine on a CPU with one random number per token.

vLLM draws one random number for each word of the vocabulary (an exponential race), which takes longer than a small
model. Requests with a seed still use the race: with it, two nearly equal policies seldom draw different tokens, while
with the inverse of the distribution function a change of one word's probability changes the draws of all later words.
"""

import torch
from vllm.v1.sample.ops import topk_topp_sampler
from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler


def draw_tokens(logits_BV: torch.Tensor, generators: dict[int, torch.Generator]) -> torch.Tensor:
    """Draw a token per row from softmax(logits), by the inverse of the distribution function.

    Args:
        logits_BV: after all processors; -inf for words that must not be drawn.
        generators: row -> generator of the rows with a seed, which use vLLM's race.

    Returns:
        The tokens, (B,) int64.
    """
    probs_BV = logits_BV.softmax(dim=-1, dtype=torch.float32)
    # float64, because in float32 the sum loses the rare words of a large vocabulary
    cumulative_BV = probs_BV.cumsum(dim=-1, dtype=torch.float64)
    # in (0, sum], so that the first word that reaches it has a probability above 0
    threshold_B1 = (1 - torch.rand(len(probs_BV), 1, dtype=torch.float64)) * cumulative_BV[:, -1:]
    tokens_B = torch.searchsorted(cumulative_BV, threshold_B1).squeeze(1)
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
    """Sample in place of TopKTopPSampler's method of this name.

    Args:
        self: the sampler.
        logits: (B, V), which may be changed in place.
        generators: row -> generator of the rows with a seed.
        k: (B,) numbers of words to keep; None for all.
        p: (B,) probabilities to keep; None for 1.

    Returns:
        The tokens, (B,), and the logits or log-probs after both bounds, (B, V), as `logprobs_mode` requests; None
        if it requests raw ones.
    """
    logits = topk_topp_sampler.apply_top_k_top_p(logits, k, p)
    processed = None
    if self.logprobs_mode == "processed_logits":
        processed = logits
    elif self.logprobs_mode == "processed_logprobs":
        processed = logits.log_softmax(dim=-1, dtype=torch.float32)
    return draw_tokens(logits, generators), processed


def install() -> None:
    """Replace the method in the samplers that this process makes from now on; a second call has no effect."""
    TopKTopPSampler.forward_cpu = forward_cpu
