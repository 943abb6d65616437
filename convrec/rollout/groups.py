"""Rollouts in groups: one call to vLLM, one to the reward and one to TransferQueue for many responses.

verl takes each response alone through some ten calls between processes and an agent of its own, which tools and images
need. A list is one prompt and one answer: here the prompts of a call share those calls, up to GROUP responses each, and
the responses of a prompt the server that has its prefix. What ends up in TransferQueue is what verl would put there;
a validation's answers, which no worker trains on, go straight back to the driver.
"""

import asyncio
import gc
import itertools
import logging
import random
import time
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any
from uuid import uuid4

import transfer_queue as tq
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput, DictConfigWrap, ToolListWrap, get_trajectory_info
from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop
from verl.utils.tensordict_utils import list_of_dict_to_tensordict
from verl.workers.rollout.llm_server import LLMServerClient
from verl.workers.rollout.replica import TokenOutput

from convrec.errors import one_line
from convrec.lists.catalog import load_catalog
from convrec.lists.matching import make_matcher
from convrec.lists.settings import ListSettings
from convrec.rollout.constraint import ListConstraint, load_trie
from convrec.rollout.dialogues import Dialogues
from convrec.rollout.queue import keep_to_this_run
from convrec.rollout.repair import RepairedGroups, Siblings
from convrec.rollout.responses import TURN, Prompt, SampledResponse, rollout_seed
from convrec.rollout.reward_manager import GroupRewardManager

logger = logging.getLogger(__name__)

GROUP = 32  # responses at most, unless one prompt has more
SINGLE_TURN = "single_turn_agent"


def groups_of(prompts: Sequence[Prompt]) -> Iterator[list[Prompt]]:
    """Prompts in order, in groups of at most GROUP responses or of a single prompt."""
    group: list[Prompt] = []
    for prompt in prompts:
        if group and sum(member.n for member in group) + prompt.n > GROUP:
            yield group
            group = []
        group.append(prompt)
    if group:
        yield group


