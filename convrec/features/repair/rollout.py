"""Prompts that no rollout hits, repaired before their responses go to TransferQueue (docs/explanation/method.md 3)."""

import asyncio
import json
from collections.abc import Sequence
from random import Random

from convrec.features.feature import RolloutFeature, Scorer
from convrec.features.repair.maths import ListRepair
from convrec.features.responses import SampledResponse, rollout_seed
from convrec.rank_grpo.credit import NOT_SAMPLED

REPAIRED = "repaired"  # of extra_fields: what the reward function returned for the list as it was sampled


class PromptRepair(RolloutFeature):
    """Repairs a prompt's responses once all of them are scored.

    Args:
        repair: of a single list.
        seed: of the run, from which the repaired response and its title are drawn.
    """

    waits_for_prompt = True

    def __init__(self, repair: ListRepair, seed: int) -> None:
        self.repair = repair
        self.seed = seed

    async def after_scoring(self, responses: Sequence[SampledResponse], score: Scorer, is_training: bool) -> None:
        if not is_training:
            return
        lists_by_prompt: dict[str, list[SampledResponse]] = {}
        for response in responses:
            if not response.is_question:
                lists_by_prompt.setdefault(response.sample["uid"], []).append(response)
        await asyncio.gather(*(self.repair_prompt(lists, score) for lists in lists_by_prompt.values()))

    async def repair_prompt(self, responses: Sequence[SampledResponse], score: Scorer) -> None:
        """Where none of a prompt's responses hits, put a wanted title into one of them and score it again."""
        if any(any(response.info["relevance"]) for response in responses):
            return
        sample = responses[0].sample
        truth = sample["reward_model"]["ground_truth"]
        truth = json.loads(truth) if isinstance(truth, str) else truth
        wanted = [(title, year) for title, year in truth["groundtruth"]]
        seen = truth.get("seen")
        random = Random(rollout_seed(self.seed, sample["global_steps"], sample["index"], -1))
        for response in random.sample(responses, len(responses)):
            output = response.output
            repaired = self.repair.repair_list(output.response_ids, wanted, () if seen is None else seen, random)
            if repaired is None:
                continue
            output.extra_fields[REPAIRED] = response.info
            output.response_ids = repaired.token_ids
            output.response_mask = [1] * len(output.response_ids)
            unknown = [NOT_SAMPLED] * (len(output.response_ids) - repaired.num_kept)
            output.response_logprobs = [*(output.response_logprobs or ())[: repaired.num_kept], *unknown]
            output.reward_score = None  # verl scores what has no score
            await score([response])
            if not response.info["relevance"][repaired.rank]:
                where = f"sample {sample['index']}: no hit at rank {repaired.rank + 1}"
                raise RuntimeError(f"{where}, which got a wanted title")
            return
