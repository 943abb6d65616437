"""The grammar of a turn: the model asks one question about an attribute of the catalog, or gives its list.

A question is the single line "Which genre?". Any other response that contains such a line is malformed and counts as an
empty list; so does a question in the last turn of a conversation. The conversation continues as text in the prompt: the
question is a SYSTEM line, the answer a USER line.
"""

from collections.abc import Collection
from typing import NamedTuple

from convrec.data.schema import SPEAKERS
from convrec.lists.ranks import DEFAULT_DELIMITER, split_lines

MAX_TURNS = 3  # the last one is a list


class Turn(NamedTuple):
    """A parsed turn.

    Attributes:
        asked: the attribute of a question; None for a list.
        lines: the lines of a list; empty for a malformed turn.
    """

    asked: str | None
    lines: list[str]

    @property
    def malformed(self) -> bool:
        return self.asked is None and not self.lines


def format_question(attribute: str) -> str:
    return f"Which {attribute}?"


def read_turn(text: str, attributes: Collection[str], may_ask: bool = True, delimiter: str = DEFAULT_DELIMITER) -> Turn:
    """Parse a response as a question or a list.

    Args:
        text: the response.
        attributes: the attributes that may be asked about.
        may_ask: False in the last turn, where a question is malformed.
        delimiter: what separates lines.
    """
    lines = split_lines(text, delimiter)
    attribute_by_question = {format_question(attribute): attribute for attribute in attributes}
    questions = [attribute_by_question[line] for line in lines if line in attribute_by_question]
    if not questions:
        return Turn(None, lines)
    return Turn(questions[0], []) if may_ask and len(lines) == 1 else Turn(None, [])


def add_answer(prompt: str, attribute: str, answer: str) -> str:
    """Append a question and its answer to a prompt.

    Line breaks in the answer become spaces, so that it cannot begin a turn.
    """
    question_line = f"{SPEAKERS['assistant']}: {format_question(attribute)}\n"
    answer_line = f"{SPEAKERS['user']}: {' '.join(answer.split())}\n"
    return prompt.rstrip("\n") + "\n" + question_line + answer_line
