"""The rollout side of a run: the way of a prompt from the training loop to TransferQueue.

    prompts of a call -> groups -> sampler (vLLM) -> rewards -> features -> TransferQueue
                                                                 (validation: back to the driver)

If a rollout or a reward raises, verl marks its prompt as a "failure" and trains on the remaining rollouts, or waits
forever. Here the run ends with the first failure (convrec.rollout.failures).
"""

import asyncio
import gc
import logging
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import ray
import transfer_queue as tq
from ray.exceptions import RayTaskError
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput, DictConfigWrap, ToolListWrap, get_trajectory_info
from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ, AgentLoopWorkerTQ
from verl.utils.tensordict_utils import list_of_dict_to_tensordict
from verl.workers.rollout.llm_server import LLMServerClient

from convrec.features.feature import RolloutFeature
from convrec.features.registry import start_rollout_features
from convrec.features.responses import Prompt, SampledResponse
from convrec.rollout.failures import Failure
from convrec.rollout.queue import use_own_queue
from convrec.rollout.reward_manager import GroupRewardManager
from convrec.rollout.rewards import RewardClient, await_with_retries
from convrec.rollout.sampler import GroupSampler, count_reported_rollouts, seeded_params, split_into_groups
from convrec.settings.run import Run, read_settings
from convrec.settings.training import RLConfig

logger = logging.getLogger(__name__)

SINGLE_TURN = "single_turn_agent"


