"""Where responses become text and the reward function is called: verl's manager, and a form that takes many at once."""

import asyncio
from typing import Any

from verl.experimental.reward_loop.reward_manager.naive import NaiveRewardManager
from verl.protocol import DataProto


class GroupRewardManager(NaiveRewardManager):
    """verl's `NaiveRewardManager`; given a list of responses, `run_single` returns what it returns for each.

    A tensor batch cut into rows, two threads a response and their pickles cost five times what a list's reward does.
    """

    async def run_single(self, data: DataProto | list[dict[str, Any]]) -> Any:
        if isinstance(data, list):
            return await asyncio.gather(*(self.score(**response) for response in data))
        return await super().run_single(data)

    async def score(self, response_ids: list[int], **arguments: Any) -> dict[str, Any]:
        """arguments: the reward function's, but for the text."""
        arguments["solution_str"] = self.tokenizer.decode(response_ids, skip_special_tokens=True)
        if self.reward_router_address is not None:
            arguments["reward_router_address"] = self.reward_router_address
            arguments["reward_model_tokenizer"] = self.reward_model_tokenizer
        if self.is_async_reward_score:
            result = await self.compute_score(**arguments)
        else:  # in threads: a reward of one's own may wait for a server
            result = await self.loop.run_in_executor(None, lambda: self.compute_score(**arguments))
        infos = dict(result) if isinstance(result, dict) else {"acc": result}
        return {"reward_score": result["score"] if isinstance(result, dict) else result, "reward_extra_info": infos}
