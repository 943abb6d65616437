"""A prompt, and a response to it, in the forms that verl and the reward have of them."""

import hashlib
from dataclasses import dataclass
from typing import Any

import torch
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput

# In extra_fields, where rollouts may ask: {"turn" from 0, "question", "malformed", "asked": questions of the rollout}
TURN = "turn"
OPEN = "open_questions"  # in a sample, where rollouts may ask: the excluded items that stand for open questions


@dataclass
class Prompt:
    """A prompt of the batch, waiting for its group."""

    sample: dict[str, Any]  # its columns
    sampling_params: dict[str, Any]
    trajectory: dict[str, Any]
    n: int  # responses asked for
    affinity: str = ""  # calls of one name go to one server; the prompts of a call have the same


@dataclass
class SampledResponse:
    """One response: what its prompt brings along, and what verl's agent loop would return."""

    sample: dict[str, Any]
    output: AgentLoopOutput

    @property
    def key(self) -> str:
        """verl's form: prompt, session, index among the outputs of a session (a single turn has one)."""
        turn = self.output.extra_fields.get(TURN, {"turn": 0})["turn"]
        return f"{self.sample['uid']}_{self.sample['session_id']}_{turn}"

    @property
    def info(self) -> dict[str, Any]:
        """What the reward function returned."""
        return self.output.extra_fields["reward_extra_info"]

    @property
    def rollout(self) -> tuple[str, int]:
        """The prompt's uid and the number of the rollout, which its turns share."""
        return self.sample["uid"], self.sample["session_id"]

    @property
    def is_question(self) -> bool:
        """Whether the response is a question, not a list."""
        return bool(self.output.extra_fields.get(TURN, {}).get("question"))

    def tag(self) -> dict[str, Any]:
        """Return what verl's replay buffer and trainer read about the response without its tensors."""
        prompt_length = len(self.output.prompt_ids)
        response_length = len(self.output.response_ids)
        extra = self.output.extra_fields
        return {
            "status": "success",
            "prompt_len": prompt_length,
            "response_len": response_length,
            "seq_len": prompt_length + response_length,
            "global_steps": self.sample["global_steps"],
            "min_global_steps": extra.get("min_global_steps"),
            "max_global_steps": extra.get("max_global_steps"),
        }

    @property
    def scored_ids(self) -> list[int]:
        """Nothing of a malformed turn."""
        turn = self.output.extra_fields.get(TURN, {})
        return [] if turn.get("malformed") else self.output.response_ids

    def for_reward(self) -> dict[str, Any]:
        """Arguments of `GroupRewardManager.score`."""
        extra = dict(self.sample.get("extra_info", {})) | self.output.extra_fields
        extra |= {"num_turns": self.output.num_turns, "rollout_reward_scores": self.sample.get("reward_scores", {})}
        return {
            "response_ids": self.scored_ids,
            "data_source": self.sample["data_source"],
            "ground_truth": self.sample["reward_model"]["ground_truth"],
            "extra_info": extra,
        }

    def fields(self) -> dict[str, Any]:
        fields = self.output.as_dict()
        fields |= self.sample
        fields.pop("multi_modal_data", None)
        fields["loss_mask"] = fields["response_mask"]
        fields["input_ids"] = torch.cat([fields["prompts"], fields["responses"]])
        fields["position_ids"] = torch.arange(len(fields["input_ids"]))
        fields["multi_modal_inputs"] = {}
        return fields


def rollout_seed(seed: int, step: int, sample_index: Any, session: int) -> int:
    """Of one rollout: a run that is resumed samples what it would have sampled. 31 bits."""
    text = f"{seed}/{step}/{sample_index}/{session}".encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:4]) >> 1
