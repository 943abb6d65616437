"""Conversations in which the model may ask, played with a user (`--user`) and measured by their lists and questions.

Baselines ask by a rule and list what is popular, that first which fits what they were told: `never` asks nothing,
`fixed` every attribute in the order of `--ask`, `entropy` the attribute whose labels are the most uncertain.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from convrec.data.schema import split_prompt
from convrec.features.asking.attributes import Attributes, load_attributes
from convrec.features.asking.turns import Turn, question_text, read_turn, with_answer
from convrec.features.asking.users import Asked, LLMUser, OtherUser, RandomUser, RuleUser
from convrec.inference.answers import GenerationRequest
from convrec.inference.prompts import prompt_id
from convrec.llm import LLM, endpoint
from recipes.evaluation.beyond_accuracy import AFTER, BY_TURN
from recipes.evaluation.scoring import Row, Scored
from recipes.evaluation.setup import Evaluation

ASKING = ("never", "fixed", "entropy")
Answered = Callable[[GenerationRequest], Mapping[str, Any]]  # prompt_id -> answer


@dataclass
class Conversation:
    """row: of the split. wanted: rows of the catalog. first, prompt: the first turn's, and with all that was said.
    asked: (attribute, answer) of each question. useful: of each, whether it is about labels that all wanted items share
    and that were not said. text: the last turn's, and `last` how it reads."""

    row: int
    wanted: Sequence[int]
    first: str
    prompt: str
    asked: list[tuple[str, str]] = field(default_factory=list)
    useful: list[bool] = field(default_factory=list)
    text: str = ""
    last: Turn = field(default_factory=lambda: Turn(None, []))

    @property
    def answer(self) -> Row:
        """Of rows.parquet: the last turn, "" where it is malformed, and what was said since the first."""
        said = self.prompt[len(self.first.rstrip("\n")) + 1 :] if self.asked else ""
        return {"text": "" if self.last.malformed else self.text, "dialogue": said}


Model = Callable[[Sequence[Conversation]], Sequence[str]]  # the next turn of each


def dialogues(evaluation: Evaluation, get_answers: Answered) -> dict[str, list[Conversation]]:
    """The split's conversations as the model, if there is one, and each baseline lead them. get_answers: of the model,
    which is asked once a turn for all of them."""
    attributes = load_attributes(evaluation.options.catalog, evaluation.options.ask or ())
    user = _make_user(evaluation, attributes)
    models: dict[str, Model] = {}
    if evaluation.options.model is not None:
        models["model"] = partial(_generated, evaluation, get_answers)
    mentions_M = evaluation.data.context.mentions_M
    if mentions_M is not None:
        popular = [row for row in np.argsort(-mentions_M, kind="stable").tolist() if mentions_M[row]]
        models |= {name: partial(_ruled, name, evaluation, attributes, popular) for name in ASKING}
    led = {}
    for name, model in models.items():
        led[name] = _open_conversations(evaluation)
        _play(led[name], model, user, evaluation)
    return led


def _make_user(evaluation: Evaluation, attributes: Attributes) -> RuleUser:
    options = evaluation.options
    if options.user == "llm":
        llm = LLM(endpoint("user"), Path(options.out) / "answers")
        return LLMUser(attributes, llm, options.sampling)
    kind = {"rule": RuleUser, "random": RandomUser, "other": OtherUser}[str(options.user)]
    return kind(attributes, options.seed, evaluation=True, others=evaluation.data.context.wanted)


def _open_conversations(evaluation: Evaluation) -> list[Conversation]:
    """One for each row, in which nothing has been asked."""
    prompts = [row["prompt"][0]["content"] for row in evaluation.data.split.rows]
    wanted = evaluation.data.context.wanted
    return [Conversation(row, wanted[row], prompt, prompt) for row, prompt in enumerate(prompts)]


def _play(going_on: Sequence[Conversation], model: Model, user: RuleUser, evaluation: Evaluation) -> None:
    """In place, turn by turn; a question in the turn `max_turns` is malformed."""
    names = evaluation.options.ask or ()
    delimiter = evaluation.rules.lists.delimiter
    ids = [row["sample_id"] for row in evaluation.data.split.rows]
    for turns_left in range(evaluation.settings["max_turns"] - 1, -1, -1):
        for one, text in zip(going_on, model(going_on) if going_on else [], strict=True):
            one.text = text
            one.last = read_turn(text, names, turns_left > 0, delimiter)
        going_on = [one for one in going_on if one.last.asked]
        questions = [Asked(ids[one.row], one.wanted, str(one.last.asked), one.prompt) for one in going_on]
        for one, question, answer in zip(going_on, questions, user.answers(questions), strict=True):
            one.useful.append(not user.attributes.said(question.attribute, one.wanted, split_prompt(one.prompt)[1]))
            one.asked.append((question.attribute, answer))
            one.prompt = with_answer(one.prompt, question.attribute, answer)


def _generated(evaluation: Evaluation, get_answers: Answered, conversations: Sequence[Conversation]) -> list[str]:
    """The model's next turns, generated at once and kept, a file a turn."""
    prompts = [[{"role": "user", "content": one.prompt}] for one in conversations]
    names = [prompt_id(messages) for messages in prompts]
    path = Path(evaluation.options.out) / f"generations_turn_{len(conversations[0].asked) + 1}.parquet"
    answers = get_answers(GenerationRequest(evaluation.model.path, dict(zip(names, prompts, strict=True)), path))
    return [answers[name]["text"] for name in names]


def _ruled(
    name: str,
    evaluation: Evaluation,
    attributes: Attributes,
    popular: Sequence[int],
    conversations: Sequence[Conversation],
) -> list[str]:
    """The next turns of a baseline."""
    lists = evaluation.rules.lists
    lines = evaluation.data.split.catalog.lines
    max_questions = evaluation.settings["max_turns"] - 1
    texts = []
    for one in conversations:
        told = {name: attributes.named(name, answer) for name, answer in one.asked}
        left = [name for name in attributes.names if name not in told]
        if name != "never" and left and len(one.asked) < max_questions:
            next_one = left[0] if name == "fixed" else attributes.most_uncertain(left, popular, told)
            texts.append(question_text(next_one))
        else:
            seen = evaluation.data.context.mentioned[one.row]
            rows = attributes.by_what_was_told((row for row in popular if row not in seen), told)
            texts.append(lists.delimiter.join(lines[row] for row in rows[: lists.num_items]))
    return texts


def add_figures(evaluation: Evaluation, led: Sequence[Conversation], scored: Scored) -> None:
    """To each row what beyond_accuracy has of dialogues; a success is a hit, in a list at this turn or before."""
    k = max(evaluation.rules.ks)
    for one, row in zip(led, scored, strict=True):
        count = len(one.asked)
        row |= {"questions": count, "malformed": int(one.last.malformed)}
        row["useful"] = sum(one.useful) / count if count else math.nan
        row |= {name: int(row[f"recall@{k}"] > 0 and count < turn) for turn, name in enumerate(BY_TURN, 1)}
        row |= {name: row[f"ndcg@{k}"] if count == n else math.nan for n, name in enumerate(AFTER)}
