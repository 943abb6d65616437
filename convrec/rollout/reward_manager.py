"""Decode responses and call the reward function: verl's reward manager, also for many responses in one call."""

import asyncio
from typing import Any

from verl.experimental.reward_loop.reward_manager.naive import NaiveRewardManager
from verl.protocol import DataProto


class GroupRewardManager(NaiveRewardManager):
    """verl's `NaiveRewardManager`; for a list of responses, `run_single` returns a list of its results.

    A tensor batch split into rows, two threads per response and their pickles cost five times as much as a list's
    reward.
    """

    async def run_single(self, data: DataProto | list[dict[str, Any]]) -> Any:
        if isinstance(data, list):
            return await asyncio.gather(*(self.score(**response) for response in data))
        return await super().run_single(data)

    async def score(self, response_ids: list[int], **arguments: Any) -> dict[str, Any]:
        """Score one response.

        Args:
            response_ids: its token ids.
            **arguments: the reward function's arguments, except for the text.
        """
        arguments["solution_str"] = self.tokenizer.decode(response_ids, skip_special_tokens=True)
        if self.reward_router_address is not None:
            arguments["reward_router_address"] = self.reward_router_address
            arguments["reward_model_tokenizer"] = self.reward_model_tokenizer
        if self.is_async_reward_score:
            result = await self.compute_score(**arguments)
        else:  # in a thread, because a custom reward may wait for a server
            result = await self.loop.run_in_executor(None, lambda: self.compute_score(**arguments))
        infos = dict(result) if isinstance(result, dict) else {"acc": result}
        return {"reward_score": result["score"] if isinstance(result, dict) else result, "reward_extra_info": infos}
