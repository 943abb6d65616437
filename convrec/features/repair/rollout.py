"""Repairs prompts that no rollout hits, before their responses go to TransferQueue (docs/explanation/method.md 3)."""

import asyncio
import json
from collections.abc import Sequence
from random import Random

from convrec.features.feature import RolloutFeature, Scorer
from convrec.features.repair.maths import ListRepair
from convrec.features.responses import SampledResponse, compute_rollout_seed
from convrec.rank_grpo.credit import NOT_SAMPLED

REPAIRED = "repaired"  # key of extra_fields: the reward function's infos for the list as it was sampled


class PromptRepair(RolloutFeature):
    """Repairs a prompt's responses once all of them are scored.

    Args:
        repair: repairs a single list.
        seed: the run's seed, from which the response, the rank and the title are drawn.
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
        """If none of a prompt's responses hits, put a relevant title into one of them and score it again.

        Args:
            responses: all scored lists of one prompt, of which at most one is changed in place.
            score: scores the responses passed to it.

        Raises:
            RuntimeError: the reward function counts no hit at the rank that got a relevant title.
        """
        if any(any(response.info["relevance"]) for response in responses):
            return
        sample = responses[0].sample
        truth = sample["reward_model"]["ground_truth"]
        truth = json.loads(truth) if isinstance(truth, str) else truth
        relevant = [(title, year) for title, year in truth["groundtruth"]]
        seen = truth.get("seen")
        random = Random(compute_rollout_seed(self.seed, sample["global_steps"], sample["index"], -1))
        for response in random.sample(responses, len(responses)):
            output = response.output
            repaired = self.repair.repair_list(output.response_ids, relevant, () if seen is None else seen, random)
            if repaired is None:
                continue
            output.extra_fields[REPAIRED] = response.info
            output.response_ids = repaired.token_ids
            output.response_mask = [1] * len(output.response_ids)
            not_sampled = [NOT_SAMPLED] * (len(output.response_ids) - repaired.num_kept)
            output.response_logprobs = [*(output.response_logprobs or ())[: repaired.num_kept], *not_sampled]
            output.reward_score = None  # verl scores only responses without a score
            await score([response])
            if not response.info["relevance"][repaired.rank]:
                raise RuntimeError(
                    f"sample {sample['index']}: rank {repaired.rank + 1} got a relevant title, but the reward function "
                    "counts no hit there"
                )
            return
