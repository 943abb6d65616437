"""Prompts that no rollout hits, repaired before their responses go to TransferQueue (docs/explanation/method.md 3).

Their rollouts are scored in one process here, and to what follows a repaired list is one like any other.
"""

import asyncio
import json
from collections.abc import Sequence
from functools import cached_property
from random import Random
from typing import Any

from verl.experimental.agent_loop.agent_loop import AgentLoopOutput
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopWorkerTQ

from convrec.lists.catalog import load_catalog
from convrec.lists.matching import make_matcher
from convrec.lists.settings import ListSettings
from convrec.rank_grpo.repair import NOT_SAMPLED, ListRepair
from convrec.rollout.responses import SampledResponse, rollout_seed

REPAIRED = "repaired"  # of extra_fields: what the reward function had returned of the list as it was sampled


class Siblings:
    """The responses to a prompt that verl rolls out one by one; with the last one that is scored they are repaired."""

    def __init__(self, n: int) -> None:
        self.n, self.scored, self.may_go_on = n, list[SampledResponse](), asyncio.Event()


class RepairedGroups(AgentLoopWorkerTQ.__ray_metadata__.modified_class):
    """verl's `AgentLoopWorkerTQ` with `convrec.repair`."""

    siblings: dict[str, Siblings]  # of prompts that go verl's way, by uid

    @cached_property
    def repair(self) -> ListRepair | None:
        """None where prompts without a hit stay as they are."""
        ours, constraint = self.config.convrec, self.constraint
        if ours.get("repair", "none") == "none":
            return None
        lists = ListSettings.of(ours)
        matcher = constraint.matcher if constraint else make_matcher(load_catalog(ours.catalog_file), lists)
        row_of = constraint.row_of if constraint else lambda item: item
        limits = ours.repair_ranks or lists.num_items, self.rollout_config.response_length
        return ListRepair(self.tokenizer, matcher, lists, *limits, row_of)

    async def repair_prompt(self, rollouts: Sequence[SampledResponse]) -> None:
        """Where none of a prompt's scored rollouts hits, one gets a wanted title, and is scored again."""
        if self.repair is None or any(any(rollout.info["relevance"]) for rollout in rollouts):
            return
        sample = rollouts[0].sample
        truth = sample["reward_model"]["ground_truth"]
        truth = json.loads(truth) if isinstance(truth, str) else truth
        wanted, seen = [(title, year) for title, year in truth["groundtruth"]], truth.get("seen")
        random = Random(rollout_seed(self.config.data.seed, sample["global_steps"], sample["index"], -1))
        for rollout in random.sample(rollouts, len(rollouts)):
            output = rollout.output
            found = self.repair.repaired(output.response_ids, wanted, () if seen is None else seen, random)
            if found is None:
                continue
            output.extra_fields[REPAIRED] = rollout.info
            output.response_ids, rank, kept = found
            output.response_mask = [1] * len(output.response_ids)
            unknown = [NOT_SAMPLED] * (len(output.response_ids) - kept)
            output.response_logprobs = [*(output.response_logprobs or ())[:kept], *unknown]
            output.reward_score = None  # verl scores what has no score
            await self._score([rollout])
            if not rollout.info["relevance"][rank]:
                raise RuntimeError(f"sample {sample['index']}: no hit at rank {rank + 1}, which got a wanted title")
            return

    async def _run_agent_loop(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return await super()._run_agent_loop(*args, **kwargs)
        finally:  # after a failure nobody waits for this response
            if siblings := self.siblings.get(kwargs["uid"]):
                siblings.may_go_on.set()

    async def _agent_loop_postprocess(self, output: AgentLoopOutput, validate: bool, **kwargs: Any) -> None:
        if siblings := self.siblings.get(kwargs["uid"]):
            await self._compute_score([output], kwargs)  # verl does not score it again
            siblings.scored.append(SampledResponse(kwargs, output))
            if len(siblings.scored) == siblings.n:
                await self.repair_prompt(sorted(siblings.scored, key=lambda rollout: rollout.sample["session_id"]))
                siblings.may_go_on.set()
            await siblings.may_go_on.wait()
        await super()._agent_loop_postprocess(output, validate, **kwargs)
