"""Rollouts that may ask before they list (docs/explanation/method.md 10): who answers, and the prompt of the next turn.

A turn is an output of its own of a session, as verl's agent loop has it: all that was said before, and the response.
"""

import json
from collections.abc import Sequence
from typing import Any

from convrec.data.chat import fit_prompt
from convrec.dialogue.attributes import load_attributes
from convrec.dialogue.turns import read_turn, with_answer
from convrec.dialogue.users import Asked, RuleUser
from convrec.lists.catalog import load_catalog
from convrec.lists.matching import make_matcher
from convrec.lists.settings import ListSettings
from convrec.rollout.constraint import OPEN
from convrec.rollout.responses import TURN, Prompt, SampledResponse


class Dialogues:
    """The user of a run. config: the run's."""

    def __init__(self, config: Any, tokenizer: Any) -> None:
        ours, self.data, self.tokenizer = config.convrec, config.data, tokenizer
        self.lists, self.max_turns = ListSettings.of(ours), int(ours.max_turns)
        self.attributes = load_attributes(ours.catalog_file, list(ours.ask), "ASK")
        self.matcher = make_matcher(load_catalog(ours.catalog_file), self.lists)
        self.user = RuleUser(self.attributes, config.data.seed)

    def opened(self, sample: dict[str, Any], turn: int, asked: Sequence[str] = ()) -> dict[str, Any]:
        """The sample of a turn (from 0), with what it may ask under a constraint: nothing twice, nothing at the end."""
        names = self.attributes.names if turn < self.max_turns - 1 else ()
        return sample | {OPEN: [-1 - place for place, name in enumerate(names) if name not in asked]}

    def next_turn(self, rollout: SampledResponse, prompt: Prompt, turn: int) -> Prompt | None:
        """Note how the response reads; of a question the prompt that its answer makes, None of a list."""
        sample, delimiter = rollout.sample, self.lists.delimiter
        text = self.tokenizer.decode(rollout.output.response_ids, skip_special_tokens=True)
        read = read_turn(text, self.attributes.names, turn < self.max_turns - 1, delimiter)
        noted = {"turn": turn, "question": read.asked is not None, "malformed": read.malformed, "asked": turn}
        rollout.output.extra_fields[TURN] = noted
        if read.asked is None:
            return None
        truth = sample["reward_model"]["ground_truth"]
        truth = json.loads(truth) if isinstance(truth, str) else truth
        wanted = self.matcher.wanted_rows(truth["groundtruth"])
        (message,) = sample["raw_prompt"]
        step = "validation" if prompt.trajectory["validate"] else prompt.trajectory["step"]  # draws the wording
        (answer,) = self.user.answers([Asked(f"{step}/{sample['index']}", wanted, read.asked, message["content"])])
        message = message | {"content": with_answer(message["content"], read.asked, answer)}
        template = self.data.get("apply_chat_template_kwargs") or {}
        said = fit_prompt(self.tokenizer, [message], self.data.max_prompt_length, **template)
        asked = {name for place, name in enumerate(self.attributes.names) if -1 - place not in sample[OPEN]}
        following = self.opened(sample | {"raw_prompt": said}, turn + 1, [*asked, read.asked])
        # a draw of its own: with the seed of the turn before, who has asked would ask again
        trajectory = prompt.trajectory | {"sample_index": f"{sample['index']}/{turn + 1}"}
        return Prompt(following, prompt.sampling_params, trajectory, 1)
