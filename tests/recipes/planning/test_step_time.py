"""Seconds and bytes of the phases by hand, with the arithmetic."""

import math
from dataclasses import replace

import pytest

from recipes.planning import step_time
from recipes.planning.models import ModelSize, known_size
from recipes.planning.network import collective_seconds, received
from recipes.planning.step_time import Batch, Rollout, Training
from tests.recipes.planning.conftest import cluster

EIGHT_B = known_size("8B")
assert EIGHT_B is not None
P = EIGHT_B.parameters
TRAINING = Training(sharing=8, micro_tokens=32_768, mini_batches=1, mu=1, recomputes=True, lora=False)
BATCH = Batch(prompts=64, rollouts=8, prompt=400, response=200)  # 307,200 tokens
ROLLOUT = Rollout(tensor_parallel=1, max_sequences=512, memory_share=0.5)
ONE, TWO = cluster(1), cluster(2)


def test_a_gather_within_a_node() -> None:
    """8 GPUs: each gets 7/8 of 64 GB = 56 GB at .7 x 450 GB/s: 177.8 ms; 10 gathers of 8.4 + 7 x 3.4 us: 0.322 ms."""
    assert received(64e9, 8) == 56e9
    assert collective_seconds(ONE, 64e9, 8, 10) == pytest.approx(0.177778 + 10 * 32.2e-6, rel=1e-5)
    assert collective_seconds(ONE, 64e9, 1, 10) == 0


def test_a_gather_over_two_nodes() -> None:
    """16 GPUs: 15/16 of 64 GB = 60 GB; eight adapters of 50 GB/s are narrower than NVLink: .7 x 400 GB/s: 214.3 ms.
    15 hops, one of them between the nodes: 8.4 + 14 x 3.4 + 14 us = 70 us."""
    assert collective_seconds(TWO, 64e9, 16, 10) == pytest.approx(0.2142857 + 10 * 70e-6, rel=1e-5)
    slow = replace(TWO, network=replace(TWO.network, value=1.5625e9))  # 100 Gbit/s a node: 12.5 GB/s
    assert collective_seconds(slow, 64e9, 16, 0) == pytest.approx(60e9 / (0.7 * 12.5e9))


def test_flops_of_a_token() -> None:
    """2 P, and 2 x 32 layers x 600 tokens x 32 heads x 128."""
    assert step_time.forward_flops(EIGHT_B, 600) == 2 * P + 157_286_400


def test_an_update() -> None:
    """38,400 tokens a GPU are two micro-batches. Four passes of 38,400 x 1.62178e10 FLOP at .35 x 989 TFLOP/s: 7.197 s.
    Each micro-batch moves 8 P = 64.2 GB, 7/8 of it received: 112.4 GB, .36 s, which the arithmetic hides."""
    assert step_time.micro_batches(ONE, BATCH, TRAINING) == 2
    assert step_time.update_bytes(ONE, EIGHT_B, BATCH, TRAINING) == 16 * P
    assert step_time.update_network_seconds(ONE, EIGHT_B, BATCH, TRAINING) == pytest.approx(
        16 * P * 7 / 8 / (0.7 * 450e9) + 2 * 99 * 32.2e-6
    )
    arithmetic = 4 * 38_400 * (2 * P + 157_286_400) / (0.35 * 989e12)
    assert arithmetic == pytest.approx(7.197, abs=0.001)
    assert step_time.update_seconds(ONE, EIGHT_B, BATCH, TRAINING) == pytest.approx(arithmetic + 0.2)


def test_what_an_update_costs_with_other_settings() -> None:
    """mu = 2: all twice. Two mini-batches: the same arithmetic, two updates' besides. LoRA: no gradients of weights."""
    base = step_time.update_seconds(ONE, EIGHT_B, BATCH, TRAINING)

    def seconds(**changes: object) -> float:
        return step_time.update_seconds(ONE, EIGHT_B, BATCH, replace(TRAINING, **changes))  # type: ignore[arg-type]

    assert seconds(mu=2) == pytest.approx(2 * base)
    assert seconds(mini_batches=2) == pytest.approx(base + 0.2)
    assert seconds(recomputes=False) - 0.2 == pytest.approx((base - 0.2) * 3 / 4)
    assert seconds(lora=True) - 0.2 == pytest.approx((base - 0.2) * 3 / 4)
    assert step_time.update_bytes(ONE, EIGHT_B, BATCH, replace(TRAINING, lora=True)) == 8 * P


def test_copies_of_the_model_sum_their_gradients_over_the_network() -> None:
    """Two nodes with a copy each: within a node 7/8 of 8 P a micro-batch; then a GPU's eighth of 4 P, sent and
    received, half of it: 2 x P / 2 x 1/2 bytes through its own adapter of 50 GB/s."""
    one_micro = replace(TRAINING, micro_tokens=10**6)
    within = collective_seconds(TWO, 8 * P, 8, 99)
    expected = within + 2 * 4 * P / 8 / 2 / (0.7 * 50e9)
    assert step_time.update_network_seconds(TWO, EIGHT_B, BATCH, one_micro) == pytest.approx(expected)


