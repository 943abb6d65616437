"""What a step should take at full scale, from counted operations and bytes: a model, nothing is run. Prints a table.

python benchmarks/step_time.py [--prompt 400] [--response 220] [--batch 48] [--rollouts 8]

For D data-parallel GPUs of one node; P parameters, tokens = batch x rollouts x (prompt + response):

    update       6 P FLOP a token (8 with activation recomputation) at `mfu` of the peak
    reference    2 P FLOP a token;   old log-probs the same, skipped with mu = 1
    prefill      2 P FLOP a prompt token, once for the G rollouts of a prompt (prefix caching)
    decode       a response token after the other, all rollouts of a GPU at once: the weights and the KV cache are
                 read each time, and a launch takes `launch` seconds whatever the model (CUDA graphs)
    sync         gathering the shards and handing 2 P bytes to vLLM

Attention adds less than 5 % at these lengths and is left out.
"""

import argparse
from dataclasses import dataclass


@dataclass(frozen=True)
class Model:
    name: str
    parameters: float
    kv_bytes: int  # of a token: 2 x layers x key-value heads x head size x 2 bytes


@dataclass(frozen=True)
class GPU:
    """An H100 SXM, bf16: peaks of its data sheet, and shares of them that training and decoding usually reach."""

    flops: float = 989e12
    bandwidth: float = 3.35e12
    mfu: float = 0.35
    prefill_mfu: float = 0.5
    bandwidth_share: float = 0.6
    launch: float = 3e-3
    link: float = 50e9  # bytes a second between processes, all of FSDP's gather included


MODELS = (
    Model("Qwen2.5-0.5B", 0.494e9, 2 * 24 * 2 * 64 * 2),
    Model("Llama-3.2-1B", 1.236e9, 2 * 16 * 8 * 64 * 2),
    Model("Llama-3.2-3B", 3.213e9, 2 * 28 * 8 * 128 * 2),
)


def step_seconds(
    model: Model, gpus: int, batch: int, rollouts: int, prompt: int, response: int, gpu: GPU, recompute: bool = True
) -> dict[str, float]:
    """Seconds of each part of a step with mu = 1."""
    rows = batch * rollouts
    tokens = rows * (prompt + response) / gpus
    pass_seconds = 2 * model.parameters * tokens / (gpu.flops * gpu.mfu)
    prefill = 2 * model.parameters * batch * prompt / gpus / (gpu.flops * gpu.prefill_mfu)
    cache = rows / gpus * (prompt + response / 2) * model.kv_bytes
    read = (2 * model.parameters + cache) / (gpu.bandwidth * gpu.bandwidth_share)
    return {
        "generation": prefill + response * max(read, gpu.launch),
        "reference": pass_seconds,
        "update": pass_seconds * (4 if recompute else 3),
        "sync": 2 * model.parameters / gpu.link,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=48, help="prompts of a step")
    parser.add_argument("--rollouts", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=400, help="tokens, in the mean")
    parser.add_argument("--response", type=int, default=220, help="tokens of a list of 20")
    options = parser.parse_args()
    print("| model | GPUs | generation | reference | update | sync | step | with old log-probs |")
    print("|---|---|---|---|---|---|---|---|")
    for model in MODELS:
        for gpus in (4, 8):
            parts = step_seconds(model, gpus, options.batch, options.rollouts, options.prompt, options.response, GPU())
            total = sum(parts.values())
            cells = [f"{seconds:.2f}" for seconds in (*parts.values(), total, total + parts["reference"])]
            print(f"| {model.name} | {gpus} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
