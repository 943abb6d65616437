"""Who answers questions: a rule that knows the wanted titles, two controls, and a model behind an address.

A user is asked many questions at once and returns a text for each. Half of a rule's wordings are kept for evaluation.
No answer names a wanted title (naming.py), or has a label that is like one.
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
from convrec.features.asking.turns import question_text
from convrec.llm import LLM, merge_sampling
from convrec.titles.forms import normalise

USERS = ("rule", "random", "other", "llm")
ALIKE = 85.0  # similarity, 0 to 100, above which a label is like a title

_log = logging.getLogger(__name__)
_SAID = read_table(__file__, "wordings.yaml")
LABEL_WORDINGS = _SAID["labels"]
OPEN_WORDINGS = _SAID["open"]
LLM_PROMPT = _SAID["model"]


class Asked(NamedTuple):
    """A question to a user. key: of the conversation; draws depend on it, on the seed and the attribute. wanted: rows
    of the catalog. prompt: all that was said before."""

    key: str
    wanted: Sequence[int]
    attribute: str
    prompt: str = ""


def draw(seed: int, *what: object) -> Random:
    return Random("/".join(map(str, (seed, *what))))


@dataclass
class RuleUser:
    """Answers with the labels that all wanted items have ("Comedy, please."), or that nothing is wanted there.
    evaluation: in the wordings that are kept for it. others: who else is there, by what they want."""

    attributes: Attributes
    seed: int = 0
    evaluation: bool = False
    others: Sequence[Sequence[int]] = ()

    @cached_property
    def title_names(self) -> TitleNames:
        return TitleNames(self.attributes.catalog)

    def answers(self, asked: Sequence[Asked]) -> list[str]:
        return [self.wording(one, self.labels(one)) for one in asked]

    def labels(self, asked: Asked) -> Sequence[str]:
        return self.attributes.shared(asked.attribute, asked.wanted)

    def wording(self, asked: Asked, labels: Sequence[str]) -> str:
        labels = [label for label in labels if not self.is_like_a_title(label, asked.wanted)]
        half = slice(int(self.evaluation), None, 2)
        random = draw(self.seed, asked.key, asked.attribute)
        for wordings in (LABEL_WORDINGS, OPEN_WORDINGS) if labels else (OPEN_WORDINGS,):
            for wording in random.sample(wordings[half], len(wordings[half])):
                said = wording.format(labels=" and ".join(labels))
                text = said[0].upper() + said[1:]
                if not self.names_a_title(text, asked.wanted):
                    return text
        return "..."  # a title of each of our words is wanted

    def names_a_title(self, text: str, rows: Sequence[int]) -> bool:
        """Whether a text says which item is wanted, by its title or what people say in place of it."""
        return self.title_names.is_named(text, rows)

    def is_like_a_title(self, label: str, rows: Sequence[int]) -> bool:
        titles = map(normalise, self.title_names.iter_titles(rows))
        is_alike = any(fuzz.ratio(normalise(label), title) >= ALIKE for title in titles)
        return is_alike or self.names_a_title(label, rows)


class RandomUser(RuleUser):
    """A control: any label of the attribute, in a rule's words."""

    def labels(self, asked: Asked) -> Sequence[str]:
        random = draw(self.seed, asked.key, asked.attribute, "label")
        return [random.choice(self.attributes.labels[asked.attribute])]


class OtherUser(RuleUser):
    """A control: answers for somebody else's wanted items, of `others`; the same one's throughout a conversation."""

    def labels(self, asked: Asked) -> Sequence[str]:
        random = draw(self.seed, asked.key, "other")
        own = set(asked.wanted)
        drawn = (random.choice(self.others) for _ in range(100 if self.others else 0))
        rows = next((rows for rows in drawn if rows and own.isdisjoint(rows)), ())
        return self.attributes.shared(asked.attribute, rows)


class LLMUser(RuleUser):
    """A model that knows the wanted titles. An answer that names one is replaced by "I don't mind".

    sampling: parameters of its requests, beside or in place of ours; None: not sent.
    """

    def __init__(self, attributes: Attributes, llm: LLM, sampling: Mapping[str, Any] | None = None) -> None:
        super().__init__(attributes)
        self.llm = llm
        self.sampling = merge_sampling({"temperature": 0.0, "max_tokens": 60}, sampling)

    def answers(self, asked: Sequence[Asked]) -> list[str]:
        titles = self.attributes.catalog.titles
        prompts = [
            LLM_PROMPT.format(
                titles="; ".join(titles[row] for row in one.wanted),
                conversation=split_prompt(one.prompt)[1].strip(),
                question=question_text(one.attribute),
            )
            for one in asked
        ]
        given = self.llm.ask_all(prompts, label="user", **self.sampling)
        texts = [" ".join(answer.text.split()) for answer in given]
        if empty := texts.count(""):  # as of a model that thinks longer than an answer may be
            _log.warning("%d of %d answers of the user's model have no text: it does not mind", empty, len(texts))
        return [
            text if text and not self.names_a_title(text, one.wanted) else OPEN_WORDINGS[0]
            for text, one in zip(texts, asked, strict=True)
        ]