def test_a_small_batch_waits_for_the_network() -> None:
    small = Batch(8, 1, 10, 10)
    assert step_time.log_prob_seconds(ONE, EIGHT_B, small, TRAINING) == pytest.approx(
        2 * P * 7 / 8 / (0.7 * 450e9) + 33 * 32.2e-6
    )


def test_prefill_and_decode() -> None:
    """A GPU has 8 prompts and 64 responses. Prefill: 8 x 400 tokens at half of the peak. Its cache: 40 GB less 2 P and
    4 GiB, 19.6 GB, has room for 249 sequences of 600 tokens of 131,072 bytes. A step of decoding reads 2 P and 64 x 500
    such tokens at .6 x 3.35 TB/s: 10.1 ms."""
    flops = 8 * 400 * (2 * P + 2 * 32 * 400 * 4096)
    assert step_time.prefill_seconds(ONE, EIGHT_B, BATCH, ROLLOUT) == pytest.approx(flops / (0.5 * 989e12))
    assert step_time.cache_bytes(ONE, EIGHT_B, ROLLOUT) == pytest.approx(40e9 - 2 * P - 4 * 2**30)
    assert step_time.sequences_at_once(ONE, EIGHT_B, BATCH, ROLLOUT) == 64
    reads = (2 * P + 64 * 500 * 131_072) / (0.6 * 3.35e12)
    assert reads == pytest.approx(0.0101, abs=1e-4)
    assert step_time.decode_seconds(ONE, EIGHT_B, BATCH, ROLLOUT) == pytest.approx(200 * reads)


def test_a_cache_that_is_too_small_makes_responses_wait() -> None:
    """.3 of a GPU: 24 GB less 16.1 and 4.3 leave 3.64 GB: 46 sequences, so that 64 take 64/46 as many steps."""
    tight = replace(ROLLOUT, memory_share=0.3)
    assert step_time.sequences_at_once(ONE, EIGHT_B, BATCH, tight) == 46
    reads = (2 * P + 46 * 500 * 131_072) / (0.6 * 3.35e12)
    assert step_time.decode_seconds(ONE, EIGHT_B, BATCH, tight) == pytest.approx(200 * 64 / 46 * reads)


def test_two_gpus_a_replica() -> None:
    """16 prompts, 128 responses, half of the weights and of the cache each; 64 all-reduces of 128 x 4096 x 2 bytes."""
    double = replace(ROLLOUT, tensor_parallel=2)
    reads = (P + 128 * 500 * 65_536) / (0.6 * 3.35e12)
    sums = 64 * (15e-6 + 2 * 128 * 4096 * 2 / 2 / (0.7 * 450e9))
    assert step_time.decode_seconds(ONE, EIGHT_B, BATCH, double) == pytest.approx(200 * (reads + sums))
    wide = replace(ROLLOUT, tensor_parallel=16)  # 8 heads of keys: not more than 8 parts of the cache
    assert step_time.cache_bytes_of_token(EIGHT_B, wide) == 131_072 / 8


def test_a_tiny_model_decodes_no_faster_than_its_launches() -> None:
    tiny = ModelSize(1_000_000, 2, 128, 1000, 4, 2, 32)
    assert step_time.decode_seconds(ONE, tiny, BATCH, ROLLOUT) == pytest.approx(200 * 3e-3)


def test_weights_travel_in_fp32() -> None:
    """4 P = 32.1 GB, 7/8 of it received; 9 tensors a layer and two more; .42 s besides, measured."""
    expected = 0.42 + 4 * P * 7 / 8 / (0.7 * 450e9) + 290 * 32.2e-6
    assert step_time.sync_seconds(ONE, EIGHT_B, TRAINING) == pytest.approx(expected)
    assert step_time.sync_seconds(ONE, EIGHT_B, replace(TRAINING, lora=True)) == pytest.approx(0.42)


def test_a_checkpoint() -> None:
    """96.4 GB of shards by 8 processes at 1 GB/s each, 12.0 s, then 32.1 GB by one. With 512 processes the storage's
    20 GB/s are what shards wait for."""
    assert step_time.checkpoint_seconds(ONE, EIGHT_B) == pytest.approx(12 * P / 8e9 + 4 * P / 1e9)
    assert step_time.checkpoint_seconds(cluster(64), EIGHT_B) == pytest.approx(12 * P / 20e9 + 4 * P / 1e9)


@pytest.mark.parametrize("name", ["0.5B", "8B", "70B"])
def test_arithmetic_halves_with_twice_the_nodes(name: str) -> None:
    size = known_size(name)
    assert size is not None
    training = replace(TRAINING, sharing=8)
    for nodes in (1, 2, 4, 8):
        smaller, larger = (
            step_time.update_compute_seconds(cluster(n), size, BATCH, training) for n in (nodes, 2 * nodes)
        )
        assert larger == pytest.approx(smaller / 2)
        assert math.isfinite(larger)
