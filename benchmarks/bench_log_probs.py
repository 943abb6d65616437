"""Log-probs of tokens from hidden states: seconds, memory and memory traffic of each way to make them. Prints JSON.

python benchmarks/bench_log_probs.py [--tokens 1024] [--hidden 896] [--words 151936] [--dtype float32] [--device cuda]

Each round takes every way after the other, log-probs and their gradients by hidden states and head:

chunked         this program's, on a GPU: logits of a chunk of tokens at a time, made twice
verl's chunks   verl's functions for a chunk, which `chunked` was made of before
whole           this program's, on a CPU: all logits of trained tokens
verl's whole    verl's forward without fused kernels: logits of all tokens, prompts' too where there are such

Seconds are medians of --repeats. Bytes are those of one logit: `peak` is the most memory held above the start, without
the gradient of the head; `traffic` what the operations read and write, by their own inputs and outputs
(tests/convrec/training/test_token_log_probs.py counts the same).
"""

import argparse
import statistics
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from verl.utils.experimental.torch_functional import _fused_linear_for_ppo_bwd, _fused_linear_for_ppo_fwd

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.machine import print_report
from benchmarks.meters import is_view, measure_peak, measure_seconds
from convrec.training.attention.without_flash import compute_label_log_probs
from convrec.training.token_log_probs import CHUNK, compute_chunked_log_probs, compute_whole_log_probs

Way = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
# They touch one place of each row, or only make room.
NOT_COUNTED = {"aten::gather", "aten::scatter_", "aten::scatter_add_", "aten::empty", "aten::empty_like"}


class LogitTraffic(TorchDispatchMode):
    """Counts bytes of tensors with C x V entries that operations read and write."""

    def __init__(self, num_tokens: int, num_words: int) -> None:
        super().__init__()
        self.shapes = {(num_tokens, num_words), (num_words, num_tokens)}
        self.num_bytes = 0

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = operation(*args, **(kwargs or {}))
        name = operation._schema.name
        if not is_view(operation) and name not in NOT_COUNTED:
            read = () if name.endswith("_like") or name.startswith("aten::new_") else args
            written = result if isinstance(result, tuple) else (result,)
            self.num_bytes += sum(map(self.count_bytes, (*read, *written)))
        return result

    def count_bytes(self, value: Any) -> int:
        """Return the bytes of a tensor that has a number for each logit; 0 of everything else."""
        is_logits = isinstance(value, torch.Tensor) and tuple(value.shape) in self.shapes
        return value.numel() * value.element_size() if is_logits else 0


class VerlsChunks(torch.autograd.Function):
    """verl's functions for a chunk; the head's gradient is summed in float32."""

    @staticmethod
    def forward(context: Any, hidden_PD: torch.Tensor, weight_VD: torch.Tensor, token_P: torch.Tensor) -> torch.Tensor:
        context.save_for_backward(hidden_PD, weight_VD, token_P)
        chunks = zip(hidden_PD.split(CHUNK), token_P.split(CHUNK), strict=True)
        return torch.cat([_fused_linear_for_ppo_fwd(hidden, weight_VD, token)[0] for hidden, token in chunks])

    @staticmethod
    def backward(context: Any, gradient_P: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        hidden_PD, weight_VD, token_P = context.saved_tensors
        sum_VD = torch.zeros_like(weight_VD, dtype=torch.float32)
        parts = []
        for chunk in zip(*(values.split(CHUNK) for values in (gradient_P, hidden_PD, token_P)), strict=True):
            gradient, hidden, token = chunk
            of_hidden, of_weight = _fused_linear_for_ppo_bwd(gradient, None, hidden, weight_VD, token)
            parts.append(of_hidden)
            sum_VD += of_weight
        return torch.cat(parts), sum_VD.to(weight_VD.dtype), None


WAYS: dict[str, Way] = {
    "chunked": lambda hidden, weight, token: compute_chunked_log_probs(hidden, weight, token, 1.0, False)[0],
    "verl's chunks": lambda hidden, weight, token: VerlsChunks.apply(hidden, weight, token),
    "whole": lambda hidden, weight, token: compute_whole_log_probs(hidden, weight, token, 1.0, False)[0],
    "verl's whole": lambda hidden, weight, token: compute_label_log_probs(hidden @ weight.t(), token),
}


def run(way: Way, head: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> None:
    hidden_PD, weight_VD, _ = head
    hidden_PD.grad = weight_VD.grad = None
    way(*head).sum().backward()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in {"tokens": 1024, "hidden": 896, "words": 151_936, "repeats": 5}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--dtype", default="float32", help="of hidden states and head (%(default)s)")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    torch.manual_seed(3407)
    place = {"device": options.device, "dtype": getattr(torch, options.dtype)}
    hidden_PD = torch.randn(options.tokens, options.hidden, **place).requires_grad_()
    weight_VD = (torch.randn(options.words, options.hidden, **place) * 0.1).requires_grad_()
    head = (hidden_PD, weight_VD, torch.randint(0, options.words, (options.tokens,), device=options.device))

    # With hidden states of one number the head's gradient is no part of what is counted for a logit.
    narrow_PD, narrow_VD = (tensor.detach()[:, :1].clone().requires_grad_() for tensor in (hidden_PD, weight_VD))
    narrow = (narrow_PD, narrow_VD, head[2])
    report: dict[str, dict[str, Any]] = {name: {"seconds": []} for name in WAYS}
    for name, way in WAYS.items():
        chunk_tokens = min(CHUNK, options.tokens) if "chunk" in name else options.tokens
        num_logits = chunk_tokens * options.words
        peak = measure_peak(partial(run, way, narrow), options.device)
        with LogitTraffic(chunk_tokens, options.words) as traffic:
            run(way, narrow)
        report[name]["peak bytes"] = round(peak / num_logits, 2)
        report[name]["traffic bytes"] = round(traffic.num_bytes / (options.tokens * options.words), 2)
    for _ in range(options.repeats):
        for name, way in WAYS.items():
            report[name]["seconds"].append(measure_seconds(partial(run, way, head), options.device))
    for figures in report.values():
        figures["seconds"] = round(statistics.median(figures["seconds"]), 3)
    print_report({**vars(options), "chunk": CHUNK, "ways": report})


if __name__ == "__main__":
    main()
