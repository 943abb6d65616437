"""Rollouts that may ask before they list (docs/explanation/method.md 10): the user, and the prompt of the next turn.

Each turn is one output of a session of verl's agent loop: the conversation so far, and the response.
"""

import json
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from convrec.data.chat import fit_prompt
from convrec.features.asking.attributes import load_attributes
from convrec.features.asking.turns import add_answer, read_turn
from convrec.features.asking.users import Asked, RuleUser
from convrec.features.feature import RolloutFeature, Sampler, Scorer
from convrec.features.responses import OPEN, TURN, Prompt, SampledResponse
from convrec.lists.settings import make_matcher
from convrec.settings.rank_grpo import RankGRPOConfig
from convrec.settings.run import Run


class Dialogues(RolloutFeature):
    """Rollouts of several turns, in which a simulated user answers the questions.

    Args:
        run: a run with `ask`.
        tokenizer: the policy's tokenizer.
    """

    needs_groups = True

    def __init__(self, run: Run[RankGRPOConfig], tokenizer: Any) -> None:
        settings = run.settings
        self.template_arguments = run.template_arguments
        self.max_prompt_length = settings.max_prompt_length
        self.tokenizer = tokenizer
        self.delimiter = settings.delimiter
        self.max_turns = settings.max_turns
        self.attributes = load_attributes(settings.catalog_file, settings.ask or [], "ASK")
        self.matcher = make_matcher(self.attributes.catalog, settings)
        self.user = RuleUser(self.attributes, settings.seed)

    async def sample(self, prompts: Sequence[Prompt], sample: Sampler) -> list[SampledResponse]:
        """Sample turn after turn until every rollout has listed. Returns the questions, then the lists."""
        lists: list[SampledResponse] = []
        questions: list[SampledResponse] = []
        # One server handles all turns of a conversation, since its prefix cache has their prompts' beginnings.
        affinity = uuid4().hex
        waiting = list(prompts)
        for prompt in waiting:
            prompt.sample = self.open_questions(prompt.sample, 0)
        for turn in range(self.max_turns):
            for prompt in waiting:
                prompt.affinity = affinity
            prompt_by_uid = {prompt.sample["uid"]: prompt for prompt in waiting}
            responses = await sample(waiting) if waiting else []
            waiting = []
            for response in responses:
                following = self.next_turn(response, prompt_by_uid[response.sample["uid"]], turn)
                if following is None:
                    lists.append(response)
                else:
                    questions.append(response)
                    waiting.append(following)
        return [*questions, *lists]

    async def after_scoring(self, responses: Sequence[SampledResponse], score: Scorer, is_training: bool) -> None:
        """Give each question the reward of the list that ends its rollout, as verl does for earlier outputs."""
        ends = {
            (list_.sample["uid"], list_.sample["session_id"]): list_ for list_ in responses if not list_.is_question
        }
        for question in responses:
            if not question.is_question:
                continue
            end = ends[question.sample["uid"], question.sample["session_id"]]
            question.output.reward_score = end.output.reward_score
            question.output.extra_fields["reward_extra_info"] = end.info
            question.output.extra_fields[TURN]["asked"] = end.output.extra_fields[TURN]["asked"]

    def open_questions(self, sample: dict[str, Any], turn: int, asked: Sequence[str] = ()) -> dict[str, Any]:
        """Name the questions that the constraint allows in a turn.

        No question may be asked twice, and none in the last turn.

        Args:
            sample: the columns of the prompt's row.
            turn: the turn, from 0.
            asked: the attributes of earlier questions.

        Returns:
            A copy of the sample with OPEN: -1 - q for each question q that may be asked.
        """
        names = self.attributes.names if turn < self.max_turns - 1 else ()
        return sample | {OPEN: [-1 - place for place, name in enumerate(names) if name not in asked]}

    def next_turn(self, response: SampledResponse, prompt: Prompt, turn: int) -> Prompt | None:
        """Parse a response, record its turn in its `extra_fields`, and make the prompt of the next turn.

        Args:
            response: the response to `prompt`.
            prompt: the prompt of this turn.
            turn: this turn, from 0.

        Returns:
            The prompt that follows a question, with the user's answer; None after a list.
        """
        sample = response.sample
        text = self.tokenizer.decode(response.output.response_ids, skip_special_tokens=True)
        read = read_turn(text, self.attributes.names, turn < self.max_turns - 1, self.delimiter)
        response.output.extra_fields[TURN] = {
            "turn": turn,
            "question": read.asked is not None,
            "malformed": read.malformed,
            "asked": turn,
        }
        if read.asked is None:
            return None
        message = self._add_answer(sample, read.asked, prompt.trajectory)
        conversation = fit_prompt(self.tokenizer, [message], self.max_prompt_length, **self.template_arguments)
        closed = {name for place, name in enumerate(self.attributes.names) if -1 - place not in sample[OPEN]}
        following = self.open_questions(sample | {"raw_prompt": conversation}, turn + 1, [*closed, read.asked])
        # Each turn has a seed of its own: with the previous turn's seed, a rollout that asked would ask again.
        trajectory = prompt.trajectory | {"sample_index": f"{sample['index']}/{turn + 1}"}
        return Prompt(following, prompt.sampling_params, trajectory, 1)

    def _add_answer(self, sample: dict[str, Any], attribute: str, trajectory: dict[str, Any]) -> dict[str, Any]:
        """Return the sample's message with the question and the user's answer."""
        truth = sample["reward_model"]["ground_truth"]
        truth = json.loads(truth) if isinstance(truth, str) else truth
        wanted = self.matcher.find_relevant_rows(truth["groundtruth"])
        (message,) = sample["raw_prompt"]
        step = "validation" if trajectory["validate"] else trajectory["step"]  # part of the seed of the wording
        question = Asked(f"{step}/{sample['index']}", wanted, attribute, message["content"])
        (answer,) = self.user.answers([question])
        return message | {"content": add_answer(message["content"], attribute, answer)}
