"""Prompts and sampled responses, and their conversion for verl and the reward."""

import hashlib
from dataclasses import dataclass
from typing import Any

import torch
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput

# A key of extra_fields in runs with questions: {"turn" from 0, "question", "malformed", "asked": number of questions}
TURN = "turn"
OPEN = "open_questions"  # a sample's key in runs with questions: the negative item ids that open questions


@dataclass
class Prompt:
    """A prompt of the batch that waits for its responses.

    Attributes:
        sample: the columns of its row.
        sampling_params: of vLLM.
        trajectory: verl's trajectory info.
        n: number of responses to sample.
        affinity: calls with the same affinity go to the same server; "" for no preference. All prompts of a call share
            it.
    """

    sample: dict[str, Any]
    sampling_params: dict[str, Any]
    trajectory: dict[str, Any]
    n: int
    affinity: str = ""


@dataclass
class SampledResponse:
    """One response: its prompt's columns, and the output in the form of verl's agent loop.

    Attributes:
        sample: the columns of the prompt's row, with `uid` of the prompt and `session_id` of the rollout.
        output: tokens, log-probs, score and `extra_fields`, which features may change before it goes to TransferQueue.
    """

    sample: dict[str, Any]
    output: AgentLoopOutput

    @property
    def key(self) -> str:
        """The key in TransferQueue: prompt, session, and index of the output within the session."""
        turn = self.output.extra_fields.get(TURN, {"turn": 0})["turn"]
        return f"{self.sample['uid']}_{self.sample['session_id']}_{turn}"

    @property
    def info(self) -> dict[str, Any]:
        """The infos that the reward function returned."""
        return self.output.extra_fields["reward_extra_info"]

    @property
    def rollout(self) -> tuple[str, int]:
        """The prompt's uid and the rollout's number, which all turns of a rollout share."""
        return self.sample["uid"], self.sample["session_id"]

    @property
    def is_question(self) -> bool:
        """Whether the response is a question, not a list."""
        return bool(self.output.extra_fields.get(TURN, {}).get("question"))

    def tag(self) -> dict[str, Any]:
        """Return the tags that verl's replay buffer and trainer read without loading tensors."""
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
        """The tokens to score; empty for a malformed turn."""
        turn = self.output.extra_fields.get(TURN, {})
        return [] if turn.get("malformed") else self.output.response_ids

    def make_reward_arguments(self) -> dict[str, Any]:
        """Return the arguments of `GroupRewardManager.score`."""
        extra = dict(self.sample.get("extra_info", {})) | self.output.extra_fields
        extra |= {"num_turns": self.output.num_turns, "rollout_reward_scores": self.sample.get("reward_scores", {})}
        return {
            "response_ids": self.scored_ids,
            "data_source": self.sample["data_source"],
            "ground_truth": self.sample["reward_model"]["ground_truth"],
            "extra_info": extra,
        }

    def fields(self) -> dict[str, Any]:
        """Return the response's fields for TransferQueue: tensors, and the columns of its sample."""
        fields = self.output.as_dict()
        fields |= self.sample
        fields.pop("multi_modal_data", None)
        fields["loss_mask"] = fields["response_mask"]
        fields["input_ids"] = torch.cat([fields["prompts"], fields["responses"]])
        fields["position_ids"] = torch.arange(len(fields["input_ids"]))
        fields["multi_modal_inputs"] = {}
        return fields


def compute_rollout_seed(seed: int, step: int, sample_index: Any, session: int) -> int:
    """Return the 31-bit sampling seed of one rollout, so that a resumed run samples the same responses.

    Args:
        seed: the run's seed.
        step: the trainer's step.
        sample_index: the prompt's index in the data set; in a later turn, "INDEX/TURN".
        session: the rollout's number, from 0; -1 for the draws of a repair.
    """
    text = f"{seed}/{step}/{sample_index}/{session}".encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:4]) >> 1
