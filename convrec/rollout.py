"""The rollout side of a run, made to stop with a reason where verl's waits for ever or trains on less than asked.

verl's trainer polls a queue for rollouts that its agent-loop workers put there. A worker that dies leaves its prompts
"running" for ever; a rollout or a reward that raises makes its prompt a "failure", which is trained on with whatever
rollouts there are. Here a reward gets bounded retries and a time limit, and then the run ends with the first error.
"""

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

import ray
from ray.exceptions import RayActorError
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ, AgentLoopWorkerTQ
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

logger = logging.getLogger(__name__)

REWARD_ATTEMPTS = 3
CHECK_SECONDS = 2.0


def rollout_seed(seed: int, step: int, sample_index: Any, session: int) -> int:
    """Of one rollout: a run that is resumed samples what it would have sampled. 31 bits."""
    text = f"{seed}/{step}/{sample_index}/{session}".encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:4]) >> 1


class ConvRecAgentLoopWorker(AgentLoopWorkerTQ.__ray_metadata__.modified_class):
    """verl's worker, which remembers why a rollout failed."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.first_failure: str | None = None

    async def failure(self) -> str | None:
        return self.first_failure

    async def _run_agent_loop(
        self, sampling_params: dict[str, Any], trajectory: dict[str, Any], *, session_id: int, **kwargs: Any
    ) -> Any:
        if self.config.convrec.deterministic:
            seed = rollout_seed(self.config.data.seed, trajectory["step"], trajectory["sample_index"], session_id)
            sampling_params = {**sampling_params, "seed": seed}
        try:
            return await super()._run_agent_loop(sampling_params, trajectory, session_id=session_id, **kwargs)
        except Exception as error:
            self.first_failure = self.first_failure or describe(error)
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
        try:
            return await asyncio.wait_for(attempt(), timeout)
        except TimeoutError:
            reason = f"took more than {timeout:g} s (convrec.reward_timeout)"
        except Exception as error:
            reason = f"raised {describe(error)}"
        logger.warning("%s %s, attempt %d of %d", what, reason, number, REWARD_ATTEMPTS)
    raise RuntimeError(f"{what} {reason}, {REWARD_ATTEMPTS} times")


def describe(error: BaseException) -> str:
    """The innermost cause in a line: Ray wraps a worker's error in its own."""
    cause = getattr(error, "cause", None) or error
    if isinstance(cause, RayActorError):
        return "the process that computes it is gone (killed, or out of memory)"
    lines = str(cause).strip().splitlines()
    return f"{type(cause).__name__}: {lines[-1]}" if lines else type(cause).__name__


class ConvRecAgentLoopManager(AgentLoopManagerTQ):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.agent_loop_workers_class = ray.remote(ConvRecAgentLoopWorker)


class Watch:
    """Asks the processes a rollout needs for a sign of life, without waiting for it.

    Args:
        actors: gives name -> handle of those that are there by now.
    """

    def __init__(self, actors: Callable[[], Mapping[str, Any]]) -> None:
        self.actors = actors
        self.asked: dict[str, Any] = {}
        self.last = 0.0

    def check(self) -> None:
        """Raise RuntimeError when one of them is gone."""
        if time.monotonic() - self.last < CHECK_SECONDS:
            return
        self.last = time.monotonic()
        for name, handle in self.actors().items():
            if name in self.asked:
                answered, _ = ray.wait([self.asked[name]], timeout=0)
                if not answered:
                    continue
                try:
                    ray.get(answered[0])
                except RayActorError as error:
                    raise RuntimeError(f"{name} is gone (killed, or out of memory); the log may say why") from error
            self.asked[name] = handle.__ray_ready__.remote()


def watch(buffer: ReplayBuffer, watch: Watch, failure: Callable[[], str]) -> None:
    """Make verl's replay buffer raise RuntimeError where it would wait for the dead, or hand out what failed.

    Both methods are the instance's: a buffer class of one's own (`custom_sampler`) gets no refill arguments from verl.
    """
    sampleable_keys, wait_for_next_poll = buffer._sampleable_terminal_keys, buffer._wait_for_next_poll

    def sampleable_or_stop(partition_id: str, *args: Any) -> Any:
        failed = buffer.failure_keys[partition_id]
        if failed:
            raise RuntimeError(f"{len(failed)} prompts could not be rolled out or scored: {failure()}")
        return sampleable_keys(partition_id, *args)

    def wait_while_alive(*args: Any) -> Any:
        watch.check()
        return wait_for_next_poll(*args)

    buffer._sampleable_terminal_keys = sampleable_or_stop
    buffer._wait_for_next_poll = wait_while_alive
