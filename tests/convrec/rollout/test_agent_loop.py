"""Rewards that raise, hang or lose their process; buffers that would refill for ever; seeds of rollouts."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
import transfer_queue as tq
from omegaconf import OmegaConf
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopWorkerTQ
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer, ReplayBufferAsync

from convrec.rollout import agent_loop as rollout
from convrec.rollout.responses import rollout_seed


def test_a_reward_that_fails_once_is_asked_again() -> None:
    calls = []

    async def attempt() -> int:
        calls.append(1)
        if len(calls) < rollout.REWARD_ATTEMPTS:
            raise ValueError("no catalog")
        return 7

    assert asyncio.run(rollout.with_retries(attempt, "the reward", 5)) == 7
    assert len(calls) == rollout.REWARD_ATTEMPTS


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("line 1\nno catalog"), "ValueError: no catalog"),
        (TimeoutError("judge server: no answer in 5 s"), "TimeoutError: judge server: no answer in 5 s"),  # its own
    ],
)
def test_a_reward_that_always_raises_ends_with_its_reason(error: Exception, said: str) -> None:
    async def attempt() -> None:
        raise error

    with pytest.raises(RuntimeError, match=rf"the reward of sample 3 failed \({said}\), 3 times"):
        asyncio.run(rollout.with_retries(attempt, "the reward of sample 3", 5))


def test_a_reward_that_hangs_in_a_thread_times_out() -> None:
    """The thread goes on, nobody waits for it."""
    go_on = threading.Event()

    async def run() -> None:
        try:
            with pytest.raises(RuntimeError, match=r"took more than 0\.05 s"):
                await rollout.with_retries(lambda: asyncio.to_thread(go_on.wait, 60), "the reward", 0.05)
        finally:
            go_on.set()

    asyncio.run(run())


def test_seeds_of_rollouts_are_reproducible_and_differ() -> None:
    seeds = {rollout_seed(1, step, row, n) for step in range(5) for row in range(10) for n in range(8)}
    assert len(seeds) == 400
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert rollout_seed(3407, 1, 2, 3) == rollout_seed(3407, 1, 2, 3)
    assert rollout_seed(3407, 1, 2, 3) != rollout_seed(3408, 1, 2, 3)


class Queue:
    """In TransferQueue's place: the tags of one partition, and what is put and cleared."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, partition: str, **status: str) -> None:
        prompts = {uid: {"is_prompt": True, "status": state, "global_steps": 1} for uid, state in status.items()}
        rollouts = {f"{uid}_0_0": {"min_global_steps": 1} for uid in status}
        self.tags: dict[str, dict[str, Any]] = prompts | rollouts
        self.partition = partition
        monkeypatch.setattr(tq, "kv_list", self.listed)
        monkeypatch.setattr(tq, "kv_clear", self.clear)
        monkeypatch.setattr(tq, "kv_batch_put", self.put)
        monkeypatch.setattr(tq, "async_kv_put", self.put_tag)

    def listed(self, partition_id: str | None = None) -> dict[str, dict[str, dict[str, Any]]]:
        return {self.partition: dict(self.tags)} if partition_id in (None, self.partition) else {}

    def clear(self, keys: list[str], partition_id: str) -> None:
        for key in keys:
            del self.tags[key]

    async def put_tag(self, key: str, partition_id: str, tag: dict[str, Any]) -> None:
        self.tags[key] |= tag

    def put(self, keys: list[str], partition_id: str, tags: list[dict[str, Any]]) -> None:
        self.tags |= dict(zip(keys, tags, strict=True))


def buffer_of(kind: type[ReplayBuffer], failure: Callable[[], str] = lambda: "the reward raised") -> ReplayBuffer:
    """As verl's trainer makes it, told to stop; a refill fails the test, which would else go on for ever."""

    def refill(number: int) -> int:
        raise AssertionError(f"{number} prompts were dropped and replaced")

    mode = {ReplayBuffer: "sync", ReplayBufferAsync: "separate_async"}[kind]
    buffer = kind(mode, {}, 2, "drop", {}, poll_interval=0.0, refill_fn=refill)  # type: ignore[arg-type]
    rollout.stop_on_failure(buffer, failure)
    return buffer


@pytest.mark.parametrize("kind", [ReplayBuffer, ReplayBufferAsync])
@pytest.mark.parametrize("partition", ["train", "val"])
def test_a_failed_prompt_stops_the_run_with_the_first_failure(
    kind: type[ReplayBuffer], partition: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Queue(monkeypatch, partition, a="finished", b="failure", c="failure", d="running")
    with pytest.raises(RuntimeError, match="2 prompts could not be rolled out or scored: the reward raised"):
        buffer_of(kind).sample(1, partition, 2)


async def raise_(*_: Any) -> None:
    raise ValueError("no catalog")


async def hang(*_: Any) -> None:
    await asyncio.sleep(60)


@pytest.mark.parametrize("kind", [ReplayBuffer, ReplayBufferAsync])
@pytest.mark.parametrize(
    ("reward", "reason"), [(raise_, r"failed \(ValueError: no catalog\)"), (hang, r"took more than 0\.05 s")]
)
def test_a_reward_that_fails_in_verls_worker_stops_at_verls_buffer(
    kind: type[ReplayBuffer], reward: Any, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Worker and buffer are verl's with ours over them; the agent loop is its reward alone, and nobody is asked.

    The agent is one that does not go in groups (test_groups.py has those).
    """
    verls = AgentLoopWorkerTQ.__ray_metadata__.modified_class

    async def score_alone(self: Any, *_: Any, **kwargs: Any) -> None:
        await self._compute_score([], kwargs)

    monkeypatch.setattr(verls, "_run_agent_loop", score_alone)
    monkeypatch.setattr(verls, "_compute_score", reward)
    queue = Queue(monkeypatch, "train", a="pending", b="finished")
    worker: Any = object.__new__(rollout.ConvRecAgentLoopWorker)
    worker.first_failure, worker.siblings = None, {}
    settings = {"deterministic": False, "reward_timeout": 0.05}
    worker.config = OmegaConf.create({"convrec": settings, "actor_rollout_ref": {"rollout": {"n": 2}}})
    asyncio.run(
        worker._run_prompt({"uid": "a", "index": 7, "agent_name": "tool_agent"}, {}, trajectory={"validate": False})
    )
    assert queue.tags["a"]["status"] == "failure"
    with pytest.raises(RuntimeError, match=rf"1 prompts could not .*: the reward of sample 7 {reason}.*, 3 times"):
        buffer_of(kind, lambda: worker.first_failure).sample(1, "train", 1)


@pytest.mark.parametrize("kind", [ReplayBuffer, ReplayBufferAsync])
def test_without_a_failure_the_buffer_hands_out_what_is_finished(
    kind: type[ReplayBuffer], monkeypatch: pytest.MonkeyPatch
) -> None:
    Queue(monkeypatch, "train", a="finished", b="finished", c="running")
    batch, _ = buffer_of(kind).sample(1, "train", 2)
    assert sorted(batch.keys) == ["a_0_0", "b_0_0"]


def test_what_had_failed_when_the_checkpoint_was_written_is_rolled_out_again(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Queue(monkeypatch, "train", a="finished", b="failure")
    rollout.retry_failed_prompts()
    assert {key: tag["status"] for key, tag in queue.tags.items() if "status" in tag} == {
        "a": "finished",
        "b": "pending",  # verl starts these when it resumes
    }
    assert queue.tags["b"]["is_prompt"]
    assert queue.tags["b_0_0"] == {"min_global_steps": 1}
