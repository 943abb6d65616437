"""Score sampled responses: one call to a reward worker for many of them, with a time limit and retries."""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from verl.experimental.agent_loop.agent_loop import AgentLoopOutput

from convrec.base.errors import one_line
from convrec.features.responses import SampledResponse

logger = logging.getLogger(__name__)

REWARD_ATTEMPTS = 3

ScoreAlone = Callable[[list[AgentLoopOutput], dict[str, Any]], Awaitable[None]]


class RewardClient:
    """Scores responses.

    Args:
        workers: verl's reward workers.
        takes_lists: a worker can score a list of responses in one call.
        timeout: time limit of a call in seconds.
        score_alone: scores one response by verl's own code, with the limits of `await_with_retries`.
    """

    def __init__(
        self, workers: Sequence[Any] | None, takes_lists: bool, timeout: float, score_alone: ScoreAlone
    ) -> None:
        self.workers = workers
        self.takes_lists = takes_lists
        self.timeout = timeout
        self.score_alone = score_alone

    async def score(self, responses: Sequence[SampledResponse]) -> None:
        """Score all responses in one call; if it fails or takes too long, one by one, to find the failing sample.

        Args:
            responses: their outputs get the score, the reward's further results and the seconds, in place.

        Raises:
            Exception: whatever `score_alone` raises for a response.
        """
        if not self.takes_lists or not self.workers:
            await asyncio.gather(*map(self._score_one, responses))
            return
        start = time.perf_counter()
        worker = random.choice(self.workers)
        try:
            call = worker.compute_score.remote([response.make_reward_arguments() for response in responses])
            results = await asyncio.wait_for(call, self.timeout)
        except Exception as error:
            logger.warning("the rewards of a group failed (%s): scoring its responses one by one", one_line(error))
            await asyncio.gather(*map(self._score_one, responses))
            return
        for response, result in zip(responses, results, strict=True):
            response.output.reward_score = result["reward_score"]
            response.output.extra_fields["reward_extra_info"] = result["reward_extra_info"]
            response.output.metrics.compute_score = time.perf_counter() - start

    async def _score_one(self, response: SampledResponse) -> None:
        scored = response.output.model_copy(update={"response_ids": response.scored_ids})
        await self.score_alone([scored], response.sample)
        response.output.reward_score = scored.reward_score  # all other results are in objects that both share


async def await_with_retries(attempt: Callable[[], Any], what: str, timeout: float) -> Any:
    """Await `attempt()` up to REWARD_ATTEMPTS times, each at most `timeout` seconds.

    The limit also holds for rewards in threads, whose results are awaited here.

    Args:
        attempt: makes an awaitable.
        what: name of the call in messages.
        timeout: time limit of an attempt in seconds.

    Raises:
        RuntimeError: every attempt failed; the message has the last reason.
    """
    for number in range(1, REWARD_ATTEMPTS + 1):
        limit = asyncio.timeout(timeout)
        try:
            async with limit:
                return await attempt()
        except Exception as error:
            reason = f"took more than {timeout:g} s (convrec.reward_timeout)"
            if not (isinstance(error, TimeoutError) and limit.expired()):  # a reward may have its own time limits
                reason = f"failed ({one_line(error)})"
        logger.warning("%s %s, attempt %d of %d", what, reason, number, REWARD_ATTEMPTS)
    raise RuntimeError(f"{what} {reason}, {REWARD_ATTEMPTS} times")
