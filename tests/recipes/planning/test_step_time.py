"""Seconds and bytes of the parts of a step by hand, with the arithmetic; a range is (fast, slow)."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from recipes.planning import figures, step_time
from recipes.planning.estimate import Workload, cache_bytes, cache_bytes_of_token
from recipes.planning.figures import CONSTANTS, GPUS, H100
from recipes.planning.models import KNOWN_MODELS, ModelSize
from tests.recipes.planning.conftest import run

EIGHT_B = KNOWN_MODELS["8B"].size
P = EIGHT_B.parameters
ATTENTION = 2 * 32 * 600 * 32 * 128  # FLOP of a token in a sequence of 600


def near(*ends: float) -> Any:
    return pytest.approx(np.array(ends), rel=1e-6)


def test_a_forward_pass() -> None:
    """64 x 8 x 600 tokens over 8 GPUs are 38,400 each, of 2 P FLOP and attention's, at .39 to .15 of the peak."""
    assert step_time.forward_flops(EIGHT_B, 600) == 2 * P + ATTENTION
    flops = 38_400 * (2 * P + ATTENTION)
    assert step_time.forward_seconds(run(), H100) == near(flops / (0.39 * 989e12), flops / (0.15 * 989e12))
    for name, known in KNOWN_MODELS.items():  # twice the nodes, half of the time
        one, two = (step_time.forward_seconds(run(name, nodes=nodes), H100) for nodes in (1, 2))
        assert known.size.parameters
        assert two == near(*(one / 2))


def test_an_update() -> None:
    """Four passes with recomputation, and .2 to .5 s besides. mu = 2: all twice. Two mini-batches: the same arithmetic,
    two updates' besides. LoRA: no gradients of weights."""
    forward, besides = step_time.forward_seconds(run(), H100), np.array([0.2, 0.5])

    def seconds(**changes: Any) -> Any:
        return step_time.update_seconds(run(**changes), H100)

    assert seconds() == near(*(4 * forward + besides))
    assert seconds(mu=2) == near(*(2 * seconds()))
    assert seconds(mini_batch=32) == near(*(4 * forward + 2 * besides))
    assert seconds(recomputes=False) == near(*(3 * forward + besides))
    assert seconds(lora_rank=32) == near(*(3 * forward + besides))


def test_what_a_gpu_receives() -> None:
    """38,400 tokens are two micro-batches of at most 32,768: 8 P each for the update, 2 P for the reference; 4 P at the
    sync; 7/8 of it comes from the other GPUs. LoRA sums no gradients and sends adapters alone."""
    assert run().micro_batches == 2
    assert step_time.received_bytes(run()) == 7 / 8 * P * (2 * 8 + 2 * 2 + 4)
    assert step_time.received_bytes(run(mu=2)) == 7 / 8 * P * (4 * 8 + 2 * 2 + 4)
    assert step_time.received_bytes(run(lora_rank=32)) == 7 / 8 * P * (2 * 4 + 2 * 2)
    assert step_time.received_bytes(run(mini_batch=16, passes=0)) == 7 / 8 * P * (4 * 8 + 4)  # four updates
    assert step_time.received_bytes(run(tensor_parallel=0, passes=0)) == 7 / 8 * P * 16  # SFT has no sync
    assert step_time.received_bytes(run(gpus_per_node=1)) == 0


def test_the_network_is_hidden_or_waited_for() -> None:
    """Within a node NVLink's 450 GB/s; between nodes eight adapters of 50 GB/s are narrower. A copy of the model in
    each node stays within it."""
    one, two = run(), run(nodes=2)
    assert step_time.network_seconds(one, H100) == near(0, 1.5 * step_time.received_bytes(one) / 450e9)
    assert step_time.network_seconds(two, H100) == near(0, 1.5 * step_time.received_bytes(two) / 400e9)
    slow = replace(H100, network=1.5625e9)  # 100 Gbit/s a node: 12.5 GB/s
    assert step_time.network_seconds(two, slow)[1] == pytest.approx(1.5 * step_time.received_bytes(two) / 12.5e9)
    copies = run(nodes=2, fsdp_size=8)
    assert step_time.network_seconds(copies, slow)[1] == pytest.approx(1.5 * step_time.received_bytes(copies) / 450e9)


