"""A failed prompt ends the run at verl's replay buffers, which would train on the rest or refill forever."""

from typing import Any

import pytest
from ray.exceptions import ActorDiedError, ActorUnavailableError
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer, ReplayBufferAsync

from convrec.base.errors import ProcessLost
from convrec.rollout import failures
from convrec.rollout.failures import Failure
from tests.queue_calls import replace_queue

BY_REWARD = Failure("the reward raised")


class FakeQueue:
    """TransferQueue with one partition: the tags of its prompts, which have one response each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, partition: str, **statuses: str) -> None:
        prompts = {uid: {"is_prompt": True, "status": status, "global_steps": 1} for uid, status in statuses.items()}
        responses = {f"{uid}_0_0": {"min_global_steps": 1} for uid in statuses}
        self.tags: dict[str, dict[str, Any]] = prompts | responses
        self.partition = partition
        replace_queue(
            monkeypatch,
            kv_list=self.list_tags,
            kv_clear=self.clear,
            kv_batch_put=self.put,
            async_kv_put=self.put_tag,
        )

    def list_tags(self, partition_id: str | None = None) -> dict[str, dict[str, dict[str, Any]]]:
        return {self.partition: dict(self.tags)} if partition_id in (None, self.partition) else {}

    def clear(self, keys: list[str], partition_id: str) -> None:
        for key in keys:
            del self.tags[key]

    async def put_tag(self, key: str, partition_id: str, tag: dict[str, Any]) -> None:
        self.tags[key] |= tag

    def put(self, keys: list[str], partition_id: str, tags: list[dict[str, Any]]) -> None:
        self.tags |= dict(zip(keys, tags, strict=True))


def make_buffer(kind: type[ReplayBuffer], failure: Failure = BY_REWARD) -> ReplayBuffer:
    """Return a buffer like that of verl's trainer; a refill, which would never end, fails the test."""

    def refill(number: int) -> int:
        raise AssertionError(f"{number} prompts were dropped and replaced")

    mode = {ReplayBuffer: "sync", ReplayBufferAsync: "separate_async"}[kind]
    buffer = kind(mode, {}, 2, "drop", {}, poll_interval=0.0, refill_fn=refill)  # type: ignore[arg-type]
    failures.raise_on_failure(buffer, lambda: failure)
    return buffer


@pytest.mark.parametrize("kind", [ReplayBuffer, ReplayBufferAsync])
@pytest.mark.parametrize("partition", ["train", "val"])
def test_failed_prompts_stop_the_run_with_the_first_reason(
    kind: type[ReplayBuffer], partition: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeQueue(monkeypatch, partition, a="finished", b="failure", c="failure", d="running")
    with pytest.raises(RuntimeError, match="2 prompts could not be sampled or scored: the reward raised"):
        make_buffer(kind).sample(1, partition, 2)


@pytest.mark.parametrize("cause", [ActorDiedError(), ActorUnavailableError("Socket closed", None)])
def test_prompts_that_fail_with_a_process_are_its_loss(cause: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a loss, the error makes the driver look for the process or node that died (watch_processes)."""
    FakeQueue(monkeypatch, "train", a="failure")
    with pytest.raises(ProcessLost, match=r"1 prompts could not be sampled or scored: a process of the run.* is gone"):
        make_buffer(ReplayBuffer, Failure.from_error(cause)).sample(1, "train", 1)


@pytest.mark.parametrize("kind", [ReplayBuffer, ReplayBufferAsync])
def test_finished_prompts_are_returned_without_failures(
    kind: type[ReplayBuffer], monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeQueue(monkeypatch, "train", a="finished", b="finished", c="running")
    batch, _ = make_buffer(kind).sample(1, "train", 2)
    assert sorted(batch.keys) == ["a_0_0", "b_0_0"]


def test_failed_prompts_of_a_checkpoint_become_pending(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = FakeQueue(monkeypatch, "train", a="finished", b="failure")
    failures.retry_failed_prompts()
    assert {key: tag["status"] for key, tag in queue.tags.items() if "status" in tag} == {
        "a": "finished",
        "b": "pending",  # verl starts these when it resumes
    }
    assert queue.tags["b"]["is_prompt"]
    assert queue.tags["b_0_0"] == {"min_global_steps": 1}
