"""What a judge's answer says: the last well-formed tag after the last `</think>`.

    <think>...</think><score>3</score>      pointwise: a whole number from 0 to 4
    <think>...</think><better>A</better>    pairwise: A or B

Tags inside the thinking never count, finished or not. A tag is well formed when its opening is closed before it opens
again; the last one is the verdict, whether or not it can be read: an answer that ends in `<score>10</score>` has
none, though an earlier tag held a 3. Searches run from the end and look at each character a fixed number of times, so
megabytes of hostile text take milliseconds (no regular expression).
"""

THINK_OPEN, THINK_CLOSE = "<think>", "</think>"
SCORES = ("0", "1", "2", "3", "4")  # ASCII only: int() would also take the digits of other scripts
MAX_SCORE = 4
PREFERENCES = {"a": "A", "b": "B", "response a": "A", "response b": "B"}
LONGEST = 100  # characters of a tag's content that are looked at; no verdict is that long


def outside_thinking(text: str) -> str:
    """What follows the last `</think>`, up to a `<think>` that opens again there and is not closed."""
    closed = text.rfind(THINK_CLOSE)
    start = closed + len(THINK_CLOSE) if closed >= 0 else 0
    opened = text.find(THINK_OPEN, start)
    return text[start:] if opened < 0 else text[start:opened]


def last_tag(text: str, name: str) -> str | None:
    """Content of the last well-formed `<name>...</name>`, white space around it removed; None without one."""
    opening, closing = f"<{name}>", f"</{name}>"
    end = len(text)
    while (start := text.rfind(opening, 0, end)) >= 0:
        inside = start + len(opening)
        closed = text.find(closing, inside, end)
        if closed >= 0:
            return text[inside:closed].strip()
        end = start  # this one is not closed before the next opens: look before it
    return None


def score_verdict(text: str) -> int | None:
    """The score 0-4 that the answer gives, None when it gives none: no tag, another number, words."""
    content = last_tag(outside_thinking(text), "score")
    return int(content) if content in SCORES else None


def preference_verdict(text: str) -> str | None:
    """ "A" or "B", None when the answer names neither or both.

    `b` and `Response B` are as clear as `B`; `both`, `EQUAL` and `A or B` are not a choice.
    """
    content = last_tag(outside_thinking(text), "better")
    if content is None or len(content) > LONGEST:
        return None
    return PREFERENCES.get(" ".join(content.lower().split()))