def rollout(shape: Workload, rows: int, turns: float, sums: np.ndarray | float = 0.0) -> np.ndarray:
    """Of 8B, by the formula: `rows` responses at once read 2 P and 500 cached tokens each, split over a replica."""
    gpus = shape.tensor_parallel
    prompts = 64 * gpus / 8
    peak = gpus * 989e12 * np.array([0.5, 0.3])
    prefill = prompts * 400 * (2 * P + 2 * 32 * 400 * 4096) / peak
    reads = (2 * P / gpus + rows * 500 * 131_072 / gpus) / (3.35e12 * np.array([0.7, 0.5]))
    token = np.maximum(np.maximum(reads, rows * 2 * P / peak), [0.004, 0.008])
    return prefill + 200 * (turns - 1 + np.array([1.3, 2])) * (token + sums)


@pytest.mark.parametrize(
    ("changes", "rows", "turns", "sums"),
    [
        # a GPU has 8 prompts, 64 responses, all sampled at once
        ({}, 64, 1, 0.0),
        # .28 of a GPU: 23.9 GB less 16.1 and 4.3 leave 3.59 GB, room for 45 sequences: 64 take 64/45 turns
        ({"memory_share": 0.28}, 45, 64 / 45, 0.0),
        ({"max_sequences": 32}, 32, 2, 0.0),
        # a replica of two: 16 prompts, 128 responses, half of the weights and of the cache each; 64 sums a token
        ({"tensor_parallel": 2}, 128, 1, 64 * np.array([15e-6, 30e-6])),
    ],
)
def test_a_rollout(changes: dict[str, Any], rows: int, turns: float, sums: Any) -> None:
    """It lasts until the longest response is done: 1.3 to 2 times the mean of 200 tokens."""
    shape = run(**changes)
    assert step_time.rollout_seconds(shape, H100) == near(*rollout(shape, rows, turns, sums))


def test_what_is_left_for_the_cache() -> None:
    """Half of 85.5 GB less 2 P and 4 GiB: room for 284 sequences of 600 tokens of 131,072 bytes."""
    assert cache_bytes(run(), H100.memory) == 81_559 * 2**19 - 2 * P - 4 * 2**30
    assert cache_bytes_of_token(run()) == 2 * 32 * 8 * 128 * 2 == 131_072
    assert cache_bytes_of_token(run(tensor_parallel=16)) == 131_072 / 8  # 8 heads of keys: not more than 8 parts


def test_a_tiny_model_decodes_no_faster_than_it_is_scheduled() -> None:
    tiny = replace(
        run(),
        size=ModelSize(
            parameters=1_000_000,
            layers=2,
            hidden=128,
            vocabulary=1000,
            heads=4,
            kv_heads=2,
            head_size=32,
            intermediate=384,
        ),
    )
    fast, slow = step_time.rollout_seconds(tiny, H100)
    assert (fast, slow) == (pytest.approx(200 * 1.3 * 4e-3, rel=1e-2), pytest.approx(200 * 2 * 8e-3, rel=1e-2))


def test_the_parts_of_a_step() -> None:
    """512 responses of 1.1 to 3.2 ms; a checkpoint each 50 steps: 12 P by 8 processes and 4 P by one, at 2 to 1 GB/s; a
    validation of 100 prompts each 20 steps."""
    found = step_time.step_parts(run(), H100, 1 / 50, 1 / 20, 100)
    assert found["driver"] == near(512 * 1.1e-3, 512 * 3.2e-3)
    assert found["weight sync"] == near(1, 1.5)
    assert found["checkpoints"] == near((12 * P / 8 + 4 * P) / 2e9 / 50, (12 * P / 8 + 4 * P) / 1e9 / 50)
    check = run(prompts=100, rollouts=1)
    assert found["validation"] == near(*(step_time.rollout_seconds(check, H100) / 20))
    assert found["log-probs"] == near(*step_time.forward_seconds(run(), H100))
    sft = step_time.step_parts(run(tensor_parallel=0), H100, 1 / 50, 1 / 20, 100)
    assert list(sft) == ["update", "network", "checkpoints", "validation"]
    assert sft["validation"] == near(*(step_time.forward_seconds(check, H100) / 20))


def test_every_constant_has_a_fast_to_slow_range_and_a_source() -> None:
    every = {*CONSTANTS, *(gpu.training_share for gpu in GPUS.values())}
    assert all(constant.source and constant.fast != constant.slow for constant in every)
    assert len({constant.name for constant in every}) == len(CONSTANTS) + 1
    assert every >= {value for value in vars(figures).values() if isinstance(value, figures.Constant)}
    for model in KNOWN_MODELS:
        for part, (fast, slow) in step_time.step_parts(run(model, nodes=2), H100, 0.1, 0.1, 10).items():
            assert fast < slow, part
