"""What a judge's answer says: the last well-formed tag after the thinking.

    <think>...</think><score>3</score>      pointwise: a whole number of the range, 0 to 4 by default
    <think>...</think><better>A</better>    pairwise: A or B

Tags inside the thinking never count, finished or not. `<think>`, `<thinking>` and their capitals are the same, and a
prompt may have opened the thinking already (`in_thinking`). A tag is well formed when its opening is closed before it
opens again; the last one is the verdict, whether or not it can be read: an answer that ends in `<score>10</score>` has
none, though an earlier tag held a 3. An answer whose tags say two things has no verdict either.

Each character is looked at a fixed number of times: megabytes of hostile text take milliseconds.
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
LONGEST = 100  # characters of a tag's content that are looked at; no verdict is that long

_THINK = re.compile(r"<(/?)think(?:ing)?>", re.IGNORECASE | re.ASCII)
_OPENED = re.compile(r"<think(?:ing)?>\s*\Z", re.IGNORECASE | re.ASCII)

Verdict = TypeVar("Verdict", int, str)


def pointwise_reward(predicted: int | None, true: int, scores: Scores = SCORES, malformed: float = 0.0) -> float:
    """predicted: None for no verdict, which earns `malformed`; else in [0, 1], and 1 only for the true score."""
    if predicted is None:
        return malformed
    low, high = scores
    if true <= low + 1:  # a bad response called mediocre is as wrong as one called excellent
        return float(predicted == true)
    return 1 - abs(predicted - true) / (high - low)


def get_truth(ground_truth: object, name: str) -> object:
    """What a row's ground truth says under this name: of a mapping, of one as JSON, or the value itself, also as JSON;
    whether it can be true is for the caller to check."""
    value = ground_truth
    if isinstance(value, str):
        with suppress(json.JSONDecodeError):
            value = json.loads(value)
    return value.get(name) if isinstance(value, Mapping) else value


def outside_thinking(text: str, in_thinking: bool = False) -> str:
    """What follows the last end of thinking, up to where thinking begins again and does not end.

    in_thinking: the text begins inside the thinking, as after a template that opens it in the prompt.
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
    """Whether a prompt, as the chat template renders it, ends inside the thinking: answers then begin `in_thinking`."""
    return _OPENED.search(prompt[-LONGEST:]) is not None


def last_tag(text: str, name: str) -> str | None:
    """Content of the last well-formed `<name>...</name>`, white space around it removed; None without one."""
    opening = f"<{name}>"
    closing = f"</{name}>"
    end = len(text)
    while (start := text.rfind(opening, 0, end)) >= 0:
        inside = start + len(opening)
        closed = text.find(closing, inside, end)
        if closed >= 0:
            return text[inside:closed].strip()
        end = start  # this one is not closed before the next opens: look before it
    return None


def score_verdict(text: str, scores: Scores = SCORES, *, in_thinking: bool = False) -> int | None:
    """The score that the answer gives, None when it gives none: no tag, a number outside `scores`, words, or two."""
    low, high = scores
    names = {str(score): score for score in range(low, high + 1)}  # ASCII: int() takes the digits of other scripts
    return _verdict(text, "score", names.get, in_thinking)


def comparison_verdict(text: str, *, in_thinking: bool = False) -> str | None:
    """ "A", "B", or "tie" where the answer says that neither is better; None when it says none of these, or two.

    `b` and `Response B` are as clear as `B`; `A or B`, the form itself, is no answer.
    """
    names = PREFERENCES | TIES

    def read(content: str) -> str | None:
        return names.get(" ".join(content.lower().split()))

    return _verdict(text, "better", read, in_thinking)


def preference_verdict(text: str, *, in_thinking: bool = False) -> str | None:
    """ "A" or "B", None when the answer prefers neither."""
    verdict = comparison_verdict(text, in_thinking=in_thinking)
    return None if verdict == TIE else verdict


def _verdict(text: str, name: str, read: Callable[[str], Verdict | None], in_thinking: bool) -> Verdict | None:
    text = outside_thinking(text, in_thinking)

    def read_short(content: str) -> Verdict | None:
        return read(content.strip()) if len(content) <= LONGEST else None

    content = last_tag(text, name)
    verdict = None if content is None else read_short(content)
    # a tag that is not closed may contradict as well
    contents = {part.partition("<")[0] for part in text.split(f"<{name}>")[1:]}
    return verdict if {read_short(content) for content in contents} <= {verdict, None} else None
