"""A prompt that could not be rolled out or scored ends the run with the reason; verl would train on what is left."""

from collections.abc import Callable
from typing import Any

import transfer_queue as tq
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer


def stop_on_failure(buffer: ReplayBuffer, failure: Callable[[], str]) -> None:
    """Make verl's replay buffer raise RuntimeError where it would hand out, or drop and replace, what failed.

    Both of verl's buffers call this method first after looking what is there. It is the instance's: a buffer class of
    one's own (`custom_sampler`) gets no refill arguments from verl.
    """
    eviction_reasons = buffer._terminal_eviction_reasons

    def reasons_or_stop(global_steps: int, partition_id: str) -> Any:
        failed = buffer.failure_keys[partition_id]
        if failed:
            raise RuntimeError(f"{len(failed)} prompts could not be rolled out or scored: {failure()}")
        return eviction_reasons(global_steps, partition_id)

    buffer._terminal_eviction_reasons = reasons_or_stop


def retry_failed_prompts(partition_id: str = "train") -> None:
    """Have verl roll out again what had failed when a checkpoint was written: an asynchronous one holds its prompts.

    Else no start from there would get anywhere, even with the reward fixed. Call it when the checkpoint is loaded;
    verl starts what is pending.
    """
    tags = (tq.kv_list(partition_id) or {}).get(partition_id, {})
    failed = [key for key, tag in tags.items() if tag.get("is_prompt") and tag["status"] == "failure"]
    if failed:
        pending = [tags[key] | {"status": "pending"} for key in failed]
        tq.kv_batch_put(keys=failed, partition_id=partition_id, tags=pending)