class Siblings:
    """The responses to a prompt that verl samples one by one. Features see them after the last one was scored."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.scored: list[SampledResponse] = []
        self.are_scored = asyncio.Event()  # also set after a failure, so that the others do not wait


class ConvRecAgentLoopWorker(AgentLoopWorkerTQ.__ray_metadata__.modified_class):
    """verl's `AgentLoopWorkerTQ`, which samples in groups. Agents, tools and images are left to verl's own code."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        use_own_queue()
        super().__init__(*args, **kwargs)
        self.first_failure: Failure | None = None
        self.waiting: list[Prompt] = []
        self.siblings: dict[str, Siblings] = {}  # uid -> responses of a prompt that verl samples one by one
        _ = self.features  # so that an unreadable catalog is an error at the start
        gc.freeze()  # collections need not visit imported objects

    # ---- parts ----

    @cached_property
    def features(self) -> list[RolloutFeature]:
        return start_rollout_features(Run.from_config(self.config), self.tokenizer)

    @cached_property
    def settings(self) -> RLConfig:
        return read_settings(self.config)

    @property
    def seed(self) -> int | None:
        """The seed of a deterministic run."""
        return self.settings.seed if self.settings.deterministic else None

    @cached_property
    def sampler(self) -> GroupSampler:
        agent = SingleTurnAgentLoop(
            trainer_config=DictConfigWrap(self.config),
            server_manager=self.llm_client,
            tokenizer=self.tokenizer,
            processor=self.processor,
            hf_model_type=self.hf_model_type,
            dataset_cls=self.dataset_cls,
            data_config=DictConfigWrap(self.config.data),
            tools=ToolListWrap(self.tools),
        )
        return GroupSampler(
            agent=agent,
            llm_client=self.llm_client,
            features=self.features,
            response_length=self.rollout_config.response_length,
            seed=self.seed,
            num_reported=count_reported_rollouts(Run.from_config(self.config)),
        )

    @cached_property
    def rewards(self) -> RewardClient:
        reward = self.config.reward
        has_function = not reward.reward_model.enable or reward.custom_reward_function.path is not None
        return RewardClient(
            workers=self.reward_loop_worker_handles,
            takes_lists=reward.reward_manager.name == GroupRewardManager.__name__ and has_function,
            timeout=self.settings.reward_timeout,
            score_alone=self._compute_score,
        )

    # ---- in groups or one by one ----

    @cached_property
    def groups_are_possible(self) -> bool:
        return (
            type(self.llm_client) is LLMServerClient  # not the asynchronous trainer's client, which resumes responses
            and self.reward_loop_worker_handles is not None
            and self.rollout_config.name == "vllm"
            and not self.rollout_config.full_determinism
            and not self.distillation_enabled
            and self.processor is None
        )

    def _can_be_grouped(self, sample: dict[str, Any]) -> bool:
        is_plain = sample["agent_name"] == SINGLE_TURN and not {"__do_sample__", "priority"} & sample.keys()
        return is_plain and self.groups_are_possible

    async def _run_prompt(
        self, prompt: dict[str, Any], sampling_params: dict[str, Any], trajectory: dict[str, Any], trace: bool = False
    ) -> None:
        config = self.config.actor_rollout_ref.rollout
        n = int(prompt.get("__rollout_n__", config.val_kwargs.n if trajectory["validate"] else config.n))
        if not self._can_be_grouped(prompt):
            await self._run_one_by_one(prompt, sampling_params, trajectory, trace, n)
            return
        sample = {name: value for name, value in prompt.items() if name not in ("agent_name", "__rollout_n__")}
        self.waiting.append(Prompt(sample, sampling_params, trajectory, n))
        # verl starts a task for each prompt of a call before any task continues. The first one takes all prompts; the
        # others find none, and end.
        await asyncio.sleep(0)
        prompts = self.waiting
        self.waiting = []
        await asyncio.gather(*map(self._run_group, split_into_groups(prompts)))

    # ---- in groups ----

    async def _run_group(self, prompts: list[Prompt]) -> None:
        """Sample and score the responses to these prompts, and put them into TransferQueue."""
        (is_training,) = {not prompt.trajectory["validate"] for prompt in prompts}
        partition = "train" if is_training else "val"
        uids = [prompt.sample["uid"] for prompt in prompts]
        try:
            await _put_status(uids, partition, "running")
            responses = await self._answer(prompts)
            for feature in self.features:
                await feature.after_scoring(responses, self.rewards.score, is_training)
            await tq.async_kv_batch_put(
                keys=[response.key for response in responses],
                fields=list_of_dict_to_tensordict([self._fields(response) for response in responses]),
                tags=[response.tag() for response in responses],
                partition_id=partition,
            )
            status = "finished"
        except Exception as error:
            self._note_failure(error)
            logger.exception("rollouts of %d prompts failed", len(prompts))
            status = "failure"
        await _put_status(uids, partition, status)

    async def _answer(self, prompts: Sequence[Prompt]) -> list[SampledResponse]:
        """Return the responses to these prompts, with scored lists."""
        sample = self.sampler.sample
        for feature in self.features:
            sample = _wrap(feature, sample)
        responses = await sample(prompts)
        await self.rewards.score([response for response in responses if not response.is_question])
        return responses

    def _fields(self, response: SampledResponse) -> dict[str, Any]:
        fields = response.fields()
        for feature in self.features:
            fields |= feature.response_fields(response)
        return fields

    async def validate(
        self, samples: list[dict[str, Any]], global_steps: int
    ) -> list[tuple[str, AgentLoopOutput]] | None:
        """Sample and score lists for the validation, and return them directly, without TransferQueue.

        Returns:
            (uid of the prompt, list) of each list; None if a prompt cannot be sampled in groups.

        Raises:
            RuntimeError: a prompt cannot be sampled or scored.
        """
        if not all(map(self._can_be_grouped, samples)):
            return None
        config = self.rollout_config.val_kwargs
        params = {"temperature": config.temperature, "top_p": config.top_p, "top_k": config.top_k}
        params |= {"repetition_penalty": 1.0, "logprobs": False}
        trajectories = await get_trajectory_info(global_steps, [sample["index"] for sample in samples], True)
        prompts = [
            Prompt(sample, params, trajectory, int(sample.get("__rollout_n__", config.n)))
            for sample, trajectory in zip(samples, trajectories, strict=True)
        ]
        try:
            groups = await asyncio.gather(*map(self._answer, split_into_groups(prompts)))
        except Exception as error:
            self._note_failure(error)
            raise
        lists = [response for group in groups for response in group if not response.is_question]
        return [(response.sample["uid"], response.output) for response in lists]

    # ---- one by one, as verl does ----

    async def _run_one_by_one(
        self,
        prompt: dict[str, Any],
        sampling_params: dict[str, Any],
        trajectory: dict[str, Any],
        trace: bool,
        n: int,
    ) -> None:
        waits = any(feature.waits_for_prompt for feature in self.features)
        if waits and not trajectory["validate"]:
            self.siblings[prompt["uid"]] = Siblings(n)
        try:
            await super()._run_prompt(prompt, sampling_params, trajectory, trace)
        finally:
            self.siblings.pop(prompt["uid"], None)

    async def _run_agent_loop(
        self, sampling_params: dict[str, Any], trajectory: dict[str, Any], *, session_id: int, **kwargs: Any
    ) -> Any:
        sampling_params = seeded_params(sampling_params, trajectory, session_id, self.seed)
        try:
            if any(feature.needs_groups for feature in self.features):
                raise RuntimeError("this prompt cannot be sampled in groups; constrained lists and questions need it")
            return await super()._run_agent_loop(sampling_params, trajectory, session_id=session_id, **kwargs)
        except Exception as error:
            self._note_failure(error)
            raise
        finally:  # after a failure, the others must not wait for this response
            siblings = self.siblings.get(kwargs["uid"])
            if siblings:
                siblings.are_scored.set()

    async def _agent_loop_postprocess(self, output: AgentLoopOutput, validate: bool, **kwargs: Any) -> None:
        siblings = self.siblings.get(kwargs["uid"])
        if siblings:
            await self._compute_score([output], kwargs)  # verl does not score a scored response again
            siblings.scored.append(SampledResponse(kwargs, output))
            if len(siblings.scored) == siblings.n:
                responses = sorted(siblings.scored, key=lambda response: response.sample["session_id"])
                for feature in self.features:
                    await feature.after_scoring(responses, self.rewards.score, True)
                siblings.are_scored.set()
            await siblings.are_scored.wait()
        await super()._agent_loop_postprocess(output, validate, **kwargs)

    async def _compute_score(self, outputs: list[Any], kwargs: dict[str, Any]) -> None:
        await await_with_retries(
            lambda: super(ConvRecAgentLoopWorker, self)._compute_score(outputs, kwargs),
            f"the reward of sample {kwargs.get('index')}",
            self.settings.reward_timeout,
        )

    # ---- failures ----

    def _note_failure(self, error: Exception) -> None:
        self.first_failure = self.first_failure or Failure.from_error(error)

    async def failure(self) -> Failure | None:
        """Return the failure of this worker's first failed prompt; None without one."""
        return self.first_failure


