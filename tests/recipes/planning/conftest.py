"""Runs to plan for."""

from typing import Any

from recipes.planning.estimate import Workload
from recipes.planning.models import KNOWN_MODELS


def run(model: str = "8B", **changes: Any) -> Workload:
    """64 prompts x 8 rollouts of 400 and 200 tokens in the mean, on a node of 8 GPUs."""
    of_step = {"prompts": 64, "rollouts": 8, "mini_batch": 64, "mu": 1, "passes": 1, "has_reference": True}
    tokens = {
        "prompt": 400.0,
        "response": 200.0,
        "longest": 3072,
        "longest_allowed": 3072,
        "packs": True,
        "most_tokens": 32_768,
    }
    training = {"fsdp_size": -1, "recomputes": True, "lora_rank": 0, "chunks_logits": True}
    rollout = {"tensor_parallel": 1, "rollout_dtype": "bfloat16", "max_sequences": 512, "memory_share": 0.5}
    machine = {"device": "cuda", "nodes": 1, "gpus_per_node": 8}
    return Workload(size=KNOWN_MODELS[model].size, **of_step | tokens | training | rollout | machine | changes)
