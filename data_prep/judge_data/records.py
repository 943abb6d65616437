"""What a record of preferences or ratings says, whatever its form, and how its texts and messages are read."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from convrec.data.chat import Message
from convrec.data.damage import BadRecord

DROP = "fix or drop these records"


class Comparison(NamedTuple):
    """Two responses, the better one first; `tie` when neither is."""

    messages: list[Message]
    better: str
    worse: str
    tie: bool = False
    reason: str | None = None


class Rating(NamedTuple):
    """A response with what somebody gave it: `score` on the judge's scale; by `grade` it is compared with others."""

    messages: list[Message]
    response: str
    score: int
    grade: float
    reason: str | None = None


Item = Comparison | Rating | dict[str, Any]  # a dict is a row of the schema


def text(value: Any, name: str) -> str:
    """The text in a column of this name. Raises BadRecord when it is none."""
    if not isinstance(value, str) or not value.strip():
        raise BadRecord(f"`{name}` has no text; {DROP}")
    return value


def prompt_messages(value: Any, name: str = "prompt") -> list[Message]:
    """A prompt: a text, or messages of which the last is the user's. Raises BadRecord."""
    if isinstance(value, str):
        return [{"role": "user", "content": text(value, name)}]
    messages = talk(value, name)
    if messages[-1]["role"] != "user":
        raise BadRecord("the prompt does not end in the user's message; cut it before the response")
    return messages


def talk(value: Any, name: str) -> list[Message]:
    """Messages, whoever has the last word. Raises BadRecord."""
    problem = BadRecord(f"`{name}` is neither a text nor messages {{role, content}}; {DROP}")
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        raise problem
    for message in value:
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise problem
    return [{"role": message["role"], "content": text(message.get("content"), name)} for message in value]


def number_of(record: Mapping[str, Any], name: str, low: float, high: float, *, whole: bool = False) -> float:
    """A number from low to high; parquet and JSON of other programs have it as text, too. Raises BadRecord."""
    try:
        value = float(record[name]) if not isinstance(record[name], bool) else None
    except (KeyError, TypeError, ValueError):
        value = None
    if value is None or not low <= value <= high or (whole and value != int(value)):
        kind = "whole number" if whole else "number"
        raise BadRecord(f"`{name}` is no {kind} from {low:g} to {high:g}; map the scale to {low:g}-{high:g}")
    return value


def compare(
    messages: list[Message], first: str, second: str, better: str | None, reason: str | None = None
) -> Comparison:
    """better: "A" for the first, "B" for the second, None for a tie."""
    if better == "B":
        return Comparison(messages, second, first, False, reason)
    return Comparison(messages, first, second, better is None, reason)
