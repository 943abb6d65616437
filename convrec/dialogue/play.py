"""A conversation from its first turn to its list: a model that asks or lists, and a user who answers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from convrec.dialogue.turns import Turn, read_turn, with_answer
from convrec.dialogue.users import Asked, RuleUser
from convrec.lists.ranks import DEFAULT_DELIMITER


@dataclass
class Conversation:
    """key, wanted: as `Asked` has them. prompt: with all that was said. asked: (attribute, answer) of each question.
    before: the prompt of each turn. text: the last turn's, and `last` how it reads."""

    key: str
    wanted: Sequence[int]
    prompt: str
    asked: list[tuple[str, str]] = field(default_factory=list)
    before: list[str] = field(default_factory=list)
    text: str = ""
    last: Turn = field(default_factory=lambda: Turn(None, []))

    @property
    def dialogue(self) -> str:
        """What was said since the first turn."""
        return self.prompt.removeprefix(self.before[0].rstrip("\n") + "\n")


Model = Callable[[Sequence[Conversation]], Sequence[str]]  # the next turn of each


def play(
    conversations: Sequence[Conversation],
    model: Model,
    user: RuleUser,
    attributes: Sequence[str],
    max_turns: int,
    delimiter: str = DEFAULT_DELIMITER,
) -> None:
    """Play all of them, in place, turn by turn; a question in the turn `max_turns` is malformed."""
    going_on = list(conversations)
    for turns_left in range(max_turns - 1, -1, -1):
        asked = []
        for one, text in zip(going_on, model(going_on) if going_on else [], strict=True):
            one.before.append(one.prompt)
            one.text, one.last = text, read_turn(text, attributes, turns_left > 0, delimiter)
            if one.last.asked:
                asked.append(one)
        questions = [Asked(one.key, one.wanted, one.last.asked or "", one.prompt) for one in asked]
        for one, question, answer in zip(asked, questions, user.answers(questions), strict=True):
            one.asked.append((question.attribute, answer))
            one.prompt = with_answer(one.prompt, question.attribute, answer)
        going_on = asked
