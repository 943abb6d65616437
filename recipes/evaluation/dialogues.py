"""Conversations in which the model may ask a simulated user (`--user`), measured by their lists and questions.

Baselines ask by a rule and list popular items, those that fit the user's answers first: `never` asks nothing, `fixed`
asks about every attribute in the order of `--ask`, `entropy` about the attribute whose labels are most uncertain.
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
from convrec.features.asking.turns import Turn, add_answer, format_question, read_turn
from convrec.features.asking.users import Asked, LLMUser, OtherUser, RandomUser, RuleUser
from convrec.inference.answers import GenerationRequest
from convrec.inference.prompts import prompt_id
from convrec.llm import LLM, endpoint
from convrec.titles.catalog import check_unchanged
from recipes.evaluation.beyond_accuracy import NDCG_AFTER_QUESTIONS, SUCCESS_BY_TURN
from recipes.evaluation.scoring import Row, Scored
from recipes.evaluation.setup import Evaluation

ASKING_POLICIES = ("never", "fixed", "entropy")
AnswerSource = Callable[[GenerationRequest], Mapping[str, Any]]  # prompt_id -> answer


@dataclass
class Conversation:
    """A conversation between the model and a simulated user.

    Attributes:
        row: number of the split's row.
        wanted: catalog rows of the ground truth.
        first: prompt of the first turn.
        prompt: the first prompt with all turns since.
        questions: (attribute, answer) of each question.
        useful: for each question, whether it is about labels that all relevant items share and that the conversation
            has not mentioned.
        text: the model's last turn.
        last: that turn, parsed.
    """

    row: int
    wanted: Sequence[int]
    first: str
    prompt: str
    questions: list[tuple[str, str]] = field(default_factory=list)
    useful: list[bool] = field(default_factory=list)
    text: str = ""
    last: Turn = field(default_factory=lambda: Turn(None, []))

    @property
    def answer(self) -> Row:
        """The columns of rows.parquet: the last turn, "" if malformed, and the turns since the first prompt."""
        dialogue = self.prompt[len(self.first.rstrip("\n")) + 1 :] if self.questions else ""
        return {"text": "" if self.last.malformed else self.text, "dialogue": dialogue}


Model = Callable[[Sequence[Conversation]], Sequence[str]]  # returns the next turn of each conversation


def play_conversations(evaluation: Evaluation, get_answers: AnswerSource) -> dict[str, list[Conversation]]:
    """Play the split's conversations with the model, if there is one, and with each baseline.

    Args:
        evaluation: with `options.user`.
        get_answers: the model's answers to a request; called once per turn with all open conversations.

    Returns:
        The finished conversations by model or baseline, one per row.

    Raises:
        UserError: the catalog's file has changed since the split was read.
    """
    attributes = load_attributes(evaluation.options.catalog, evaluation.options.ask or ())
    # its rows must be those of the split
    check_unchanged(evaluation.options.catalog, evaluation.settings["sha256"]["catalog"])
    user = _make_user(evaluation, attributes)
    models: dict[str, Model] = {}
    if evaluation.options.model is not None:
        models["model"] = partial(_generate_turns, evaluation, get_answers)
    mentions_M = evaluation.data.context.mentions_M
    if mentions_M is not None:
        popular = [row for row in np.argsort(-mentions_M, kind="stable").tolist() if mentions_M[row]]
        models |= {name: partial(_choose_turns, name, evaluation, attributes, popular) for name in ASKING_POLICIES}
    conversations = {}
    for name, model in models.items():
        conversations[name] = _open_conversations(evaluation)
        _play(conversations[name], model, user, evaluation)
    return conversations


def _make_user(evaluation: Evaluation, attributes: Attributes) -> RuleUser:
    options = evaluation.options
    if options.user == "llm":
        llm = LLM(endpoint("user"), Path(options.out) / "answers")
        return LLMUser(attributes, llm, options.sampling)
    kind = {"rule": RuleUser, "random": RandomUser, "other": OtherUser}[str(options.user)]
    return kind(attributes, options.seed, evaluation=True, others=evaluation.data.context.wanted)


def _open_conversations(evaluation: Evaluation) -> list[Conversation]:
    """Start a conversation for each row."""
    prompts = [row["prompt"][0]["content"] for row in evaluation.data.split.rows]
    wanted = evaluation.data.context.wanted
    return [Conversation(row, wanted[row], prompt, prompt) for row, prompt in enumerate(prompts)]


def _play(conversations: Sequence[Conversation], model: Model, user: RuleUser, evaluation: Evaluation) -> None:
    """Play conversations to their end, in place, turn by turn; a question in turn `max_turns` is malformed."""
    names = evaluation.options.ask or ()
    delimiter = evaluation.rules.lists.delimiter
    ids = [row["sample_id"] for row in evaluation.data.split.rows]
    for turns_left in range(evaluation.settings["max_turns"] - 1, -1, -1):
        turns = model(conversations) if conversations else []
        for conversation, text in zip(conversations, turns, strict=True):
            conversation.text = text
            conversation.last = read_turn(text, names, turns_left > 0, delimiter)
        conversations = [conversation for conversation in conversations if conversation.last.asked]
        questions = [
            Asked(ids[conversation.row], conversation.wanted, str(conversation.last.asked), conversation.prompt)
            for conversation in conversations
        ]
        for conversation, question, answer in zip(conversations, questions, user.answers(questions), strict=True):
            text = split_prompt(conversation.prompt)[1]
            is_mentioned = user.attributes.said(question.attribute, conversation.wanted, text)
            conversation.useful.append(not is_mentioned)
            conversation.questions.append((question.attribute, answer))
            conversation.prompt = add_answer(conversation.prompt, question.attribute, answer)


def _generate_turns(
    evaluation: Evaluation, get_answers: AnswerSource, conversations: Sequence[Conversation]
) -> list[str]:
    """Generate the model's next turns in one batch, stored in one file per turn."""
    prompts = [[{"role": "user", "content": conversation.prompt}] for conversation in conversations]
    names = [prompt_id(messages) for messages in prompts]
    path = Path(evaluation.options.out) / f"generations_turn_{len(conversations[0].questions) + 1}.parquet"
    answers = get_answers(GenerationRequest(evaluation.model.path, dict(zip(names, prompts, strict=True)), path))
    return [answers[name]["text"] for name in names]


