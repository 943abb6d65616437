"""Conversations in which the model may ask, played with a user (`--user`) and measured by their lists and questions.

Baselines ask by a rule and list what is popular, that first which fits what they were told: `never` asks nothing,
`fixed` every attribute in the order of `--ask`, `entropy` the attribute whose labels are the most uncertain.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from convrec.dialogue.attributes import Attributes, load_attributes
from convrec.dialogue.play import Conversation, Model, play
from convrec.dialogue.turns import question_text
from convrec.dialogue.users import LLMUser, OtherUser, RandomUser, RuleUser
from convrec.generation.answers import GenerationRequest
from convrec.generation.prompts import prompt_id
from convrec.lists.ranks import Item, format_item
from convrec.llm import LLM, endpoint
from convrec.statistics import bootstrap
from recipes.evaluation.scoring import Scored
from recipes.evaluation.setup import Setup

ASKING = ("never", "fixed", "entropy")
Answered = Callable[[GenerationRequest], Mapping[str, Any]]  # prompt_id -> answer


def dialogues(setup: Setup, answers_of: Answered) -> dict[str, list[Conversation]]:
    """The split's conversations as the model, if there is one, and each baseline lead them. answers_of: of the model,
    which is asked once a turn for all of them."""
    options, split = setup.options, setup.split
    attributes = load_attributes(options.catalog, options.ask or ())
    wanted = split.wanted_rows(split.rows)
    user = _user(setup, attributes, wanted)
    popular = _popular(setup)
    models: dict[str, Model] = {}
    if options.model is not None:
        models["model"] = _Generated(setup, answers_of)
    if popular:
        models |= {name: _Rule(name, setup, attributes, popular) for name in ASKING}
    led = {}
    for name, model in models.items():
        led[name] = [
            Conversation(row["sample_id"], rows, row["prompt"][0]["content"])
            for row, rows in zip(split.rows, wanted, strict=True)
        ]
        play(led[name], model, user, attributes.names, options.max_turns, setup.lists.delimiter)
    return led


def _user(setup: Setup, attributes: Attributes, wanted: Sequence[Sequence[int]]) -> RuleUser:
    options = setup.options
    if options.user == "llm":
        return LLMUser(attributes, LLM(endpoint("user"), Path(options.out) / "answers"))
    kinds = {"rule": RuleUser, "random": RandomUser, "other": OtherUser}
    user = kinds[str(options.user)](attributes, options.seed, evaluation=True)
    if isinstance(user, OtherUser):
        user.others = wanted
    return user


def _popular(setup: Setup) -> list[int]:
    """Rows of the catalog that training wants, the most wanted first."""
    counts = Counter(row for rows in setup.split.wanted_rows(setup.train.rows) for row in rows)
    return [row for row, _ in counts.most_common()]


class _Generated:
    """The model: its prompts of a turn are generated at once and kept, a file a turn."""

    def __init__(self, setup: Setup, answers_of: Answered) -> None:
        self.setup, self.answers_of, self.turn = setup, answers_of, 0

    def __call__(self, conversations: Sequence[Conversation]) -> list[str]:
        self.turn += 1
        prompts = [[{"role": "user", "content": one.prompt}] for one in conversations]
        names = [prompt_id(messages) for messages in prompts]
        path = Path(self.setup.options.out) / f"generations_turn_{self.turn}.parquet"
        request = GenerationRequest(self.setup.settings["model_path"], dict(zip(names, prompts, strict=True)), path)
        answers = self.answers_of(request)
        return [answers[name]["text"] for name in names]


class _Rule:
    def __init__(self, name: str, setup: Setup, attributes: Attributes, popular: Sequence[int]) -> None:
        self.name, self.setup, self.attributes, self.popular = name, setup, attributes, popular
        self.seen = {row["sample_id"]: row["seen_titles"] or () for row in setup.split.rows}

    def __call__(self, conversations: Sequence[Conversation]) -> list[str]:
        return [self.turn_of(one) for one in conversations]

    def turn_of(self, one: Conversation) -> str:
        told = {name: self.attributes.named(name, answer) for name, answer in one.asked}
        left = [name for name in self.attributes.names if name not in told]
        if self.name != "never" and left and len(one.asked) < self.setup.options.max_turns - 1:
            return question_text(left[0] if self.name == "fixed" else self.most_uncertain(left, told))
        reader, catalog = self.setup.split.reader, self.setup.split.catalog
        excluded = set(reader.seen_rows(self.seen[one.key]))
        rows = self.attributes.by_what_was_told((row for row in self.popular if row not in excluded), told)
        lines = [format_item(catalog.titles[row], catalog.years[row]) for row in rows]  # type: ignore[arg-type]
        return self.setup.lists.delimiter.join(lines[: self.setup.lists.num_items])

    def most_uncertain(self, names: Sequence[str], told: Mapping[str, Sequence[str]]) -> str:
        """The attribute whose labels have the greatest entropy over the items that fit all that was told."""
        values = self.attributes.values
        fitting = [
            row
            for row in self.popular
            if all(not labels or values[name][row].intersection(labels) for name, labels in told.items())
        ]

        def entropy(name: str) -> float:
            counts = Counter(label for row in fitting or self.popular for label in values[name][row])
            total = sum(counts.values())
            return -sum(count / total * math.log(count / total) for count in counts.values())

        return max(names, key=entropy)


def items_of(setup: Setup, led: Sequence[Conversation]) -> list[list[Item | None]]:
    """The final lists; a malformed turn's has no item."""
    return [[setup.split.matcher.read_line(line) for line in one.last.lines] for one in led]


