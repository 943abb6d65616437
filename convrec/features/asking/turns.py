"""The grammar of a turn: the model asks one question about an attribute of the catalog, or gives its list.

A question is the one line "Which genre?". Whatever else holds a question's line is malformed, a list without any item;
so is a question in the last turn of a conversation, where nothing can be asked. A conversation goes on as text, as all
conversations of a prompt do: the question is the SYSTEM's turn, the answer the USER's.
"""

from collections.abc import Collection
from typing import NamedTuple

from convrec.data.schema import SPEAKERS
from convrec.lists.ranks import DEFAULT_DELIMITER, split_lines

MAX_TURNS = 3  # the last of which is a list


class Turn(NamedTuple):
    """asked: the attribute of a question, None of a list. lines: of a list; none where the turn is malformed."""

    asked: str | None
    lines: list[str]

    @property
    def malformed(self) -> bool:
        return self.asked is None and not self.lines


def question_text(attribute: str) -> str:
    return f"Which {attribute}?"


def read_turn(text: str, attributes: Collection[str], may_ask: bool = True, delimiter: str = DEFAULT_DELIMITER) -> Turn:
    """attributes: what questions are about. may_ask: whether this is not the last turn."""
    lines = split_lines(text, delimiter)
    of_question = {question_text(attribute): attribute for attribute in attributes}
    asked = [of_question[line] for line in lines if line in of_question]
    if not asked:
        return Turn(None, lines)
    return Turn(asked[0], []) if may_ask and len(lines) == 1 else Turn(None, [])


def with_answer(prompt: str, attribute: str, answer: str) -> str:
    """The prompt's text after a question and its answer; nothing in the answer begins a turn."""
    said = (SPEAKERS["assistant"], question_text(attribute)), (SPEAKERS["user"], " ".join(answer.split()))
    return prompt.rstrip("\n") + "\n" + "".join(f"{speaker}: {text}\n" for speaker, text in said)
