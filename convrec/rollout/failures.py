"""End the run if a prompt cannot be sampled or scored; verl would train on the remaining rollouts."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import transfer_queue as tq
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

from convrec.base.errors import ProcessLost, is_lost_process, one_line


@dataclass(frozen=True)
class Failure:
    """Why a prompt could not be sampled or scored.

    Attributes:
        reason: one line.
        is_lost: whether the reason is a process that died.
    """

    reason: str = "see the log"
    is_lost: bool = False

    @classmethod
    def from_error(cls, error: Exception) -> "Failure":
        return cls(one_line(error), is_lost_process(error))

    def make_error(self, what: str) -> RuntimeError:
        """Return the error that ends the run: ProcessLost if a process died, so that the lost one is looked for."""
        kind = ProcessLost if self.is_lost else RuntimeError
        return kind(f"{what} could not be sampled or scored: {self.reason}")


def raise_on_failure(buffer: ReplayBuffer, find_failure: Callable[[], Failure]) -> None:
    """Make verl's replay buffer raise an error when it would return or replace a failed prompt.

    Both of verl's buffers call `_terminal_eviction_reasons` right after they have looked for finished prompts. It is
    replaced on the instance, because verl passes no refill arguments to a custom buffer class (`custom_sampler`).

    Args:
        buffer: verl's replay buffer.
        find_failure: returns the first failure.
    """
    eviction_reasons = buffer._terminal_eviction_reasons

    def find_reasons_or_raise(global_steps: int, partition_id: str) -> Any:
        failed = buffer.failure_keys[partition_id]
        if failed:
            raise find_failure().make_error(f"{len(failed)} prompts")
        return eviction_reasons(global_steps, partition_id)

    buffer._terminal_eviction_reasons = find_reasons_or_raise


def retry_failed_prompts(partition_id: str = "train") -> None:
    """Mark the failed prompts of a loaded checkpoint as pending, so that verl samples them again.

    A checkpoint of the asynchronous trainer contains its prompts. With failed ones, no start from it would succeed,
    even after the reward was fixed.
    """
    tags = (tq.kv_list(partition_id) or {}).get(partition_id, {})
    failed = [key for key, tag in tags.items() if tag.get("is_prompt") and tag["status"] == "failure"]
    if failed:
        pending = [tags[key] | {"status": "pending"} for key in failed]
        tq.kv_batch_put(keys=failed, partition_id=partition_id, tags=pending)
