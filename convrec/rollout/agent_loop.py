"""The rollout side of a run, made to stop with a reason where verl's waits for ever or trains on less than asked.

A rollout or a reward that raises makes its prompt a "failure" to verl, which trains on whatever rollouts there are.
Here a reward gets bounded retries and a time limit, and then the run ends with the first error.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import ray
import transfer_queue as tq
from ray.exceptions import RayTaskError
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

from convrec.errors import one_line
from convrec.rollout.groups import GroupedRollouts

logger = logging.getLogger(__name__)

REWARD_ATTEMPTS = 3


class ConvRecAgentLoopWorker(GroupedRollouts):
    """With rewards that are bounded in time and retries."""

    async def _run_agent_loop(
        self, sampling_params: dict[str, Any], trajectory: dict[str, Any], *, session_id: int, **kwargs: Any
    ) -> Any:
        sampling_params = self.sampling_params_of(sampling_params, trajectory, session_id)
        try:
            if self.constraint is not None or self.dialogues is not None:
                raise RuntimeError("constrained lists and questions are sampled in groups only; this prompt cannot be")
            return await super()._run_agent_loop(sampling_params, trajectory, session_id=session_id, **kwargs)
        except Exception as error:
            self.first_failure = self.first_failure or one_line(error)
            raise

    async def _compute_score(self, outputs: list[Any], kwargs: dict[str, Any]) -> None:
        await with_retries(
            lambda: super(ConvRecAgentLoopWorker, self)._compute_score(outputs, kwargs),
            f"the reward of sample {kwargs.get('index')}",
            self.config.convrec.reward_timeout,
        )


async def with_retries(attempt: Callable[[], Any], what: str, timeout: float) -> Any:
    """Await `attempt()` up to REWARD_ATTEMPTS times, each at most `timeout` seconds; RuntimeError gives the reason.

    The limit holds for rewards in threads as well: their result is waited for here, not there.
    """
    for number in range(1, REWARD_ATTEMPTS + 1):
        limit = asyncio.timeout(timeout)
        try:
            async with limit:
                return await attempt()
        except Exception as error:
            reason = f"took more than {timeout:g} s (convrec.reward_timeout)"
            if not (isinstance(error, TimeoutError) and limit.expired()):  # a reward may have limits of its own
                reason = f"failed ({one_line(error)})"
        logger.warning("%s %s, attempt %d of %d", what, reason, number, REWARD_ATTEMPTS)
    raise RuntimeError(f"{what} {reason}, {REWARD_ATTEMPTS} times")


class ConvRecAgentLoopManager(AgentLoopManagerTQ):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.agent_loop_workers_class = ray.remote(ConvRecAgentLoopWorker)

    def validate(self, samples: list[dict[str, Any]], global_steps: int) -> list[tuple[str, AgentLoopOutput]] | None:
        """The scored answers, each with its prompt's uid, or None when a prompt needs verl's way.

        Waits for all. RuntimeError with the first reason when one cannot be rolled out or scored.
        """
        workers = self.agent_loop_workers
        size = -(-len(samples) // len(workers))
        shares = [samples[start : start + size] for start in range(0, len(samples), size)]
        try:
            answers = ray.get(
                [worker.validate.remote(share, global_steps) for worker, share in zip(workers, shares, strict=False)]
            )
        except RayTaskError as error:
            raise RuntimeError(
                f"a prompt of the validation could not be rolled out or scored: {self.first_failure()}"
            ) from error
        if any(share is None for share in answers):
            return None
        return [answer for share in answers for answer in share]

    def first_failure(self) -> str:
        failures = ray.get([worker.failure.remote() for worker in self.agent_loop_workers])
        return next((failure for failure in failures if failure), "see the log")


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
