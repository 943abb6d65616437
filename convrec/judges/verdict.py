"""Parses the verdict of a judge's answer: the last well-formed tag after the thinking.

    <think>...</think><score>3</score>      pointwise: a whole number in the range, 0 to 4 by default
    <think>...</think><better>A</better>    pairwise: A or B

Tags inside the thinking never count, even if it is unfinished. `<think>` and `<thinking>` are equivalent, in any case,
and the prompt may already have opened the thinking (`in_thinking`). A tag is well formed if it is closed before it
opens again. The last one is the verdict, valid or not: an answer that ends in `<score>10</score>` has no verdict, even
if an earlier tag holds a 3. An answer whose tags contradict each other has no verdict, either.

Parsing is linear: megabytes of hostile text take milliseconds.
"""

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TypeVar

from convrec.judges.criteria import SCORES, Scores

TIE = "tie"
PREFERENCES = {"a": "A", "b": "B", "response a": "A", "response b": "B"}
TIES = dict.fromkeys(("tie", "both", "neither", "equal", "same"), TIE)
MAX_TAG_CHARACTERS = 100  # longer content of a tag is no verdict

_THINK = re.compile(r"<(/?)think(?:ing)?>", re.IGNORECASE | re.ASCII)
_OPENED = re.compile(r"<think(?:ing)?>\s*\Z", re.IGNORECASE | re.ASCII)

Verdict = TypeVar("Verdict", int, str)


def pointwise_reward(predicted: int | None, true: int, scores: Scores = SCORES, malformed: float = 0.0) -> float:
    """Return the reward of a predicted score.

    Args:
        predicted: None for no verdict, which earns `malformed`.
        true: the true score.
        scores: the lowest and the highest score.
        malformed: the reward without a verdict.

    Returns:
        0 to 1, and 1 only for the true score; or `malformed`.
    """
    if predicted is None:
        return malformed
    low, high = scores
    if true <= low + 1:  # calling a bad response mediocre is as wrong as calling it excellent
        return float(predicted == true)
    return 1 - abs(predicted - true) / (high - low)


def get_truth(ground_truth: object, name: str) -> object:
    """Read a value of a ground truth. The caller checks whether the value is valid.

    Args:
        ground_truth: a mapping, the value itself, or either as JSON.
        name: the key of the value in a mapping.

    Returns:
        The value; None if a mapping lacks it.
    """
    value = ground_truth
    if isinstance(value, str):
        with suppress(json.JSONDecodeError):
            value = json.loads(value)
    return value.get(name) if isinstance(value, Mapping) else value


def strip_thinking(text: str, in_thinking: bool = False) -> str:
    """Return the text after the thinking, up to an unfinished second thinking.

    Args:
        text: the answer.
        in_thinking: whether the text begins inside the thinking, as with a chat template that opens it in the prompt.
    """
    start = 0
    end = 0 if in_thinking else len(text)
    is_open = in_thinking
    for tag in _THINK.finditer(text):
        if tag[1]:
            start = tag.end()
            end = len(text)
            is_open = False
        elif not is_open:
            end = tag.start()
            is_open = True
    return text[start:end]


def opens_thinking(prompt: str) -> bool:
    """Return whether a rendered prompt ends inside the thinking, so that answers begin `in_thinking`."""
    return _OPENED.search(prompt[-MAX_TAG_CHARACTERS:]) is not None


def find_last_tag(text: str, name: str) -> str | None:
    """Return the content of the last well-formed `<name>...</name>`.

    Args:
        text: an answer without its thinking.
        name: the tag.

    Returns:
        The stripped content; None without such a tag.
    """
    opening = f"<{name}>"
    closing = f"</{name}>"
    end = len(text)
    while (start := text.rfind(opening, 0, end)) >= 0:
        inside = start + len(opening)
        closed = text.find(closing, inside, end)
        if closed >= 0:
            return text[inside:closed].strip()
        end = start  # this tag is not closed before the next one opens, so search before it
    return None


def parse_score_verdict(text: str, scores: Scores = SCORES, *, in_thinking: bool = False) -> int | None:
    """Read the score that an answer gives.

    Args:
        text: the answer.
        scores: the lowest and the highest score.
        in_thinking: whether the prompt opens the thinking.

    Returns:
        The score; None without a tag, or if it is out of range, not a number or contradictory.
    """
    low, high = scores
    names = {str(score): score for score in range(low, high + 1)}  # int() would accept digits of other scripts
    return _read_verdict(text, "score", names.get, in_thinking)


def parse_comparison_verdict(text: str, *, in_thinking: bool = False) -> str | None:
    """Read the response that an answer prefers, or a tie.

    `b` and `Response B` count as `B`; `A or B`, copied from the prompt, counts as no answer.

    Args:
        text: the answer.
        in_thinking: whether the prompt opens the thinking.

    Returns:
        "A", "B" or "tie"; None if the answer gives none of these, or contradicts itself.
    """
    names = PREFERENCES | TIES

    def read(content: str) -> str | None:
        return names.get(" ".join(content.lower().split()))

    return _read_verdict(text, "better", read, in_thinking)


def parse_preference_verdict(text: str, *, in_thinking: bool = False) -> str | None:
    """Read the response that an answer prefers.

    Args:
        text: the answer.
        in_thinking: whether the prompt opens the thinking.

    Returns:
        "A" or "B"; None if the answer prefers neither.
    """
    verdict = parse_comparison_verdict(text, in_thinking=in_thinking)
    return None if verdict == TIE else verdict


def _read_verdict(text: str, name: str, read: Callable[[str], Verdict | None], in_thinking: bool) -> Verdict | None:
    text = strip_thinking(text, in_thinking)

    def read_short(content: str) -> Verdict | None:
        return read(content.strip()) if len(content) <= MAX_TAG_CHARACTERS else None

    content = find_last_tag(text, name)
    verdict = None if content is None else read_short(content)
    # a tag that is not closed may also contradict the verdict
    contents = {part.partition("<")[0] for part in text.split(f"<{name}>")[1:]}
    return verdict if {read_short(content) for content in contents} <= {verdict, None} else None
