"""Sample responses in groups: one call to vLLM for many, all responses to a prompt on the server with its prefix.

verl samples each response separately, by an agent and some ten calls between processes. Tools and images need this; a
list is one prompt and one answer.
"""

import math
import time
from collections.abc import Iterator, Sequence
from typing import Any
from uuid import uuid4

from verl.experimental.agent_loop.agent_loop import AgentLoopOutput
from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop
from verl.workers.rollout.replica import TokenOutput

from convrec.features.feature import RolloutFeature
from convrec.features.registry import active_features
from convrec.features.responses import Prompt, SampledResponse, compute_rollout_seed
from convrec.rank_grpo import NAME
from convrec.rank_grpo.credit import NOT_REPORTED
from convrec.rank_grpo.on_policy import is_on_policy
from convrec.settings.rank_grpo import RankGRPOConfig
from convrec.settings.run import Run

GROUP = 32  # maximum number of responses per call, unless one prompt has more


def count_reported_rollouts(run: Run[Any]) -> int | None:
    """Return how many rollouts of a prompt, the first ones, get log-probs from vLLM.

    vLLM's host spends more time on log-probs than on sampling. If the loss uses its own log-probs and no feature reads
    the rollout's, they only serve the comparison of rollout and actor, for which a share of the lists is enough.

    Returns:
        The number, at least 1; None means all.
    """
    if not isinstance(run.settings, RankGRPOConfig) or run.trainer_mode != NAME or not is_on_policy(run.verl_config):
        return None
    if any("rollout_log_probs" in feature.fields for feature in active_features(run)):
        return None
    return math.ceil(run.settings.rollout_check_share * run.settings.num_generations)


def split_into_groups(prompts: Sequence[Prompt]) -> Iterator[list[Prompt]]:
    """Yield prompts in order, in groups of at most GROUP responses or of a single prompt."""
    group: list[Prompt] = []
    for prompt in prompts:
        if group and sum(member.n for member in group) + prompt.n > GROUP:
            yield group
            group = []
        group.append(prompt)
    if group:
        yield group


def seeded_params(params: dict[str, Any], trajectory: dict[str, Any], session: int, seed: int | None) -> dict[str, Any]:
    """Return a copy of vLLM's sampling parameters for one response; vLLM's server changes the dict that it gets.

    Args:
        params: sampling parameters of the prompt.
        trajectory: verl's record of step and sample.
        session: number of the response among those to its prompt.
        seed: seed of a deterministic run, from which each response gets its own; None leaves vLLM unseeded.
    """
    if seed is None:
        return dict(params)
    return {**params, "seed": compute_rollout_seed(seed, trajectory["step"], trajectory["sample_index"], session)}


