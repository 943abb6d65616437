"""Rewards that raise, hang or lose their process; a replay buffer that would wait for ever; seeds of rollouts."""

import asyncio
import time
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest

from convrec import rollout


def test_a_reward_that_fails_once_is_asked_again() -> None:
    calls = []

    async def attempt() -> int:
        calls.append(1)
        if len(calls) < rollout.REWARD_ATTEMPTS:
            raise ValueError("no catalog")
        return 7

    assert asyncio.run(rollout.with_retries(attempt, "the reward", 5)) == 7
    assert len(calls) == rollout.REWARD_ATTEMPTS


def test_a_reward_that_always_raises_ends_with_its_reason() -> None:
    async def attempt() -> None:
        raise ValueError("line 1\nno catalog")

    with pytest.raises(RuntimeError, match=r"the reward of sample 3 failed \(ValueError: no catalog\), 3 times"):
        asyncio.run(rollout.with_retries(attempt, "the reward of sample 3", 5))


def test_a_reward_that_hangs_in_a_thread_times_out() -> None:
    """The thread goes on, nobody waits for it."""
    wakes = 0.5

    async def run() -> float:
        start = time.monotonic()
        with pytest.raises(RuntimeError, match=r"took more than 0\.05 s"):
            await rollout.with_retries(lambda: asyncio.to_thread(time.sleep, wakes), "the reward", 0.05)
        return time.monotonic() - start

    assert asyncio.run(run()) < wakes


def test_seeds_of_rollouts_are_reproducible_and_differ() -> None:
    seeds = {rollout.rollout_seed(1, step, row, n) for step in range(5) for row in range(10) for n in range(8)}
    assert len(seeds) == 400
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert rollout.rollout_seed(3407, 1, 2, 3) == rollout.rollout_seed(3407, 1, 2, 3)
    assert rollout.rollout_seed(3407, 1, 2, 3) != rollout.rollout_seed(3408, 1, 2, 3)


def test_a_failed_prompt_stops_the_run_with_the_first_failure() -> None:
    buffer: Any = SimpleNamespace(
        failure_keys=defaultdict(set, train={"b", "c"}), _sampleable_terminal_keys=lambda partition, reasons: {"a"}
    )
    rollout.stop_on_failure(buffer, lambda: "the reward raised")
    with pytest.raises(RuntimeError, match="2 prompts could not be rolled out or scored: the reward raised"):
        buffer._sampleable_terminal_keys("train", ())
    assert buffer._sampleable_terminal_keys("val", ()) == {"a"}
