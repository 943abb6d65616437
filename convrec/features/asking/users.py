"""Simulated users: a rule that knows the relevant titles, two controls, and a model at an OpenAI-compatible endpoint.

A user gets a batch of questions and returns one text for each. Half of the rule's wordings are reserved for evaluation.
No answer names a relevant title (naming.py), or contains a label that resembles one.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from random import Random
from typing import Any, NamedTuple

from rapidfuzz import fuzz

from convrec.base.shipped import read_table
from convrec.data.schema import split_prompt
from convrec.features.asking.attributes import Attributes
from convrec.features.asking.naming import TitleNames
from convrec.features.asking.turns import format_question
from convrec.llm import LLM, merge_sampling
from convrec.titles.forms import normalise

USERS = ("rule", "random", "other", "llm")
MIN_SIMILARITY = 85.0  # of 100: from here on a label resembles a title

_log = logging.getLogger(__name__)
_WORDINGS = read_table(__file__, "wordings.yaml")
LABEL_WORDINGS = _WORDINGS["labels"]
OPEN_WORDINGS = _WORDINGS["open"]
LLM_PROMPT = _WORDINGS["model"]


class Asked(NamedTuple):
    """A question to a user.

    Attributes:
        key: identifies the conversation; random draws depend on it, on the seed and on the attribute.
        wanted: catalog rows of the relevant items.
        attribute: what the question is about.
        prompt: the conversation so far.
    """

    key: str
    wanted: Sequence[int]
    attribute: str
    prompt: str = ""


def draw(seed: int, *key: object) -> Random:
    """Return a random generator that depends on the seed and the key alone."""
    return Random("/".join(map(str, (seed, *key))))


@dataclass
class RuleUser:
    """Answers with the labels that all relevant items share ("Comedy, please."), or says that anything is fine.

    Attributes:
        attributes: the catalog's labels.
        seed: of the wordings.
        evaluation: whether to use the wordings reserved for evaluation.
        others: the relevant items of other users, for `OtherUser`.
    """

    attributes: Attributes
    seed: int = 0
    evaluation: bool = False
    others: Sequence[Sequence[int]] = ()

    @cached_property
    def title_names(self) -> TitleNames:
        return TitleNames(self.attributes.catalog)

    def answers(self, questions: Sequence[Asked]) -> list[str]:
        """Return an answer to each question."""
        return [self.word_answer(question, self.choose_labels(question)) for question in questions]

    def choose_labels(self, question: Asked) -> Sequence[str]:
        """Return the labels that the answer names."""
        return self.attributes.shared(question.attribute, question.wanted)

    def word_answer(self, question: Asked, labels: Sequence[str]) -> str:
        """Return a sentence with these labels, in a random wording that names no relevant title.

        Args:
            question: the question to answer.
            labels: what the answer names; those that resemble a relevant title are left out.

        Returns:
            The sentence. It says that anything is fine if no label is left; "..." if every wording names a title.
        """
        labels = [label for label in labels if not self.resembles_title(label, question.wanted)]
        half = slice(int(self.evaluation), None, 2)
        random = draw(self.seed, question.key, question.attribute)
        for wordings in (LABEL_WORDINGS, OPEN_WORDINGS) if labels else (OPEN_WORDINGS,):
            for wording in random.sample(wordings[half], len(wordings[half])):
                sentence = wording.format(labels=" and ".join(labels))
                text = sentence[0].upper() + sentence[1:]
                if not self.names_title(text, question.wanted):
                    return text
        return "..."  # every wording contains a relevant title

    def names_title(self, text: str, rows: Sequence[int]) -> bool:
        """Return whether a text reveals one of these items, by its title or a shorter name."""
        return self.title_names.is_named(text, rows)

    def resembles_title(self, label: str, rows: Sequence[int]) -> bool:
        """Return whether a label names one of these items or is spelled much like its title."""
        titles = map(normalise, self.title_names.iter_titles(rows))
        is_similar = any(fuzz.ratio(normalise(label), title) >= MIN_SIMILARITY for title in titles)
        return is_similar or self.names_title(label, rows)


class RandomUser(RuleUser):
    """A control: answers with a random label of the attribute, in the rule's wordings."""

    def choose_labels(self, question: Asked) -> Sequence[str]:
        random = draw(self.seed, question.key, question.attribute, "label")
        return [random.choice(self.attributes.labels[question.attribute])]


class OtherUser(RuleUser):
    """A control: answers for another user of `others`, the same one throughout a conversation."""

    def choose_labels(self, question: Asked) -> Sequence[str]:
        random = draw(self.seed, question.key, "other")
        own = set(question.wanted)
        drawn = (random.choice(self.others) for _ in range(100 if self.others else 0))
        rows = next((rows for rows in drawn if rows and own.isdisjoint(rows)), ())
        return self.attributes.shared(question.attribute, rows)


class LLMUser(RuleUser):
    """A model that knows the relevant titles. An answer that names one is replaced by "I don't mind".

    Args:
        attributes: the catalog's labels.
        llm: the client.
        sampling: sampling parameters that add to or override ours; a parameter set to None is not sent.
    """

    def __init__(self, attributes: Attributes, llm: LLM, sampling: Mapping[str, Any] | None = None) -> None:
        super().__init__(attributes)
        self.llm = llm
        self.sampling = merge_sampling({"temperature": 0.0, "max_tokens": 60}, sampling)

    def answers(self, questions: Sequence[Asked]) -> list[str]:
        titles = self.attributes.catalog.titles
        prompts = [
            LLM_PROMPT.format(
                titles="; ".join(titles[row] for row in question.wanted),
                conversation=split_prompt(question.prompt)[1].strip(),
                question=format_question(question.attribute),
            )
            for question in questions
        ]
        answers = self.llm.ask_all(prompts, label="user", **self.sampling)
        texts = [" ".join(answer.text.split()) for answer in answers]
        if num_empty := texts.count(""):  # for example, reasoning used up the token limit
            _log.warning(
                "%d of %d answers of the user model are empty; each becomes %r", num_empty, len(texts), OPEN_WORDINGS[0]
            )
        return [
            text if text and not self.names_title(text, question.wanted) else OPEN_WORDINGS[0]
            for text, question in zip(texts, questions, strict=True)
        ]
