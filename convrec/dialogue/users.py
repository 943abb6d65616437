"""Who answers questions: a rule that knows the wanted titles, two controls, and a model behind an address.

A user is asked many questions at once and returns a text for each. Half of a rule's wordings are kept for evaluation.
No answer names a wanted title, or has a label that is like one.
"""

import hashlib
from collections.abc import Iterator, Sequence
from random import Random
from typing import NamedTuple

from rapidfuzz import fuzz

from convrec.data.schema import split_prompt
from convrec.dialogue.attributes import Attributes
from convrec.dialogue.turns import question_text
from convrec.lists.titles import fold, normalise
from convrec.llm import LLM

USERS = ("rule", "random", "other", "llm")
ALIKE = 85.0  # similarity, 0 to 100, above which a label is like a title

LABEL_WORDINGS = (  # in turn for training and for evaluation
    "{labels}, please.",
    "Something with {labels}.",
    "I would like {labels}.",
    "{labels} would be best.",
    "Let's say {labels}.",
    "I was thinking of {labels}.",
    "{labels} sounds right.",
    "Make that {labels}.",
)
OPEN_WORDINGS = (
    "I don't mind.",
    "Any is fine.",
    "No preference.",
    "Whatever you think.",
    "That doesn't matter to me.",
    "All are fine with me.",
    "I don't care much about that.",
    "You choose.",
)


class Asked(NamedTuple):
    """A question to a user. key: of the conversation; draws depend on it, on the seed and the attribute. wanted: rows
    of the catalog. prompt: all that was said before."""

    key: str
    wanted: Sequence[int]
    attribute: str
    prompt: str = ""


def draw(seed: int, *what: object) -> Random:
    text = "/".join(map(str, (seed, *what))).encode()
    return Random(int.from_bytes(hashlib.sha256(text).digest()[:8]))


class RuleUser:
    """Answers with the labels that all wanted items have ("Comedy, please."), or that nothing is wanted there."""

    def __init__(self, attributes: Attributes, seed: int, evaluation: bool = False) -> None:
        self.attributes, self.seed, self.evaluation = attributes, seed, evaluation

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

    def titles(self, rows: Sequence[int]) -> Iterator[str]:
        catalog = self.attributes.catalog
        for row in rows:
            yield from (catalog.titles[row], *(catalog.aliases[row] if catalog.aliases else ()))

    def names_a_title(self, text: str, rows: Sequence[int]) -> bool:
        """Whether the words of a title stand in a row in a text."""
        return any(
            bool(words := form(title)) and f" {words} " in f" {form(text)} "
            for title in self.titles(rows)
            for form in (fold, normalise)
        )

    def is_like_a_title(self, label: str, rows: Sequence[int]) -> bool:
        alike = (fuzz.ratio(normalise(label), normalise(title)) >= ALIKE for title in self.titles(rows))
        return any(alike) or self.names_a_title(label, rows)


class RandomUser(RuleUser):
    """A control: any label of the attribute, in a rule's words."""

    def labels(self, asked: Asked) -> Sequence[str]:
        random = draw(self.seed, asked.key, asked.attribute, "label")
        return [random.choice(self.attributes.labels[asked.attribute])]


class OtherUser(RuleUser):
    """A control: answers for somebody else's wanted items, of `others`; the same one's throughout a conversation."""

    others: Sequence[Sequence[int]] = ()

    def labels(self, asked: Asked) -> Sequence[str]:
        random, own = draw(self.seed, asked.key, "other"), set(asked.wanted)
        drawn = (random.choice(self.others) for _ in range(100 if self.others else 0))
        rows = next((rows for rows in drawn if rows and own.isdisjoint(rows)), ())
        return self.attributes.shared(asked.attribute, rows)


LLM_PROMPT = """You are looking for one of these: {titles}.
You have not said so. So far the conversation was:
{conversation}
The recommender asks: {question}
Answer as that user, in one short sentence, by what these have in common. If they have nothing of that in common, say \
that you do not mind. Never write a title or a name from it."""


class LLMUser(RuleUser):
    """A model that is told the wanted titles; in place of an answer that names one, it does not mind."""

    def __init__(self, attributes: Attributes, llm: LLM) -> None:
        super().__init__(attributes, 0)
        self.llm = llm

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
        given = self.llm.ask_all(prompts, label="user", temperature=0.0, max_tokens=60)
        texts = [" ".join(answer.text.split()) for answer in given]
        return [
            text if text and not self.names_a_title(text, one.wanted) else OPEN_WORDINGS[0]
            for text, one in zip(texts, asked, strict=True)
        ]