def _choose_turns(
    name: str,
    evaluation: Evaluation,
    attributes: Attributes,
    popular: Sequence[int],
    conversations: Sequence[Conversation],
) -> list[str]:
    """Choose the next turns of the baseline `name`."""
    lists = evaluation.rules.lists
    lines = evaluation.data.split.catalog.lines
    max_questions = evaluation.settings["max_turns"] - 1
    texts = []
    for conversation in conversations:
        preferences = {attribute: attributes.named(attribute, answer) for attribute, answer in conversation.questions}
        left = [attribute for attribute in attributes.names if attribute not in preferences]
        if name != "never" and left and len(conversation.questions) < max_questions:
            attribute = left[0] if name == "fixed" else attributes.find_most_uncertain(left, popular, preferences)
            texts.append(format_question(attribute))
        else:
            seen = evaluation.data.context.mentioned[conversation.row]
            rows = attributes.rank_by_preferences((row for row in popular if row not in seen), preferences)
            texts.append(lists.delimiter.join(lines[row] for row in rows[: lists.num_items]))
    return texts


def add_figures(evaluation: Evaluation, conversations: Sequence[Conversation], scored: Scored) -> None:
    """Add the DIALOGUE_MEASURES to each row.

    Success by turn t is a hit in a list of turn t or earlier. A measure that a conversation does not have is NaN.

    Args:
        evaluation: the evaluation, for its largest k.
        conversations: one per row of the split.
        scored: the scores of their lists, changed in place.
    """
    k = max(evaluation.rules.ks)
    for conversation, row in zip(conversations, scored, strict=True):
        count = len(conversation.questions)
        row |= {"questions": count, "malformed": int(conversation.last.malformed)}
        row["useful"] = sum(conversation.useful) / count if count else math.nan
        row |= {name: int(row[f"recall@{k}"] > 0 and count < turn) for turn, name in enumerate(SUCCESS_BY_TURN, 1)}
        row |= {name: row[f"ndcg@{k}"] if count == n else math.nan for n, name in enumerate(NDCG_AFTER_QUESTIONS)}
