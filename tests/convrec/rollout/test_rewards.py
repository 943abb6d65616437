"""Rewards that raise, hang or lose their process: limited in time and retries, and named in the error."""

import asyncio
import threading
from typing import Any

import pytest
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput

from convrec.features.responses import TURN, SampledResponse
from convrec.rollout.rewards import REWARD_ATTEMPTS, RewardClient, await_with_retries
from tests.convrec.rollout.fakes import FakeActor

# ---- await_with_retries ----


def test_a_reward_that_fails_once_is_called_again() -> None:
    calls = []

    async def attempt() -> int:
        calls.append(1)
        if len(calls) < REWARD_ATTEMPTS:
            raise ValueError("no catalog")
        return 7

    assert asyncio.run(await_with_retries(attempt, "the reward", 5)) == 7
    assert len(calls) == REWARD_ATTEMPTS


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ValueError("line 1\nno catalog"), "ValueError: no catalog"),
        # a time limit of the reward's own
        (TimeoutError("judge server: no answer in 5 s"), "TimeoutError: judge server: no answer in 5 s"),
    ],
)
def test_a_reward_that_always_raises_ends_with_its_reason(error: Exception, reason: str) -> None:
    async def attempt() -> None:
        raise error

    with pytest.raises(RuntimeError, match=rf"the reward of sample 3 failed \({reason}\), 3 times"):
        asyncio.run(await_with_retries(attempt, "the reward of sample 3", 5))


def test_a_reward_that_hangs_in_a_thread_times_out() -> None:
    """The thread continues, but nobody waits for it."""
    go_on = threading.Event()

    async def run() -> None:
        try:
            with pytest.raises(RuntimeError, match=r"took more than 0\.05 s"):
                await await_with_retries(lambda: asyncio.to_thread(go_on.wait, 60), "the reward", 0.05)
        finally:
            go_on.set()

    asyncio.run(run())


# ---- RewardClient ----


def make_response(index: int, **extra_fields: Any) -> SampledResponse:
    """Return the response [10 + index] to a sample."""
    output = AgentLoopOutput(
        prompt_ids=[1],
        response_ids=[10 + index],
        response_mask=[1],
        num_turns=2,
        metrics={},
        extra_fields=extra_fields,
    )
    sample = {"index": index, "data_source": "test", "reward_model": {"ground_truth": {}}}
    return SampledResponse(sample, output)


class Scorers:
    """A reward worker and verl's way to score one response: both return the sum of the response's token ids.

    Attributes:
        calls: of either, with the token ids that they got.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[list[int]]]] = []
        self.worker = FakeActor(compute_score=self.score_group)

    async def score_group(self, responses: list[dict[str, Any]]) -> list[dict[str, Any]]:
        ids = [response["response_ids"] for response in responses]
        self.calls.append(("group", ids))
        return [{"reward_score": sum(one), "reward_extra_info": {"by": "group"}} for one in ids]

    async def score_alone(self, outputs: list[AgentLoopOutput], sample: dict[str, Any]) -> None:
        self.calls.append((f"alone {sample['index']}", [output.response_ids for output in outputs]))
        for output in outputs:
            output.reward_score = sum(output.response_ids)
            output.extra_fields["reward_extra_info"] = {"by": "alone"}

    def client(self, **changes: Any) -> RewardClient:
        arguments = {"workers": [self.worker], "takes_lists": True, "timeout": 5.0, "score_alone": self.score_alone}
        return RewardClient(**arguments | changes)  # type: ignore[arg-type]


ALONE = [("alone 0", [[10]]), ("alone 1", [[11]])]


def test_one_call_scores_all_responses() -> None:
    scorers = Scorers()
    responses = [make_response(0), make_response(1)]
    asyncio.run(scorers.client().score(responses))
    assert scorers.calls == [("group", [[10], [11]])]
    assert [response.output.reward_score for response in responses] == [10, 11]
    assert [response.info for response in responses] == [{"by": "group"}] * 2
    assert all(response.output.metrics.compute_score > 0 for response in responses)


@pytest.mark.parametrize("changes", [{"takes_lists": False}, {"workers": None}])
def test_a_reward_that_takes_no_lists_scores_one_by_one(changes: dict[str, Any]) -> None:
    scorers = Scorers()
    responses = [make_response(0), make_response(1)]
    asyncio.run(scorers.client(**changes).score(responses))
    assert scorers.calls == ALONE
    assert [response.output.reward_score for response in responses] == [10, 11]
    assert [response.info for response in responses] == [{"by": "alone"}] * 2


async def raise_error(responses: list[dict[str, Any]]) -> None:
    raise ValueError("no catalog")


async def hang(responses: list[dict[str, Any]]) -> None:
    await asyncio.sleep(60)


@pytest.mark.parametrize("score_group", [raise_error, hang])
def test_a_group_that_fails_or_hangs_is_scored_one_by_one(score_group: Any) -> None:
    scorers = Scorers()
    client = scorers.client(workers=[FakeActor(compute_score=score_group)], timeout=0.05)
    responses = [make_response(0), make_response(1)]
    asyncio.run(client.score(responses))
    assert scorers.calls == ALONE
    assert [response.output.reward_score for response in responses] == [10, 11]


def test_an_error_of_one_response_ends_the_scoring() -> None:
    async def fail_alone(outputs: list[AgentLoopOutput], sample: dict[str, Any]) -> None:
        raise RuntimeError(f"the reward of sample {sample['index']} failed")

    client = Scorers().client(takes_lists=False, score_alone=fail_alone)
    with pytest.raises(RuntimeError, match="the reward of sample 1 failed"):
        asyncio.run(client.score([make_response(1)]))


@pytest.mark.parametrize("takes_lists", [True, False])
def test_a_malformed_turn_is_scored_as_an_empty_response(takes_lists: bool) -> None:
    scorers = Scorers()
    response = make_response(0, **{TURN: {"turn": 0, "question": False, "malformed": True}})
    asyncio.run(scorers.client(takes_lists=takes_lists).score([response]))
    assert [ids for _, ids in scorers.calls] == [[[]]]
    assert response.output.reward_score == 0
    assert response.output.response_ids == [10]  # what trains stays