def merge_params(params: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Merge the sampling parameters of several features; `extra_args` are merged by name.

    Raises:
        ValueError: two features set the same parameter.
    """
    merged: dict[str, Any] = {}
    for feature_params in params:
        for name, value in feature_params.items():
            if name == "extra_args" and name in merged:
                value = merge_params([merged.pop(name), value])
            if name in merged:
                raise ValueError(f"two features set the sampling parameter {name}")
            merged[name] = value
    return merged


class GroupSampler:
    """Samples the responses to a group of prompts.

    Args:
        agent: verl's agent for one prompt and one answer, which tokenizes prompts.
        llm_client: verl's client of the vLLM servers.
        features: their sampling parameters are added.
        response_length: maximum number of tokens of a response.
        seed: see `seeded_params`.
        num_reported: the result of `count_reported_rollouts`.
    """

    def __init__(
        self,
        agent: SingleTurnAgentLoop,
        llm_client: Any,
        features: Sequence[RolloutFeature],
        response_length: int,
        seed: int | None,
        num_reported: int | None = None,
    ) -> None:
        self.agent = agent
        self.llm_client = llm_client
        self.features = features
        self.response_length = response_length
        self.seed = seed
        self.num_reported = num_reported

    async def sample(self, prompts: Sequence[Prompt]) -> list[SampledResponse]:
        """Sample responses to a group of prompts in one call to vLLM.

        Args:
            prompts: at least one, with their numbers of responses. Their samples are not changed.

        Returns:
            The `n` responses to each prompt, in the order of the prompts. Log-probs of rollouts that are not reported
            are NOT_REPORTED.

        Raises:
            ValueError: two features set the same sampling parameter.
        """
        samples: list[dict[str, Any]] = []
        requests: list[dict[str, Any]] = []
        unreported: list[bool] = []
        for prompt in prompts:
            prompt_ids = await self.agent.ct_build_initial_tokens(list(prompt.sample["raw_prompt"]))
            feature_params = merge_params([feature.sampling_params(prompt.sample) for feature in self.features])
            first = prompt.sample.get("session_id", 0)  # a later turn keeps the number of its rollout
            for session in range(first, first + prompt.n):
                params = seeded_params(prompt.sampling_params, prompt.trajectory, session, self.seed) | feature_params
                unreported.append(self._leaves_out_log_probs(params, session))
                if unreported[-1]:
                    params["logprobs"] = False
                requests.append({"prompt_ids": prompt_ids, "sampling_params": params, "request_id": uuid4().hex})
                samples.append({**prompt.sample, "session_id": session})
        start = time.perf_counter()
        answers = await self._generate(requests, prompts[0].affinity or uuid4().hex)
        seconds = time.perf_counter() - start
        outputs = [
            self._to_output(request["prompt_ids"], answer, seconds)
            for request, answer in zip(requests, answers, strict=True)
        ]
        for output, is_unreported in zip(outputs, unreported, strict=True):
            if is_unreported:
                output.response_logprobs = [NOT_REPORTED] * len(output.response_ids)
        return [SampledResponse(sample, output) for sample, output in zip(samples, outputs, strict=True)]

    def _leaves_out_log_probs(self, params: dict[str, Any], session: int) -> bool:
        """Return whether log-probs are turned off for a response although its parameters request them."""
        has_log_probs = bool(params.get("logprobs"))
        return has_log_probs and self.num_reported is not None and session >= self.num_reported

    async def _generate(self, requests: list[dict[str, Any]], affinity: str) -> list[TokenOutput]:
        # a load balancer may choose by these; the first request stands for all
        first = {name: requests[0][name] for name in ("prompt_ids", "sampling_params")}
        server_id, server = await self.llm_client._acquire_server(affinity, **first)
        try:
            answers: list[TokenOutput] = await server.generate_group.remote(requests)
        finally:
            self.llm_client._release_server(server_id, request_id=affinity)
        return answers

    def _to_output(self, prompt_ids: list[int], answer: TokenOutput, seconds: float) -> AgentLoopOutput:
        """Make the same output as `SingleTurnAgentLoop.run` does for text."""
        builder = self.agent.continuous_token_builder
        limit = self.response_length
        merged = builder.merge_assistant_tokens(prompt_ids, answer.token_ids)
        log_probs = answer.log_probs or None
        mask, log_probs = builder.align_response_metadata(
            merged, [], [] if log_probs else None, assistant_logprobs=log_probs
        )
        start = len(merged.token_ids) - len(mask)
        step = answer.extra_fields.get("global_steps")
        steps = {"min_global_steps": step, "max_global_steps": step}
        return AgentLoopOutput(
            prompt_ids=merged.token_ids[:start],
            response_ids=merged.token_ids[start:][:limit],
            response_mask=mask[:limit],
            response_logprobs=log_probs[:limit] if log_probs else None,
            routed_experts=None if answer.routed_experts is None else answer.routed_experts[: start + limit],
            multi_modal_data={},
            mm_processor_kwargs={},
            mm_processor_output=None,
            num_turns=2,
            metrics={
                "generate_sequences": seconds,
                "num_preempted": -1 if answer.num_preempted is None else answer.num_preempted,
            },
            extra_fields=steps | answer.extra_fields | {"turn_scores": [], "tool_rewards": []},
        )