def dialogue_figures(setup: Setup, led: Sequence[Conversation], scored: Scored) -> dict[str, Any]:
    """Of rows with ground truth, means with standard errors: `questions`, `useful` (of the questions those about labels
    that all wanted items share and that were not said), `success@turn` (a hit, in a list at this turn or before),
    `malformed`; and `by_questions`: of the conversations with so many questions their number and the metrics."""
    options, contexts_of = setup.options, setup.split.prompt_ids
    attributes = load_attributes(options.catalog, options.ask or ())
    kept = [(one, row, context) for one, row, context in zip(led, scored, contexts_of, strict=True) if row["num_truth"]]
    contexts = [context for _, _, context in kept]

    def mean(values: Sequence[float], labels: Sequence[str] = contexts) -> dict[str, float]:
        means, errors = bootstrap(np.array(values, float).reshape(-1, 1), labels, options.seed)
        return {"mean": float(means[0]), "se": float(errors[0])}

    useful = [
        (not attributes.said(name, one.wanted, before), context)
        for one, _, context in kept
        for (name, _), before in zip(one.asked, one.before, strict=False)
    ]
    figures: dict[str, Any] = {
        "questions": mean([len(one.asked) for one, _, _ in kept]),
        "malformed": mean([one.last.malformed for one, _, _ in kept]),
    }
    if useful:
        figures["useful"] = mean([value for value, _ in useful], [context for _, context in useful])
    largest = f"recall@{max(setup.settings['ks'])}"
    for turn in range(1, options.max_turns + 1):
        hits = [row[largest] > 0 and len(one.asked) < turn for one, row, _ in kept]
        figures[f"success@{turn}"] = mean(hits)
    names = [f"{metric}@{k}" for metric in ("ndcg", "recall") for k in setup.settings["ks"]]
    figures["by_questions"] = {}
    for count in sorted({len(one.asked) for one, _, _ in kept}):
        part = [(row, context) for one, row, context in kept if len(one.asked) == count]
        labels = [context for _, context in part]
        figures["by_questions"][str(count)] = {"n": len(part)} | {
            name: mean([row[name] for row, _ in part], labels) for name in names
        }
    return figures
