"""Responses sampled in groups: prompts that share a call, vLLM's parameters, and its answers."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from verl.utils.tokenizer.continuous_token_wiring import create_continuous_token_builder
from verl.workers.rollout.replica import TokenOutput

from convrec.features.feature import RolloutFeature
from convrec.features.responses import Prompt, compute_rollout_seed
from convrec.rank_grpo.credit import NOT_REPORTED
from convrec.rollout.sampler import (
    GROUP,
    GroupSampler,
    count_reported_rollouts,
    merge_params,
    seeded_params,
    split_into_groups,
)
from convrec.settings.run import Run
from recipes.launch.recipe import RANK_GRPO
from recipes.plan import compose_planned_run
from tests.convrec.rollout.fakes import FakeActor, tiny_tokenizer

# ---- groups and seeds ----


def test_groups_keep_order_and_hold_at_most_32_responses() -> None:
    sizes = [8] * 9 + [1, GROUP + 1, 2]
    prompts = [Prompt({"uid": str(place)}, {}, {}, n) for place, n in enumerate(sizes)]
    groups = list(split_into_groups(prompts))
    assert GROUP == 32
    assert [[prompt.n for prompt in group] for group in groups] == [[8] * 4, [8] * 4, [8, 1], [GROUP + 1], [2]]
    assert [prompt for group in groups for prompt in group] == prompts
    assert list(split_into_groups([])) == []


def test_seeds_of_rollouts_are_reproducible_and_differ() -> None:
    seeds = {compute_rollout_seed(1, step, row, n) for step in range(5) for row in range(10) for n in range(8)}
    assert len(seeds) == 400
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert compute_rollout_seed(3407, 1, 2, 3) == compute_rollout_seed(3407, 1, 2, 3)
    assert compute_rollout_seed(3407, 1, 2, 3) != compute_rollout_seed(3408, 1, 2, 3)


def test_the_sampling_params_of_features_are_merged() -> None:
    constraint = {"extra_args": {"items": 5}}
    assert merge_params([]) == merge_params([{}, {}]) == {}
    assert merge_params([constraint, {}, {"min_tokens": 3, "extra_args": {"penalty": 0.1}}]) == {
        "min_tokens": 3,
        "extra_args": {"items": 5, "penalty": 0.1},
    }
    assert constraint == {"extra_args": {"items": 5}}
    with pytest.raises(ValueError, match="two features set the sampling parameter items"):
        merge_params([constraint, {"extra_args": {"items": 6}}])


@pytest.mark.parametrize("seed", [None, 7])
def test_sampling_params_are_a_copy_seeded_in_deterministic_runs(seed: int | None) -> None:
    params = {"temperature": 1.0}
    seeded = seeded_params(params, {"step": 2, "sample_index": 3}, 1, seed)
    expected = {} if seed is None else {"seed": compute_rollout_seed(7, 2, 3, 1)}
    assert seeded == {"temperature": 1.0, **expected}
    assert seeded is not params
    assert params == {"temperature": 1.0}


# ---- GroupSampler ----


class FakeClient:
    """verl's client with one vLLM server that writes the same token ids for each request.

    Attributes:
        requests: of all calls.
        log: affinities of acquired servers, what was called, and affinities of released servers.
    """

    def __init__(self, token_ids: Sequence[int], error: Exception | None = None) -> None:
        self.token_ids = token_ids
        self.error = error
        self.requests: list[dict[str, Any]] = []
        self.log: list[tuple[str, Any]] = []

    async def _acquire_server(self, affinity: str, **fields: Any) -> tuple[str, FakeActor]:
        self.log.append(("acquire", affinity))
        self.fields = fields
        return "server 0", FakeActor(generate_group=self.generate_group)

    def _release_server(self, server_id: str, request_id: str) -> None:
        assert server_id == "server 0"
        self.log.append(("release", request_id))

    async def generate_group(self, requests: list[dict[str, Any]]) -> list[TokenOutput]:
        self.log.append(("generate", len(requests)))
        self.requests += requests
        if self.error:
            raise self.error
        log_probs = [-position / 10 for position in range(len(self.token_ids))]
        return [
            TokenOutput(
                token_ids=[*self.token_ids],
                log_probs=log_probs if request["sampling_params"].get("logprobs", True) else None,
                extra_fields={"global_steps": 4},
            )
            for request in requests
        ]


class FakeAgent:
    """verl's single-turn agent: a prompt's token ids are its length, thrice."""

    def __init__(self) -> None:
        self.continuous_token_builder = create_continuous_token_builder(tiny_tokenizer(), hf_model_type="qwen2")

    async def ct_build_initial_tokens(self, messages: list[dict[str, str]]) -> list[int]:
        return [len(messages[0]["content"])] * 3


def make_prompt(uid: str, n: int, text: str = "Hello", affinity: str = "", **columns: Any) -> Prompt:
    sample = {"uid": uid, "raw_prompt": [{"role": "user", "content": text}], **columns}
    return Prompt(sample, {"temperature": 1.0}, {"step": 2, "sample_index": uid}, n, affinity)


def make_sampler(
    client: FakeClient,
    features: Sequence[RolloutFeature] = (),
    response_length: int = 12,
    num_reported: int | None = None,
) -> GroupSampler:
    agent: Any = FakeAgent()
    return GroupSampler(agent, client, features, response_length, seed=7, num_reported=num_reported)


def test_one_call_samples_n_responses_of_each_prompt() -> None:
    client = FakeClient([5, 6])
    prompts = [make_prompt("a", 2, "A film"), make_prompt("b", 1, "A long film")]
    responses = asyncio.run(make_sampler(client).sample(prompts))
    affinity = client.log[0][1]
    assert affinity
    assert client.log == [("acquire", affinity), ("generate", 3), ("release", affinity)]
    assert [response.rollout for response in responses] == [("a", 0), ("a", 1), ("b", 0)]
    assert [request["prompt_ids"] for request in client.requests] == [[6] * 3, [6] * 3, [11] * 3]
    assert len({request["request_id"] for request in client.requests}) == 3
    seeds = [compute_rollout_seed(7, 2, uid, session) for uid, session in (("a", 0), ("a", 1), ("b", 0))]
    params = [request["sampling_params"] for request in client.requests]
    assert params == [{"temperature": 1.0, "seed": seed} for seed in seeds]
    # a balancer chooses by the first request
    assert client.fields == {"prompt_ids": [6] * 3, "sampling_params": params[0]}


def test_a_response_is_cut_to_its_length_and_keeps_its_step() -> None:
    (response,) = asyncio.run(make_sampler(FakeClient([5, 6, 7]), response_length=2).sample([make_prompt("a", 1)]))
    output = response.output
    assert output.prompt_ids == [5, 5, 5]
    assert output.response_ids == [5, 6]
    assert output.response_mask == [1, 1]
    assert output.response_logprobs == [0.0, -0.1]
    assert output.extra_fields["min_global_steps"] == output.extra_fields["max_global_steps"] == 4


def test_a_further_turn_keeps_its_rollout_and_its_server() -> None:
    client = FakeClient([5])
    prompts = [make_prompt("a", 1, session_id=2, affinity="talk"), make_prompt("b", 1, session_id=1, affinity="talk")]
    responses = asyncio.run(make_sampler(client).sample(prompts))
    assert [response.rollout for response in responses] == [("a", 2), ("b", 1)]
    assert client.log[0] == ("acquire", "talk")
    assert client.requests[0]["sampling_params"]["seed"] == compute_rollout_seed(7, 2, "a", 2)


def test_features_add_their_sampling_params() -> None:
    class Excluding(RolloutFeature):
        def sampling_params(self, sample: dict[str, Any]) -> dict[str, Any]:
            return {"extra_args": {"excluded": sample["seen"]}}

    client = FakeClient([5])
    prompts = [make_prompt("a", 2, seen=[1]), make_prompt("b", 1, seen=[2])]
    asyncio.run(make_sampler(client, [RolloutFeature(), Excluding()]).sample(prompts))
    params = [request["sampling_params"] for request in client.requests]
    assert [one["extra_args"]["excluded"] for one in params] == [[1], [1], [2]]
    assert all("seed" in one for one in params)


def test_the_first_rollouts_of_a_prompt_report_log_probs() -> None:
    client = FakeClient([5, 6])
    prompts = [make_prompt("a", 3), make_prompt("b", 2), make_prompt("c", 1, session_id=1)]
    for prompt in prompts:
        prompt.sampling_params["logprobs"] = True
    responses = asyncio.run(make_sampler(client, num_reported=1).sample(prompts))
    is_asked = [request["sampling_params"]["logprobs"] for request in client.requests]
    assert is_asked == [True, False, False, True, False, False]  # `c` is a further turn of a rollout without
    reported, unreported = [0.0, -0.1], [NOT_REPORTED] * 2
    assert [response.output.response_logprobs for response in responses] == [
        reported if asked else unreported for asked in is_asked
    ]


def test_a_validation_without_log_probs_gets_none() -> None:
    prompt = make_prompt("a", 2)
    prompt.sampling_params["logprobs"] = False
    responses = asyncio.run(make_sampler(FakeClient([5]), num_reported=1).sample([prompt]))
    assert [response.output.response_logprobs for response in responses] == [None, None]


def change_config(*changes: str) -> Run[Any]:
    return Run.from_config(compose_planned_run(RANK_GRPO, list(changes)).verl_config)


@pytest.mark.parametrize(
    ("changes", "count"),
    [
        ([], 1),
        (["convrec.constrained=true"], 1),
        (["convrec.rollout_check_share=0.3"], 3),
        (["convrec.rollout_check_share=1"], 8),
        (["actor_rollout_ref.actor.ppo_epochs=2"], None),
        (["algorithm.rollout_correction.rollout_is=token"], None),
        (["algorithm.rollout_correction.bypass_mode=true"], None),
        (["convrec.repair=zero"], None),
        (["algorithm_preset=gspo"], None),
        (["+scale=separate_async", "algorithm.rollout_correction.rollout_is=null"], None),
    ],
)
def test_a_share_of_log_probs_suffices_for_the_comparison(changes: list[str], count: int | None) -> None:
    assert count_reported_rollouts(change_config(*changes)) == count


def test_a_server_that_fails_is_released() -> None:
    client = FakeClient([5], error=ValueError("no answer"))
    with pytest.raises(ValueError, match="no answer"):
        asyncio.run(make_sampler(client).sample([make_prompt("a", 1)]))
    assert [name for name, _ in client.log] == ["acquire", "generate", "release"]