def _wrap(feature: RolloutFeature, sample: Any) -> Any:
    """Return `sample` with the feature's changes."""

    async def sample_with_feature(prompts: Sequence[Prompt]) -> list[SampledResponse]:
        return await feature.sample(prompts, sample)

    return sample_with_feature


async def _put_status(uids: list[str], partition: str, status: str) -> None:
    await tq.async_kv_batch_put(keys=uids, partition_id=partition, tags=[{"status": status}] * len(uids))


class ConvRecAgentLoopManager(AgentLoopManagerTQ):
    """verl's manager of rollout workers, with our workers."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.agent_loop_workers_class = ray.remote(ConvRecAgentLoopWorker)

    def validate(self, samples: list[dict[str, Any]], global_steps: int) -> list[tuple[str, AgentLoopOutput]] | None:
        """Let all workers sample and score lists for the validation.

        Returns:
            (uid of the prompt, list) of each list; None if a prompt cannot be sampled in groups.

        Raises:
            RuntimeError: a prompt cannot be sampled or scored; the message has the first reason.
            ProcessLost: the reason is a process that died.
        """
        workers = self.agent_loop_workers
        size = -(-len(samples) // len(workers))
        shares = [samples[start : start + size] for start in range(0, len(samples), size)]
        try:
            answers = ray.get(
                [worker.validate.remote(share, global_steps) for worker, share in zip(workers, shares, strict=False)]
            )
        except RayTaskError as error:
            raise self.find_failure().make_error("a prompt of the validation") from error
        if any(share is None for share in answers):
            return None
        return [answer for share in answers for answer in share]

    def find_failure(self) -> Failure:
        """Return the failure of a worker's first failed prompt."""
        failures = ray.get([worker.failure.remote() for worker in self.agent_loop_workers])
        return next((failure for failure in failures if failure), Failure())