class GroupedRollouts(RepairedGroups):
    """verl's `AgentLoopWorkerTQ`, in groups. What it does not know (agents, tools, images) goes verl's way."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        keep_to_this_run()
        super().__init__(*args, **kwargs)
        self.first_failure: str | None = None
        self.waiting: list[Prompt] = []
        self.siblings = {}
        self.single_turn: SingleTurnAgentLoop | None = None
        gc.freeze()  # what was imported stays

    async def failure(self) -> str | None:
        return self.first_failure

    @cached_property
    def groups_are_possible(self) -> bool:
        return (
            type(self.llm_client) is LLMServerClient  # the asynchronous trainer's client resumes responses
            and self.reward_loop_worker_handles is not None
            and self.rollout_config.name == "vllm"
            and not self.rollout_config.full_determinism
            and not self.distillation_enabled
            and self.processor is None
        )

    @cached_property
    def constraint(self) -> ListConstraint | None:
        """Of the run's lists, None where they are free."""
        ours = self.config.convrec
        if not ours.get("constrained"):
            return None
        trie, lists = load_trie(self.rollout_config), ListSettings.of(ours)
        assert trie is not None  # recipes.preflight.constrained
        return ListConstraint(trie, make_matcher(load_catalog(ours.catalog_file), lists), lists.num_items)

    @cached_property
    def dialogues(self) -> Dialogues | None:
        """None where nothing is asked."""
        return Dialogues(self.config, self.tokenizer) if self.config.convrec.get("ask") else None

    async def _converse(self, prompts: list[Prompt]) -> tuple[list[SampledResponse], list[SampledResponse]]:
        """The lists with which the rollouts end, and the questions before them."""
        if self.dialogues is None:
            return await self._generate(prompts), []
        lists, questions, group = list[SampledResponse](), list[SampledResponse](), uuid4().hex
        for prompt in prompts:
            prompt.sample = self.dialogues.opened(prompt.sample, 0)
        for turn in range(self.dialogues.max_turns):
            of_uid = {prompt.sample["uid"]: prompt for prompt in prompts}
            rollouts = await self._generate(prompts, group) if prompts else []
            following = [self.dialogues.next_turn(one, of_uid[one.sample["uid"]], turn) for one in rollouts]
            prompts = [prompt for prompt in following if prompt]
            for rollout, goes_on in zip(rollouts, following, strict=True):
                (questions if goes_on else lists).append(rollout)
        return lists, questions

    def _goes_in_groups(self, sample: dict[str, Any]) -> bool:
        is_plain = sample["agent_name"] == SINGLE_TURN and not {"__do_sample__", "priority"} & sample.keys()
        return is_plain and self.groups_are_possible

    async def _run_prompt(
        self, prompt: dict[str, Any], sampling_params: dict[str, Any], trajectory: dict[str, Any], trace: bool = False
    ) -> None:
        config = self.config.actor_rollout_ref.rollout
        n = int(prompt.get("__rollout_n__", config.val_kwargs.n if trajectory["validate"] else config.n))
        if not self._goes_in_groups(prompt):
            if self.repair is not None and not trajectory["validate"]:
                self.siblings[prompt["uid"]] = Siblings(n)
            await super()._run_prompt(prompt, sampling_params, trajectory, trace)
            self.siblings.pop(prompt["uid"], None)
            return
        sample = {name: value for name, value in prompt.items() if name not in ("agent_name", "__rollout_n__")}
        self.waiting.append(Prompt(sample, sampling_params, trajectory, n))
        await asyncio.sleep(0)  # verl starts a task for each prompt of a call before any of them runs on
        taken, self.waiting = self.waiting, []
        await asyncio.gather(*(self._run_group(group) for group in groups_of(taken)))

    async def validate(
        self, samples: list[dict[str, Any]], global_steps: int
    ) -> list[tuple[str, AgentLoopOutput]] | None:
        """The scored answers, each with its prompt's uid, returned at once: none goes through TransferQueue.

        None when a prompt needs verl's way. RuntimeError when one cannot be rolled out or scored.
        """
        if not all(map(self._goes_in_groups, samples)):
            return None
        config = self.rollout_config.val_kwargs
        params = {"temperature": config.temperature, "top_p": config.top_p, "top_k": config.top_k}
        params |= {"repetition_penalty": 1.0, "logprobs": False}
        trajectories = await get_trajectory_info(global_steps, [sample["index"] for sample in samples], True)
        n = config.n
        prompts = [
            Prompt(sample, params, trajectory, int(sample.get("__rollout_n__", n)))
            for sample, trajectory in zip(samples, trajectories, strict=True)
        ]
        try:
            scored = await asyncio.gather(*(self._validate_group(group) for group in groups_of(prompts)))
        except Exception as error:
            self.first_failure = self.first_failure or one_line(error)
            raise
        return [answer for group in scored for answer in group]

    async def _validate_group(self, prompts: list[Prompt]) -> list[tuple[str, AgentLoopOutput]]:
        rollouts, _ = await self._converse(prompts)
        await self._score(rollouts)
        return [(rollout.sample["uid"], rollout.output) for rollout in rollouts]

    async def _run_group(self, prompts: list[Prompt]) -> None:
        partition = "val" if prompts[0].trajectory["validate"] else "train"
        uids = [prompt.sample["uid"] for prompt in prompts]
        try:
            await _put_status(uids, partition, "running")
            rollouts, questions = await self._converse(prompts)
            await self._score(rollouts)
            if partition == "train":
                of_prompt = itertools.groupby(rollouts, lambda rollout: rollout.sample["uid"])
                await asyncio.gather(*(self.repair_prompt([*some]) for _, some in of_prompt))
            ends = {(end.sample["uid"], end.sample["session_id"]): end.output for end in rollouts}
            for question in questions:  # as verl has it of outputs before the last
                output, end = question.output, ends[question.sample["uid"], question.sample["session_id"]]
                output.reward_score = end.reward_score
                output.extra_fields["reward_extra_info"] = end.extra_fields["reward_extra_info"]
                output.extra_fields[TURN]["asked"] = end.extra_fields[TURN]["asked"]
            rollouts = [*questions, *rollouts]
            await tq.async_kv_batch_put(
                keys=[rollout.key for rollout in rollouts],
                fields=list_of_dict_to_tensordict([self._fields(rollout) for rollout in rollouts]),
                tags=[rollout.tag() for rollout in rollouts],
                partition_id=partition,
            )
            status = "finished"
        except Exception as error:
            self.first_failure = self.first_failure or one_line(error)
            logger.exception("rollouts of %d prompts failed", len(prompts))
            status = "failure"
        await _put_status(uids, partition, status)

    def _fields(self, rollout: SampledResponse) -> dict[str, Any]:
        if self.constraint is None:
            return rollout.fields()
        return rollout.fields() | self.constraint.fields(rollout.sample, rollout.output.response_ids)

    async def _generate(self, prompts: list[Prompt], group: str = "") -> list[SampledResponse]:
        """group: calls of one name are answered by one server, which has the beginnings of their prompts."""
        if self.single_turn is None:
            self.single_turn = SingleTurnAgentLoop(
                trainer_config=DictConfigWrap(self.config),
                server_manager=self.llm_client,
                tokenizer=self.tokenizer,
                processor=self.processor,
                hf_model_type=self.hf_model_type,
                dataset_cls=self.dataset_cls,
                data_config=DictConfigWrap(self.config.data),
                tools=ToolListWrap(self.tools),
            )
        samples: list[dict[str, Any]] = []
        requests: list[dict[str, Any]] = []
        for prompt in prompts:
            ids = await self.single_turn.ct_build_initial_tokens(list(prompt.sample["raw_prompt"]))
            constrained = {} if self.constraint is None else {"extra_args": self.constraint.extra_args(prompt.sample)}
            begin = prompt.sample.get("session_id", 0)  # of a further turn its rollout's
            for session in range(begin, begin + prompt.n):
                params = self.sampling_params_of(prompt.sampling_params, prompt.trajectory, session) | constrained
                requests.append({"prompt_ids": ids, "sampling_params": params, "request_id": uuid4().hex})
                samples.append({**prompt.sample, "session_id": session})
        start = time.perf_counter()
        group = group or uuid4().hex
        # what a balancer may want to choose by: the first request stands for all
        first = {name: requests[0][name] for name in ("prompt_ids", "sampling_params")}
        server_id, server = await self.llm_client._acquire_server(group, **first)
        try:
            answers: list[TokenOutput] = await server.generate_group.remote(requests)
        finally:
            self.llm_client._release_server(server_id, request_id=group)
        seconds = time.perf_counter() - start
        return [
            SampledResponse(sample, self._output(self.single_turn, request["prompt_ids"], answer, seconds))
            for sample, request, answer in zip(samples, requests, answers, strict=True)
        ]

    def sampling_params_of(
        self, sampling_params: dict[str, Any], trajectory: dict[str, Any], session: int
    ) -> dict[str, Any]:
        """Of one response, with a seed of its own where asked, else vLLM draws as it likes. A copy: vLLM's server
        changes the dict it gets."""
        if not self.config.convrec.deterministic:
            return dict(sampling_params)
        seed = rollout_seed(self.config.data.seed, trajectory["step"], trajectory["sample_index"], session)
        return {**sampling_params, "seed": seed}

    def _output(
        self, agent: SingleTurnAgentLoop, prompt_ids: list[int], answer: TokenOutput, seconds: float
    ) -> AgentLoopOutput:
        """As `SingleTurnAgentLoop.run` makes it of text."""
        builder, limit = agent.continuous_token_builder, self.rollout_config.response_length
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

    @cached_property
    def rewards_in_groups(self) -> bool:
        """Whether the reward's worker takes a list (`RewardLoopWorker.compute_score` hands on what it gets)."""
        reward = self.config.reward
        is_ours = reward.reward_manager.name == GroupRewardManager.__name__
        return is_ours and (not reward.reward_model.enable or reward.custom_reward_function.path is not None)

    async def _score(self, rollouts: list[SampledResponse]) -> None:
        """All at once; when that fails or takes too long, one by one, so that the sample can be named."""
        if not self.rewards_in_groups:
            await asyncio.gather(*map(self._score_alone, rollouts))
            return
        start = time.perf_counter()
        worker = random.choice(self.reward_loop_worker_handles)
        try:
            results = await asyncio.wait_for(
                worker.compute_score.remote([rollout.for_reward() for rollout in rollouts]),
                self.config.convrec.reward_timeout,
            )
        except Exception as error:
            logger.warning("the rewards of a group failed (%s): once more, one by one", one_line(error))
            await asyncio.gather(*map(self._score_alone, rollouts))
            return
        for rollout, result in zip(rollouts, results, strict=True):
            rollout.output.reward_score = result["reward_score"]
            rollout.output.extra_fields["reward_extra_info"] = result["reward_extra_info"]
            rollout.output.metrics.compute_score = time.perf_counter() - start

    async def _score_alone(self, rollout: SampledResponse) -> None:
        scored = rollout.output.model_copy(update={"response_ids": rollout.scored_ids})
        await self._compute_score([scored], rollout.sample)
        rollout.output.reward_score = scored.reward_score  # the rest lies in what both share


async def _put_status(uids: list[str], partition: str, status: str) -> None:
    await tq.async_kv_batch_put(keys=uids, partition_id=partition, tags=[{"status": status}] * len(uids))
